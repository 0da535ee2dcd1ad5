"""The recipe that asks whether a target's own layers can draft for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import early_exit
import pytest

import library
from outrider.models.hub.loading import load


def test_all_layers_are_the_target_and_fewer_are_cheaper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches layers that stay left out, and costs turned round."""
    ways = [("first 1", [0]), ("all", [0, 1])]
    monkeypatch.setattr(early_exit, "choices", lambda layers: ways if layers == 2 else [])
    first, everything = early_exit.measured(str(library.save_llama(tmp_path)), "cpu", tokens=6, prompts=2)
    assert everything.alpha_0 == 1 and everything.alpha_1 == pytest.approx(1, abs=1e-5) and everything.cost == 1
    assert first.alpha_1 < 1 and 0 < first.cost < 1
    assert everything.best(everything.alpha_0) == (0, 1.0), "a draft as dear as the target gains nothing"


def test_what_is_compared_stands_behind_the_tokens_of_the_answer(tmp_path: Path) -> None:
    folder = str(library.save_llama(tmp_path))
    model = load(folder, "cpu", "float32").transformers_model.model
    texts = early_exit.answered(folder, "cpu", tokens=6, prompts=2)
    for (text, prompt), logits in zip(texts, early_exit.distributions(model, texts, [0, 1]), strict=True):
        assert logits.argmax(-1).tolist() == text[prompt:].tolist()


@pytest.mark.parametrize("layers", [12, 30, 48])
def test_ways_to_shorten(layers: int) -> None:
    """Each leaves something out, and never the last layer where layers in the middle are left out."""
    ways: list[Any] = list(early_exit.choices(layers))
    assert len({name for name, _ in ways}) == len(ways) == 9
    for name, kept in ways:
        assert 0 < len(kept) < layers and kept == sorted(set(kept))
        assert name.startswith("first") or layers - 1 in kept
