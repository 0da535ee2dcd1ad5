"""Products in float16: near float32, the same bits at every width, and never beyond the range."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from torch import Tensor

import cpus
import library
import outrider
import tiny
from helpers import case, run
from outrider.drafters import Nothing
from outrider.errors import BadOption, ModelCorrupt
from outrider.models.engine.backends import numba_computes_in_half
from outrider.models.engine.choice import Kernels, chosen_engine
from outrider.models.transformers.model import HuggingFaceModel
from outrider.runtime import cpu

pytest.importorskip("numba")

from exactness.test_bits import Recording
from models.test_engines import BUILT, rounded
from models.test_lean import scored
from outrider.kernels.numba.float16_products import CHAIN, half_product, narrow
from outrider.models.engine.model import EngineModel
from outrider.models.engine.numba_engine import NumbaEngine
from outrider.models.engine.numba_weights import column_panels, in_half
from outrider.models.transformers.fingerprint import fingerprint

pytestmark = [pytest.mark.cpu_paths, pytest.mark.usefixtures("cache")]

able = pytest.mark.skipif(not cpu.facts().computes_in_half, reason="this CPU does not compute in float16")


def in_float16(model: Any, folder: Path) -> EngineModel:
    deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    config = tf.AutoConfig.from_pretrained(folder)
    engine = NumbaEngine(library.prepared(folder, config, "numba", "float16"), config)
    return EngineModel(engine, config, tf.GenerationConfig.from_model_config(config))


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, in] times a weight [out, in], out a multiple of 16."""
    kept, limit, unit = in_half("weight", weight)
    columns = column_panels(kept)
    bits, factors = np.full((len(x), kept.shape[1]), 7, np.uint16), np.empty(len(x), np.float32)
    out = np.full((len(x), len(weight)), np.nan, np.float32)
    narrow(x.numpy(), limit, unit, bits, factors)
    addresses = columns.ctypes.data, bits, factors, kept.shape[1], out.ctypes.data, out.shape[1], len(columns)
    half_product(*addresses)
    return torch.from_numpy(out)


@able
@pytest.mark.parametrize("name", BUILT)
def test_nearly_the_function_of_transformers(name: str, tmp_path: Path) -> None:
    """Nearer to it than the same model in bfloat16; catches inputs that are scaled and not scaled back."""
    torch.manual_seed(0)
    model = rounded(BUILT[name]())
    expected, found = scored(HuggingFaceModel(model)), scored(in_float16(model, tmp_path))
    usual = scored(HuggingFaceModel(deepcopy(model).to(torch.bfloat16))).float()
    assert 0 < (found - expected).norm() < 0.5 * (usual - expected).norm()
    assert (found - expected).norm() < 0.02 * expected.norm()


@able
def test_logits_are_bit_identical_with_and_without_guesses(tmp_path: Path) -> None:
    """Catches sums that depend on how many rows there are."""
    wanted = case("llama")
    model = in_float16(rounded(tiny.build("llama")), tmp_path)
    assert model.facts.batch_invariant and "in float16" in model.facts.engine
    plain, speculative = Recording(model), Recording(model)
    texts, _ = run(plain, Nothing(), wanted.requests, 0)
    again, trace = run(speculative, wanted.drafter("table"), wanted.requests, 6)
    assert again == texts
    assert sum(record.accepted for record in trace.records) > 0
    for row, request in enumerate(wanted.requests):
        for position in range(len(request.prompt), len(request.prompt) + len(texts[row])):
            assert torch.equal(speculative.seen[row, position], plain.seen[row, position]), (row, position)


@able
@pytest.mark.parametrize("inputs", [4, 32, 60, 160])
def test_a_row_does_not_know_of_others(inputs: int) -> None:
    """Catches a tile for some number of rows that sums otherwise, and inputs that do not fill a chain."""
    torch.manual_seed(inputs)
    weight, x = torch.randn(48, inputs).bfloat16(), torch.randn(23, inputs) * torch.logspace(-6, 6, 23)[:, None]
    alone = torch.cat([product(row[None], weight) for row in x])
    for rows in range(1, 24):
        assert torch.equal(product(x[:rows].contiguous(), weight), alone[:rows])
    expected = x.double() @ weight.double().T
    assert ((alone - expected).norm(dim=1) < 0.002 * expected.norm(dim=1)).all()


@able
@pytest.mark.parametrize("weights", [2.0**-60, 1.0, 2.0**60])
@pytest.mark.parametrize("inputs", [2.0**-30, 1.0, 2.0**20])
def test_nothing_overflows(weights: float, inputs: float) -> None:
    """Every product of a chain as large as can be, and of one sign: catches sums beyond 65,504."""
    torch.manual_seed(0)
    weight = (weights * torch.randn(16, 4 * CHAIN)).bfloat16()
    weight[0] = weight.abs().max()
    x = inputs * torch.stack([weight[0].sign().float(), weight[1].sign().float(), torch.zeros(4 * CHAIN)])
    found, expected = product(x, weight), x.double() @ weight.double().T
    assert torch.allclose(found[0, 0].double(), expected[0, 0], rtol=0.01)
    assert torch.allclose(found[1, 1].double(), expected[1, 1], rtol=0.01)
    assert torch.equal(found[2], torch.zeros(16))


@able
def test_what_float32_cannot_hold() -> None:
    """Catches a scale of a row that is no number any more."""
    x, weight = torch.full((1, 32), 2.0**-60), torch.full((16, 32), 2.0**-100).bfloat16()
    assert torch.equal(product(x, weight), torch.zeros(1, 16))


def test_weights_keep_their_bits() -> None:
    """Those that are not tiny beside the largest; the others are off by next to nothing."""
    torch.manual_seed(0)
    weight = (torch.randn(16, 3000) * torch.logspace(-9, 0, 3000)).bfloat16()
    kept, limit, unit = in_half("weight", weight)
    again = kept.double()[:, :3000] * 2.0**unit
    large = weight.double().abs() >= weight.double().abs().max() * 2.0**-20
    assert 0 < int(large.sum()) < weight.numel()
    assert torch.equal(again[large], weight.double()[large])
    assert float((again - weight.double()).abs().max()) <= 2.0**-25 * 2.0**unit
    assert kept.shape[1] % CHAIN == 0 and not kept[:, 3000:].any()
    sums = kept.double().abs().view(16, -1, CHAIN).sum(2)
    assert 30_000 <= float(sums.max()) * 2.0**limit <= 60_000, "as near to the end of the range as is safe"


def test_weights_that_are_no_numbers() -> None:
    with pytest.raises(ModelCorrupt, match=r"up_proj has weights that are no numbers"):
        in_half("up_proj", torch.tensor([[1.0, float("nan")]]).bfloat16())


def test_zeros() -> None:
    kept, limit, _ = in_half("weight", torch.zeros(16, 4).bfloat16())
    assert limit == 0 and not kept.any()


def test_who_computes_in_float16(tmp_path: Path) -> None:
    """By itself where the CPU can; never where another dtype was asked for; an error where it cannot."""
    config = tf.AutoConfig.from_pretrained(library.save_llama(tmp_path / "model"))
    config.dtype = torch.bfloat16
    for facts in (cpus.N1, cpus.A72, cpus.AMX):
        able = facts is cpus.N1
        with cpu.using(facts):
            assert numba_computes_in_half(torch.float32, settled=False) is able
            assert not numba_computes_in_half(torch.float32, settled=True)
            assert numba_computes_in_half(torch.float16, settled=True)
            auto = chosen_engine(Kernels("auto"), config, torch.device("cpu"), torch.float16, 1e9)
            assert auto == ("numba" if able else "torch")
    with cpu.using(cpus.AMX), pytest.raises(BadOption, match="does not compute in float16; choose the dtype float32"):
        chosen_engine(Kernels("numba"), config, torch.device("cpu"), torch.float16, 1e9)


@able
def test_asked_for_by_dtype(tmp_path: Path) -> None:
    folder = library.save_llama(tmp_path / "target")
    tf.LlamaForCausalLM.from_pretrained(folder).to(torch.bfloat16).save_pretrained(folder)
    names = {
        dtype: outrider.load(str(folder), "none", "cpu", dtype, engine="numba").target.model.facts.engine
        for dtype in ("auto", "float16", "float32")
    }
    assert names["auto"] == names["float16"]
    assert "in float16, float16 weights" in names["float16"]
    assert "bfloat16 weights" in names["float32"]


@able
def test_a_head_knows_its_target_in_float16(tmp_path: Path) -> None:
    """Catches a fingerprint of rounded weights: the smallest lose bits in float16, and no draft would fit any more."""
    model = rounded(BUILT["llama"]())
    model.config.tie_word_embeddings = True
    model.tie_weights()
    with torch.no_grad():
        model.get_input_embeddings().weight[0, :3] = torch.tensor([2.0**-60, 2.0**-100, 1.5 * 2.0**-40])
    narrow = in_float16(model, tmp_path)
    assert narrow.embedding is narrow.unembedding, "or there is nothing to see: untied embeddings stay as they were"
    assert not torch.equal(narrow.embedding[:1], model.get_input_embeddings().weight[:1])
    assert fingerprint(narrow) == fingerprint(HuggingFaceModel(model))
