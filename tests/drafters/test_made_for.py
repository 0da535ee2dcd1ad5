"""Whom a draft was made for: a head of another target, whose sizes fit, does not pass in silence."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import eagle_heads
import library
import outrider
from outrider.drafters.made_for import same_model

MADE_FOR = "somebody/Other-8B"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", True),
        ("Qwen/Qwen3-8B", "/models/qwen3-8b/", True),
        ("Qwen/Qwen3-8B", "/cache/hub/models--Qwen--Qwen3-8B/snapshots/0123abcd", True),
        ("Qwen/Qwen3-8B", "C:\\models\\Qwen3-8B", True),
        ("Qwen/Qwen3-8B", "files/qwen3-8b-q4_k_m.gguf", True),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m", True),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base", False),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-14B", False),
        ("Qwen/Qwen3-8B", "files/qwen3-14b-q4_k_m.gguf", False),
    ],
)
def test_names_of_a_model(one: str, other: str, same: bool) -> None:
    assert same_model(one, other) is same
    assert same_model(other, one) is same


def head(folder: Path, made_for: str | None) -> Path:
    """A head that fits a small Llama, and the name of the target in it."""
    tokens = torch.arange(eagle_heads.TOKENS)
    marked = torch.zeros(library.ROWS, dtype=torch.bool).index_fill_(0, tokens, True)
    config = eagle_heads.speculators_config({"vocab_size": library.ROWS})
    config["speculators_config"]["verifier"]["name_or_path"] = made_for
    return eagle_heads.saved(folder, config, eagle_heads.tensors() | {"d2t": tokens - tokens, "t2d": marked})


def test_a_head_that_names_another_target(tmp_path: Path) -> None:
    """Its sizes fit, so only the name tells: it passed in silence once, and hardly a guess was kept."""
    target = str(library.save_llama(tmp_path / "target"))
    with pytest.warns(UserWarning, match=rf"head was made for {MADE_FOR}, and the target is {target}:") as told:
        llm = outrider.load(target, draft=str(head(tmp_path / "head", MADE_FOR)), dtype="float32")
    assert len(told) == 1 and "\n" not in str(told[0].message)
    plain = outrider.load(target, draft=None, dtype="float32")
    found, expected = (each.generate("the thin the", max_new_tokens=12) for each in (llm, plain))
    assert found.tokens == expected.tokens, "the text is right all the same"


@pytest.mark.parametrize("made_for", ["somebody/Target", None])
def test_a_head_that_names_this_target_or_none(tmp_path: Path, made_for: str | None) -> None:
    target = str(library.save_llama(tmp_path / "target"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outrider.load(target, draft=str(head(tmp_path / "head", made_for)), dtype="float32")
