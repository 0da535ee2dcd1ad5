"""The recipe that compares packed formats: a rotated model is the same model, and every format is what it says."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tiny_gguf
from outrider.bench.inflate import Larger

SIZES = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}


def _model(tied: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    model = LlamaForCausalLM(LlamaConfig(**SIZES, **heads, tie_word_embeddings=tied)).eval().double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 2)
    return model


def test_a_rotated_model_is_the_same_model() -> None:
    """Catches a gain left behind, heads mixed up, and a rotation that is none: all weights change, no logit does."""
    model, tokens = _model(), torch.arange(24).reshape(2, 12)
    before, weights = model(tokens).logits.detach(), {name: p.clone() for name, p in model.named_parameters()}
    importlib.import_module("rotation").rotate(model, seed=3)
    assert (model(tokens).logits - before).abs().max() < 1e-5  # norms are computed in float32
    changed = [name for name, weight in model.named_parameters() if not torch.equal(weight, weights[name])]
    assert changed == list(weights)
    with pytest.raises(ValueError, match="tied"):
        importlib.import_module("rotation").rotate(_model(tied=True))


def test_sizes_are_padded_to_whole_blocks() -> None:
    config = LlamaConfig(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                         num_key_value_heads=3, head_dim=64)  # fmt: skip
    assert importlib.import_module("packed_quality").padded(config) == Larger(768, 1536, 30, 12, 4)


def test_the_table(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a format that is measured as another: more bits are nearer to the full model."""
    source, text = tiny_gguf.write_gguf(tmp_path / "small.gguf", {"": "Q8_0"}), tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog and then there was an end to it " * 12)
    recipe = importlib.import_module("packed_quality")
    monkeypatch.setattr(recipe, "WINDOW", 48)
    words = ["--text", str(text), "--windows", "2", "--formats", "Q8_0", "Q6_K", "Q5_K", "Q4_0", "int8", "int4"]
    monkeypatch.setattr(sys, "argv", ["packed_quality.py", str(source), *words])
    recipe.main()
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    apart = {row[0]: float(row[2]) for row in rows[2:]}
    assert list(apart) == ["float32", *words[5:]]
    assert apart["float32"] == 0 < apart["Q8_0"] < apart["Q6_K"] < apart["Q5_K"] < apart["Q4_0"]
    assert apart["int8"] < apart["int4"]
