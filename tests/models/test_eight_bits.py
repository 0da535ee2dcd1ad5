"""Weights of eight bits by torchao, where it is installed: nearly the model's own logits, and text of its own."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import plain_kernels
import tiny
from outrider.core.protocols import Drafter, Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying, Nothing
from outrider.errors import BadOption
from outrider.kernels.attached import attached
from outrider.kernels.packed_linear import Joined
from outrider.kernels.triton import available
from outrider.models.transformers.int8_gpu import quantise
from outrider.models.transformers.model import HuggingFaceModel
from outrider.trace import Trace


def logits(model: HuggingFaceModel) -> Tensor:
    session = model.start(1, Shape(64, 4, chunk=8))
    session.admit(0, list(range(3, 24)))
    return session.score(torch.tensor([[30, 31, 32]]))


def text(model: HuggingFaceModel, drafter: Drafter) -> list[int]:
    decoder = Decoder(model, drafter, gumbel_coupling, Sampling(1.0), 0 if isinstance(drafter, Nothing) else 3)
    return [e.row.tokens for e in decoder.stream([Request((5, 6, 5, 6, 5), Stopping(24), seed=1)], Trace())][-1]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3", "gpt_neox"])
def test_a_quantised_model(family: str, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a layer left out, an output layer that was not, joined layers in the wrong order, and a second copy."""
    pytest.importorskip("torchao")
    model = HuggingFaceModel(tiny.build(family))
    expected, before = logits(model), sum(p.numel() for p in model.model.parameters())
    if fused:
        rows = SimpleNamespace(**{n: getattr(plain_kernels, n) for n in plain_kernels.ROWS})
        monkeypatch.setitem(sys.modules, "outrider.kernels.triton.rows", rows)
        monkeypatch.setitem(
            sys.modules, "outrider.kernels.triton.attention", SimpleNamespace(attend=plain_kernels.attend)
        )
        with monkeypatch.context() as patch:
            patch.setattr(available, "run_on", lambda device: True)
            model.fuse()
    linear = [m for m in model.model.modules() if type(m) is nn.Linear]
    assert quantise(model) == len(linear) - 1
    assert sum(type(m.weight).__name__ == "Int8Tensor" for m in linear) == len(linear) - 1
    assert type(model.model.get_output_embeddings().weight) is nn.Parameter
    assert sum(p.numel() for p in model.model.parameters()) == before
    found = logits(model)
    off = float((found - expected).norm() / expected.norm())
    assert 1e-5 < off < 0.2  # a matrix of 32 columns is easily off by a tenth; a wrong one by all
    for module, joined in ((m, attached(m, Joined)) for m in model.model.modules()):
        if joined is None:
            continue
        first = next(m for m in module.children() if type(m) is nn.Linear)
        assert first.weight.qdata.data_ptr() == joined.weight.qdata.data_ptr(), "a second copy"
    assert text(model, Copying()) == text(model, Nothing())


def test_without_torchao_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(BadOption, match="pip install torchao"):
        quantise(HuggingFaceModel(tiny.build("llama")))
