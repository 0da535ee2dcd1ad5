"""The recipe that makes a larger model as a Q4_K_M file: bytes that others read, and the weights it was made from."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import tiny_gguf
from outrider.bench.inflate import Larger, inflate
from outrider.models.hub import gguf, names

SIZES = {"hidden": 512, "inner": 768, "layers": 3, "heads": 8, "kv-heads": 2}


@pytest.mark.parametrize(("name", "error"), [("q4_k", 0.1), ("q5_k", 0.05), ("q6_k", 0.03)])
def test_bytes_that_others_read(name: str, error: float) -> None:
    """Catches scales and parts of numbers in the wrong bits; zeros stay zeros, by which a model is made larger."""
    quantise = vars(importlib.import_module("k_formats"))[name]
    weight = np.random.default_rng(0).normal(size=(4, 768)).astype(np.float32)
    weight[1, 64:320], weight[2], weight[3] = 0, 0, -abs(weight[3])
    found = dequantize(quantise(weight), GGMLQuantizationType[name.upper()])
    for row, expected in zip(found, weight, strict=True):
        assert np.linalg.norm(row - expected) <= error * np.linalg.norm(expected)
    assert not found[1, 64:320].any()


def test_the_file_is_the_larger_model(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches heads in another order, a lost setting, and matrices under another name."""
    source, target = tiny_gguf.write_gguf(tmp_path / "small.gguf", {"": "Q8_0"}), tmp_path / "large.gguf"
    words = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]
    recipe = importlib.import_module("gguf_q4_k_m")
    monkeypatch.setattr(sys, "argv", ["gguf_q4_k_m.py", str(source), str(target), *words])
    recipe.main()
    with pytest.raises(SystemExit, match="exists; name a new file"):
        recipe.main()
    torch.manual_seed(0)
    small = AutoModelForCausalLM.from_pretrained(names.directory(str(source)), dtype=torch.bfloat16)
    expected = inflate(small, Larger(*SIZES.values())).state_dict()
    header, out = gguf.read_header(target), tmp_path / "out"
    assert header.weights == "Q4_K" and header.metadata["general.file_type"] == 15
    out.mkdir()
    gguf.convert(target, header, out)
    found = load_file(out / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        apart = (tensor.float() - expected[name].float()).norm()
        assert apart <= 0.12 * expected[name].float().norm(), name
