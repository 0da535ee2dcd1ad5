"""Texts written in slots: each as if it had been written alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import library
from outrider.models.hub import loading
from outrider.models.transformers.model import HuggingFaceModel
from outrider.training import slot_writer
from outrider.training.slot_writer import ends_of, roll
from outrider.training.writing import write

PROMPTS = [[3 + i % 50, 9, 4 + i % 7, *[11, 5] * (i % 4)] for i in range(23)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: Any) -> loading.Loaded:
    return loading.load(str(library.save_llama(tmp_path_factory.mktemp("rolling") / "llama")), "cpu", "float32")


def second(logits: torch.Tensor) -> torch.Tensor:
    """The second likeliest token: a choice that depends on every logit and is not the constant of a bad model."""
    return logits.topk(2).indices[:, 1]


def alone(target: loading.Loaded, prompt: list[int], most: int) -> list[int]:
    """Token by token, the whole text anew each time."""
    answer: list[int] = []
    while len(answer) < most:
        with torch.no_grad():
            logits = target.model.model(torch.tensor([[*prompt, *answer]])).logits[:, -1]
        answer.append(int(second(logits)))
        if answer[-1] in ends_of(target.model):
            break
    return answer


@pytest.fixture
def some_end(target: loading.Loaded) -> Iterator[None]:
    """Texts of different lengths: a token that some of them meet ends them."""
    config = target.model.model.generation_config
    before = config.eos_token_id
    config.eos_token_id = alone(target, PROMPTS[2], 9)[4]
    yield
    config.eos_token_id = before


def test_a_text_does_not_depend_on_its_slot(target: loading.Loaded, some_end: None) -> None:
    """Catches keys of the text before in a slot, places one off, and answers given to another prompt."""
    found = list(roll(target.model, PROMPTS, new_tokens=9, rows=4, choose=second))
    assert sorted(p for p, _ in found) == sorted(PROMPTS)
    for prompt, answer in found:
        assert answer == alone(target, list(prompt), 9)
    assert len({len(answer) for _, answer in found}) > 1


def test_prompts_are_read_in_parts(target: loading.Loaded, some_end: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a prompt lost where a run over prompts is full."""
    monkeypatch.setattr(slot_writer, "READ_AT_ONCE", 24)
    found = list(roll(target.model, PROMPTS, new_tokens=5, rows=16, choose=second))
    assert len(found) == len(PROMPTS) and all(answer == alone(target, list(p), 5) for p, answer in found)


def test_no_further_than_positions_reach(target: loading.Loaded) -> None:
    """Catches places behind the last one a model knows."""
    assert target.model.max_length == 128

    def never_an_end(logits: torch.Tensor) -> torch.Tensor:
        return logits[:, 7:9].argmin(-1) + 7

    [(_, answer)] = roll(target.model, [[5] * 120], new_tokens=20, rows=4, choose=never_an_end)
    assert len(answer) == 8


def test_writing_uses_slots_where_layers_are_fused(
    target: loading.Loaded, some_end: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a GPU's way of writing that gives other texts than the plain one."""
    words: dict[str, Any] = {"new_tokens": 12, "temperature": 0.0, "batch": 8, "seed": 0}
    plain = sorted((list(p), a) for p, a in write(target.model, target.tokenizer, PROMPTS, **words))
    seen = []
    monkeypatch.setattr("outrider.training.writing.roll", lambda *a, **k: seen.append(k["rows"]) or roll(*a, **k))
    with monkeypatch.context() as pretending:
        pretending.setattr(HuggingFaceModel, "fused", True)
        rolled = sorted((list(p), a) for p, a in write(target.model, target.tokenizer, PROMPTS, **words))
    assert seen == [8] and rolled == plain
