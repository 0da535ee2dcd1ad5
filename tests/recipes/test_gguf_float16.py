"""The recipe that unpacks a GGUF file: the same model, for whoever reads the one or the other."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import tiny_gguf
import torch
from safetensors.torch import load_file

from outrider.models.hub import gguf


def test_both_files_are_the_same_model(tmp_path: Path) -> None:
    """Catches matrices turned around, other roundings than the converter's, and metadata that is lost."""
    recipe = importlib.import_module("gguf_float16")
    packed = tiny_gguf.write_gguf(tmp_path / "packed.gguf")
    count = recipe.rewrite(packed, tmp_path / "unpacked.gguf")
    weights = []
    for name in ("packed", "unpacked"):
        file, out = tmp_path / f"{name}.gguf", tmp_path / name
        out.mkdir()
        gguf.convert(file, gguf.read_header(file), out)
        weights.append(load_file(out / "model.safetensors"))
    first, second = weights
    assert count > 0 and first.keys() == second.keys()
    for name, tensor in first.items():
        tiny = tensor.abs() < 6.2e-5  # below what float16 holds exactly
        assert torch.equal(tensor.masked_fill(tiny, 0), second[name].masked_fill(tiny, 0)), name
    theirs, ours = (gguf.read_header(tmp_path / f"{name}.gguf").metadata for name in ("packed", "unpacked"))
    assert set(theirs) - set(ours) <= {"general.quantization_version"}


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = importlib.import_module("gguf_float16")
    packed = tiny_gguf.write_gguf(tmp_path / "packed.gguf")
    monkeypatch.setattr(sys, "argv", ["gguf_float16.py", str(packed), str(packed)])
    with pytest.raises(SystemExit, match="exists; name a new file"):
        recipe.main()
