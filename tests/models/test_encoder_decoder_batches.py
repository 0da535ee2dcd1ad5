"""Encoder-decoder models on a CPU: sources encoded together, narrow runs, and when neither is done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import library
import outrider
import tiny
from outrider.core.protocols import Admission, Shape
from outrider.models import batch_invariance
from outrider.models.transformers import model as models
from outrider.models.transformers import two_queries
from outrider.models.transformers.model import HuggingFaceModel

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15, 16], [17], [18, 19, 20, 21], [5, 9, 11]]
SHAPE = Shape(96, 5, source_capacity=64)


def wrapped(family: str, monkeypatch: pytest.MonkeyPatch, holds: bool | None) -> HuggingFaceModel:
    """A model of layers that count as packed, for which the check says so, or None: finds out."""
    torch.manual_seed(0)
    found = HuggingFaceModel(tiny.build(family))
    monkeypatch.setattr(models, "packed_layers", lambda model: (1, 1))
    if holds is not None:
        monkeypatch.setattr(batch_invariance, "holds_beside_sources", lambda model, rows: holds)
    return found


@pytest.mark.parametrize("save", [library.save_t5, library.save_bart])
def test_a_row_has_the_text_it_has_alone(save: Callable[[Path], Path], tmp_path: Path) -> None:
    """Whatever was found out about this CPU: beside others, with guesses, and with all of them in one batch."""
    llm = outrider.load(str(save(tmp_path)), draft=None)
    copying, how = llm.with_draft("copy"), {"max_new_tokens": 12}
    alone = [llm.generate(prompt, **how).tokens for prompt in PROMPTS]
    for slots in (None, 2):
        for each in (llm, copying):
            each.slots = slots
            assert [output.tokens for output in each.generate(PROMPTS, **how)] == alone


def test_sources_of_like_length_are_encoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred sentences were encoded one by one: half of the time that their translation took."""
    model = wrapped("t5", monkeypatch, holds=True)
    assert model.find_batch_invariance() and model.facts.batch_invariant and model.facts.slots > 8
    runs: list[tuple[int, ...]] = []
    model.model.get_encoder().register_forward_pre_hook(
        lambda module, given, named: runs.append(tuple(named["input_ids"].shape)), with_kwargs=True
    )
    sources = {0: [3] * 5, 1: [4] * 7, 2: [5] * 12, 3: torch.zeros((6, model.hidden_size or 0))}
    together, alone = model.start(4, SHAPE), model.start(4, SHAPE)
    together.admit_all([Admission(row, [0], source) for row, source in sources.items()])
    assert runs == [(2, 8), (1, 16)], "finished output of an encoder is not encoded again"
    for row, source in sources.items():
        alone.admit(row, [0], source)
    cross: list[Any] = [session.cache.cross.buffers() for session in (together, alone)]
    for one, other in zip(*cross, strict=True):
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(one, other, strict=True))
        assert not one[0][0, :, 5:].any(), "padding leaves nothing behind"


def test_what_does_not_hold_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wrapped("t5", monkeypatch, holds=False)
    monkeypatch.setattr(two_queries, "attention", lambda *given, **named: pytest.fail("it still attends that way"))
    before = model.facts
    assert not model.find_batch_invariance()
    assert model.facts == model.engine.facts == before and model.engine.capacity_granule is None
    session = model.start(1, SHAPE)
    session.admit(0, [0], [5, 6])
    session.score(torch.zeros((1, 0), dtype=torch.int64))


@pytest.mark.parametrize("wrong", ["one query", "beside others", "more keys"])
def test_the_check_sees_kernels_that_differ(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a check that never runs a single query, never runs several rows, or only rows of one length."""
    right = two_queries.attention

    def differing(module: Any, query: Any, key: Any, *rest: Any, **options: Any) -> Any:
        found, weights = right(module, query, key, *rest, **options)
        there = {"one query": query.shape[2] == 1, "beside others": len(query) > 1, "more keys": key.shape[2] > 64}
        return found * (1.01 if there[wrong] and key.shape[2] != query.shape[2] else 1.0), weights

    monkeypatch.setattr(two_queries, "attention", differing)
    model = wrapped("t5", monkeypatch, holds=None)
    assert not model.find_batch_invariance() or (wrong == "more keys" and model.engine.capacity_granule is None)


def test_a_single_query_is_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits of attention with one query were not those of the same query beside another."""
    torch.manual_seed(0)
    run, queries = torch.nn.functional.scaled_dot_product_attention, []

    def counted(query: Any, *rest: Any, **options: Any) -> Any:
        queries.append(query.shape[2])
        assert query.stride(2) > 0, "a query repeated by a stride of zero has other bits than one in memory"
        return run(query, *rest, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    query, key, value = torch.randn(3, 2, 2, 8), torch.randn(3, 2, 9, 8), torch.randn(3, 2, 9, 8)
    mask = torch.zeros((3, 1, 2, 9)).index_fill_(3, torch.tensor([8]), -torch.inf)
    both, _ = two_queries.attention(torch.nn.Module(), query, key, value, mask)
    for place in range(2):
        one, _ = two_queries.attention(torch.nn.Module(), query[:, :, place : place + 1], key, value, mask[:, :, :1])
        assert one.shape == (3, 1, 2, 8) and torch.allclose(one, both[:, place : place + 1], atol=1e-6)
    assert queries == [2, 2, 2]
