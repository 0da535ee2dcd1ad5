"""Leaner layers on a CPU give what transformers' own layers give, for every family they are made for."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import cpus
import library
import tiny
from outrider.core.protocols import Shape
from outrider.kernels import packed_linear
from outrider.kernels.packed_linear import pack, worth_packing
from outrider.models.engine.choice import Kernels
from outrider.models.hub import loading
from outrider.models.llama_layer import LLAMA
from outrider.models.transformers.families import FAMILIES
from outrider.models.transformers.lean import make_lean
from outrider.models.transformers.model import HuggingFaceModel
from outrider.runtime import cpu
from outrider.runtime.cpu import CpuFacts

pytestmark = pytest.mark.cpu_paths

TEXT = [3, 9, 4, 11, 7, 5, 8, 2, 6, 10, 12, 3, 4]


def scored(model: HuggingFaceModel) -> torch.Tensor:
    """Ragged rows, prefilled in chunks, then guesses: every place a lean layer is used."""
    session = model.start(3, Shape(capacity=64, width=5, chunk=4))
    session.admit(0, TEXT)
    session.admit(2, TEXT[:2])
    return session.score(torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0], [4, 3, 2, 1]]))[[0, 2]]


NEAR = [name for name, one in FAMILIES.items() if one.llama_layers and (one.design or LLAMA).is_nearly_llamas]


@pytest.mark.parametrize("family", NEAR)
def test_lean_layers_are_the_same_function(family: str) -> None:
    """Catches heads grouped in the wrong order, a rotation the wrong way round, a mask of another row, a lost bias."""
    ordinary, lean = (HuggingFaceModel(tiny.build(family)) for _ in range(2))
    layers = make_lean(lean.model, rows=5)
    pack(lean.model, rows=5)
    assert layers == lean.config.num_hidden_layers
    assert torch.allclose(scored(lean), scored(ordinary), atol=2e-5)


def test_a_biased_gate_keeps_its_bias() -> None:
    """A gate with a bias lost it when it was joined with up: another text, and no check compares lean with ordinary."""
    torch.manual_seed(0)
    ordinary, lean = tiny.build("llama"), tiny.build("llama")
    for model in (ordinary, lean):
        generator = torch.Generator().manual_seed(1)
        for layer in model.model.layers:
            for part in (layer.mlp.gate_proj, layer.mlp.up_proj):
                part.bias = torch.nn.Parameter(torch.randn(part.out_features, generator=generator))
    make_lean(lean, rows=5)
    assert torch.allclose(scored(HuggingFaceModel(lean)), scored(HuggingFaceModel(ordinary)), atol=2e-5)


def test_another_cache_goes_through_transformers() -> None:
    """Catches a lean model that its own ``generate`` can no longer run."""
    ordinary, lean = tiny.build("llama"), tiny.build("llama")
    make_lean(lean, rows=5)
    ids = torch.tensor([TEXT])
    one, two = (m.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0) for m in (ordinary, lean))
    assert torch.equal(one, two)


@pytest.mark.parametrize("family", ["phi3", "granite", "olmo2", "gemma", "gemma2", "gemma3", "gpt2"])
def test_other_families_are_left_alone(family: str) -> None:
    """Catches a layer of another family run as if it were a Llama's."""
    assert make_lean(tiny.build(family), rows=5) == 0


def test_released_weights_are_kept_once_and_still_run() -> None:
    """Catches a model that keeps every weight twice, and one that can no longer run by its own forward."""
    ordinary, lean = tiny.build("llama"), tiny.build("llama")
    wrapped = HuggingFaceModel(lean)
    make_lean(lean, rows=5, release=True)
    pack(lean, rows=5, release=True)
    gone = {name for name, parameter in lean.named_parameters() if parameter.device.type == "meta"}
    assert {"model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.up_proj.weight"} <= gone
    assert "model.embed_tokens.weight" not in gone
    assert torch.allclose(scored(wrapped), scored(HuggingFaceModel(ordinary)), atol=2e-5)
    ids = torch.tensor([TEXT])
    one, two = (m.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0) for m in (ordinary, lean))
    assert torch.equal(one, two)


def test_a_shared_weight_is_not_released() -> None:
    """Catches an embedding that went with the output layer it is shared with."""
    config = tiny.build("llama").config
    config.tie_word_embeddings = True
    model = type(tiny.build("llama"))(config)
    pack(model, rows=5, release=True)
    assert model.model.embed_tokens.weight.device.type == "cpu"
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_what_heads_read_is_not_released(tmp_path: Path) -> None:
    """A released output layer has no memory: heads then guessed from whatever lay around, differently at every load."""
    place = library.save_llama(tmp_path / "llama")
    model = loading.load(str(place), "cpu", "float32", kernels=Kernels(release=True)).model
    assert model.unembedding is not model.embedding, "tied weights are kept anyway"
    assert {model.unembedding.device.type, model.embedding.device.type} == {"cpu"}
    assert any(parameter.device.type == "meta" for parameter in model.model.parameters()), "others are released"


@pytest.mark.parametrize(("facts", "one_row"), [(cpus.AMX, True), (cpus.GENERIC, True), (cpus.N1, False)])
def test_one_row_is_not_packed_on_arm(facts: CpuFacts, one_row: bool) -> None:
    """A matrix times a vector reads ordinary weights twice as fast there."""
    with cpu.using(facts):
        assert worth_packing(1) is one_row and worth_packing(9)
    with cpu.using(replace(facts, packs=False)):
        assert not worth_packing(1) and not worth_packing(9)


def test_weights_are_not_packed_where_a_rows_place_decides_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """With AVX2 oneDNN's float32 products differ from place to place: plain and speculative logits did, too."""
    right = packed_linear.product

    def row_by_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.cat([right(row[None], weight, bias) for row in x])

    def by_place(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        found = row_by_row(x, weight, bias)
        found[6:] += 1e-6  # the rows that are left over behind a tile of six
        return found

    weight = torch.randn(32, 48)
    for product, expected in ((row_by_row, worth_packing(9)), (by_place, False)):
        monkeypatch.setattr(packed_linear, "FOUND", {})
        monkeypatch.setattr(packed_linear, "product", product)
        assert packed_linear.packed(weight, 9).is_mkldnn == expected
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            packed_linear.warn_of_other_bits(9, torch.float32)
        assert bool(told) == (product is by_place)
