"""Several choices of one prompt: its keys and values are computed once, and the texts are those of choices apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outrider.drafters import ModelDrafter
from outrider.llm import LLM
from outrider.models import cached_session
from outrider.models.engine_protocol import Wanted
from outrider.serve.engine import Limits
from serving import serving

PROMPT = "a long prompt of which several continuations are wanted"
BODY = {
    "prompt": PROMPT,
    "max_tokens": 12,
    "seed": 7,
    "temperature": 0.9,
    "ignore_eos": True,
    "speculation": {"gamma": 3},
}


@pytest.fixture
def prefilled(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens that go through a model to prefill prompts, the target's and the draft's."""
    counts: list[int] = []

    def count(engine: Any) -> None:
        run = engine.run

        def counted(tokens: torch.Tensor, positions: torch.Tensor, cache: Any, wanted: Wanted) -> Any:
            if not wanted.logits:
                counts.append(tokens.numel())
            return run(tokens, positions, cache, wanted)

        monkeypatch.setattr(engine, "run", counted)

    assert isinstance(llm.drafter, ModelDrafter)
    for model in (llm.target.model, llm.drafter.model):
        count(model.engine)  # type: ignore[attr-defined]
    return counts


def texts(llm: LLM, n: int, **more: Any) -> list[str]:
    with serving(llm, Limits(slots=4, context=120, waiting=8)) as server:
        status, answer, _ = server.send("/v1/completions", {**BODY, "n": n, **more})
        assert status == 200 and server.idle(), answer
        return [choice["text"] for choice in answer["choices"]]


def test_the_prompt_of_several_choices_is_prefilled_once(
    llm: LLM, prefilled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every choice ran the prompt by itself: n=3 took three times the prefill of n=1."""
    texts(llm, 1)
    once = sum(prefilled)
    prefilled.clear()
    together = texts(llm, 3)
    assert sum(prefilled) == once
    monkeypatch.setattr(cached_session, "repeated_prompts", lambda admissions: {})
    prefilled.clear()
    assert texts(llm, 3) == together and len(set(together)) == 3
    assert sum(prefilled) == 3 * once


def test_choices_that_wait_for_a_slot_have_the_same_text(llm: LLM) -> None:
    """More choices than slots: the later ones start beside rows that run."""
    assert texts(llm, 6)[:3] == texts(llm, 3)


def test_other_prompts_beside_choices_keep_their_texts(llm: LLM) -> None:
    """Prompts of one request, two of them the same: rows are copied between slots that others stand between."""
    several = {"prompt": [PROMPT, "the cat", PROMPT, "a"], "speculation": {"gamma": 3}}
    found = texts(llm, 1, **several)
    plain = texts(llm, 1, **{**several, "speculation": {"enabled": False}})
    assert found == plain and found[0] == texts(llm, 1)[0] and found[1] == texts(llm, 1, prompt="the cat")[0]
