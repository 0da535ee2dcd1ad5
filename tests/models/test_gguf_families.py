"""GGUF files of every family: the weights of the file, run as they are or unpacked, give transformers' own logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gguf_models
import outrider
from outrider.models.hub import gguf, loading
from outrider.models.hub.gguf_architectures import ARCHITECTURES
from outrider.models.transformers.model import HuggingFaceModel
from outrider.runtime import cpu

pytest.importorskip("numba")

from models.test_engines import off_by
from models.test_lean import scored
from outrider.models.engine import choice
from outrider.models.engine.choice import Kernels

pytestmark = [
    pytest.mark.cpu_paths,
    pytest.mark.usefixtures("cache"),
    pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication"),
]


@pytest.fixture(autouse=True)
def as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for files of a size that it pays for."""
    monkeypatch.setattr(choice, "WORTH_FILES", 0)


def test_every_architecture_is_here() -> None:
    assert gguf_models.MODELS.keys() == ARCHITECTURES.keys()


@pytest.mark.parametrize("architecture", gguf_models.MODELS)
def test_unpacked(architecture: str, tmp_path: Path) -> None:
    """Catches a setting that is not read, rows of heads in another order, a norm by another's name or without its 1."""
    model = gguf_models.built(architecture)
    file = gguf_models.write(tmp_path / "file.gguf", model, architecture)
    assert gguf.read_header(file).weights is None and gguf.read_header(file).unknown is None
    found = loading.load(str(file), "cpu", "float32", kernels=Kernels("torch")).model
    assert found.config.model_type == model.config.model_type
    assert off_by(scored(found), scored(HuggingFaceModel(model))) < 1e-5  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("architecture", gguf_models.MODELS)
def test_packed(architecture: str, form: str, tmp_path: Path) -> None:
    """Only that inputs are rounded to eight bits may differ: 0.02 was seen, and any mistake gives more than 0.2."""
    model = gguf_models.built(architecture)
    file = gguf_models.write(tmp_path / "file.gguf", model, architecture, form)
    llm = outrider.load(str(file), None, "cpu", kv_cache_dtype="float32")
    found = llm.target.model
    assert found.facts.engine.startswith("numba") and found.facts.weights_in == form and found.facts.batch_invariant
    assert off_by(scored(found), scored(HuggingFaceModel(model))) < 0.08  # type: ignore[arg-type]
    options: dict[str, Any] = {"max_new_tokens": 24, "eos": [], "temperature": 1.0, "coupling": "gumbel", "seed": 3}
    prompts = ["hello he", "ll", "a b a b a b"]
    alone = [llm.generate(prompt, **options).tokens for prompt in prompts]
    found_texts = llm.with_draft("uniform").generate(prompts, gamma=4, **options)
    assert [output.tokens for output in found_texts] == alone
