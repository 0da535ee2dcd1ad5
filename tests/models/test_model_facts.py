"""What models declare about themselves, and that it is read from their record only."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import outrider
import tiny
from outrider.core.model_facts import DeclaresFacts, ModelFacts, facts_of
from outrider.models.toy import ToyModel
from outrider.models.transformers.model import HuggingFaceModel
from outrider.models.transformers.trimmed import TrimmedModel

PACKAGE = Path(outrider.__file__).parent
BORDER = PACKAGE / "models" / "settings.py"
"""The one file that asks objects of other libraries what they have."""


def by_name(file: Path) -> list[str]:
    """Places of a file where an attribute is looked up by a literal name."""
    return [
        f"{file.relative_to(PACKAGE)}:{node.lineno}"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr", "setattr")
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
    ]


@pytest.mark.parametrize("room", ["models", "certificate"])
def test_nothing_is_looked_up_by_a_literal_name(room: str) -> None:
    """Wrappers forgot what was only ever looked for with getattr: facts are declared, and mypy sees them."""
    files = [file for file in (PACKAGE / room).rglob("*.py") if file != BORDER]
    assert files
    assert [place for file in files for place in by_name(file)] == []


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_a_transformers_model_declares_its_facts(family: str) -> None:
    network = tiny.build(family)
    model = HuggingFaceModel(network)
    assert isinstance(model, DeclaresFacts)
    facts = facts_of(model)
    assert facts is model.facts
    assert facts.vocab_size == network.config.vocab_size == model.vocab_size
    assert facts.encoder_decoder is (family == "t5")
    assert (facts.hidden_size, facts.layers) == (network.config.hidden_size, network.config.num_hidden_layers)
    assert (facts.computes_in, facts.weights_in, facts.engine) == ("float32", "float32", "torch")
    assert not facts.batch_invariant and facts.width_costs is None and facts.weights_read is None


def test_a_wrapper_has_the_facts_of_what_it_wraps() -> None:
    """A trimmed draft showed three facts of its model and hid the others."""
    inner = HuggingFaceModel(tiny.build("llama").to(torch.bfloat16))
    model = TrimmedModel(inner, torch.arange(10), 1000)
    assert facts_of(model) == ModelFacts(**(vars(inner.facts) | {"vocab_size": 1000}))
    assert (model.vocab_size, model.device, model.max_length) == (1000, inner.device, inner.max_length)
    assert facts_of(model).computes_in == "bfloat16"


def test_a_model_that_declares_nothing_has_defaults() -> None:
    bare: Any = SimpleNamespace(vocab_size=7, device=torch.device("cpu"), max_length=32, start=None)
    assert facts_of(bare) == ModelFacts(7, torch.device("cpu"), 32)
    assert facts_of(ToyModel(5)).computes_in == "float64"


def test_what_a_run_reads_and_computes_may_differ() -> None:
    facts = ModelFacts(8, compute_dtype=torch.float16, weight_format="int8")
    assert (facts.computes_in, facts.weights_in) == ("float16", "int8")
