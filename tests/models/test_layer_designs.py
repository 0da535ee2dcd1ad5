"""Families whose layers are not quite a Llama's, run by the compiled engine: transformers' function, to the bit alike
with and without guesses, alone and in a batch."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

import library
import outrider
from outrider.models.transformers.model import HuggingFaceModel
from outrider.runtime import cpu
from tiny_designs import BUILT, built
from tiny_gguf import write_gguf

pytest.importorskip("numba")

from models.test_engines import ROUNDING, off_by, run_by
from models.test_lean import scored
from outrider.models.engine import choice
from outrider.models.engine.choice import Kernels
from outrider.models.hub import gguf, loading

pytestmark = [
    pytest.mark.cpu_paths,
    pytest.mark.usefixtures("cache"),
    pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication"),
]


@pytest.mark.parametrize("name", BUILT)
def test_the_same_function_as_transformers(name: str, tmp_path: Path) -> None:
    """Catches any part of a family's layers that is left out, at the wrong place, or scaled otherwise."""
    model = built(name)
    found = run_by("numba", model, tmp_path / "model")
    assert found.facts.batch_invariant and found.facts.capacity_invariant
    assert off_by(scored(found), scored(HuggingFaceModel(deepcopy(model).double()))) < ROUNDING


PROMPTS = [[5, 9, 5, 9, 5], [7], [3, 4, 8, 3, 4, 8, 11, 12, 60, 61, 3, 4]]


@pytest.mark.parametrize("weights", ["full", "int4"])
@pytest.mark.parametrize("name", ["qwen3", "phi3, partly rotary", "granite", "smollm3", "olmo2", "gemma2", "gemma3"])
def test_speculation_and_company_change_no_token(name: str, weights: str, tmp_path: Path) -> None:
    """Promise one: the same text with guesses, good or bad, in a batch or alone; in full and in packed weights."""
    built(name).to(torch.bfloat16).save_pretrained(tmp_path)
    library.tokenizer().save_pretrained(tmp_path)
    llm = outrider.load(str(tmp_path), None, "cpu", engine="numba", weights=weights)
    options: dict[str, Any] = {"max_new_tokens": 24, "eos": []}
    for more in ({}, {"temperature": 1.0, "coupling": "gumbel", "seed": 3}):
        alone = [llm.generate(prompt, **options, **more).tokens for prompt in PROMPTS]
        assert not more or len({token for text in alone for token in text}) > 9
        for draft in ("copy", "uniform"):
            found = llm.with_draft(draft).generate(PROMPTS, gamma=4, **options, **more)
            assert [output.tokens for output in found] == alone


@pytest.mark.parametrize(("name", "near"), [("qwen3", 0.1), ("phi3, partly rotary", 0.1), ("gemma3", 0.1)])
def test_eight_bits_are_near(name: str, near: float, tmp_path: Path) -> None:
    """Packed weights are written by code of their own: catches joined matrices cut at the wrong rows, lost norms."""
    model = built(name)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    library.tokenizer().save_pretrained(tmp_path)
    found = loading.load(str(tmp_path), "cpu", kernels=Kernels("numba", "int8")).model
    assert found.facts.weights_in == "int8"
    assert 0 < off_by(scored(found), scored(HuggingFaceModel(model.float()))) < near


@pytest.mark.parametrize("architecture", ["qwen3", "phi3", "gemma2"])
def test_from_a_packed_file(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms of queries and keys, joined matrices and a window of a GGUF file; weights are run as they are, and from
    what they are unpacked to by numba and torch."""
    monkeypatch.setattr(choice, "WORTH_FILES", 0)
    file = write_gguf(tmp_path / "file.gguf", {"": "Q8_0"}, architecture=architecture)
    assert gguf.read_header(file).weights == "Q8_0"
    found = loading.load(str(file), "cpu", kernels=Kernels("auto")).model
    in_full = Kernels("numba", kv_cache_dtype="float32")
    unpacked = loading.load(str(file), "cpu", "bfloat16", kernels=in_full).model
    reference = loading.load(str(file), "cpu", "float32", kernels=Kernels("torch")).model
    assert found.facts.engine.startswith("numba") and found.facts.weights_in == "Q8_0"
    assert unpacked.facts.weights_in == "bfloat16"
    assert reference.config.sliding_window == 6 if architecture != "qwen3" else reference.config.head_dim == 64
    assert off_by(scored(unpacked), scored(reference)) < 1e-4
    assert off_by(scored(found), scored(reference)) < 0.15
