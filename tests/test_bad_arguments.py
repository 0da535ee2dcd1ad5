"""Arguments of the front door that cannot be right are refused at once, by name, value and rule."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import library
import outrider


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"target": ""}, "target must be a model's name, got ''"),
        ({"draft": 7}, "draft must be a name or have `name` and `start`, got 7"),
        ({"width": 0}, "width must be a whole number of at least 1, got 0"),
        ({"width": True}, "width must be a whole number of at least 1, got True"),
        ({"slots": "a"}, "slots must be None or a whole number of at least 1, got 'a'"),
        ({"exact": "no"}, "exact must be True or False, got 'no'"),
    ],
)
def test_bad_arguments_are_refused_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], said: str
) -> None:
    """They were refused after it, by a TypeError, or not at all: exact="no" was exact."""
    monkeypatch.setattr("outrider.models.hub.loading.load", lambda *_: pytest.fail("loaded"))
    with pytest.raises(outrider.OutriderError, match=re.escape(said)):
        outrider.load(**{"target": "some-model", **asked})


def test_end_tokens_and_prompts_are_tokens(tmp_path: Path) -> None:
    """A number beyond the vocabulary never ended a text, and [True] was a prompt."""
    library.save_llama(tmp_path)
    llm = outrider.load(str(tmp_path))
    size = llm.target.model.vocab_size
    with pytest.raises(outrider.OutriderError, match=rf"eos names token \[{size}\], the vocabulary has {size} tokens"):
        llm.generate([1, 2], eos=size)
    with pytest.raises(outrider.OutriderError, match="a prompt is a text or token ids"):
        llm.generate([True])


def test_a_processor_that_returns_nan_is_named(tmp_path: Path) -> None:
    """It was said to forbid all tokens."""
    library.save_llama(tmp_path)
    llm = outrider.load(str(tmp_path))

    def broken(ids: Tensor, scores: Tensor) -> Tensor:
        return scores * float("nan") if ids.shape[1] > 3 else scores

    with pytest.raises(outrider.OutriderError, match="logits_processor broken returned NaN or plus infinity after 4"):
        llm.generate([1, 2], logits_processor=[broken])
