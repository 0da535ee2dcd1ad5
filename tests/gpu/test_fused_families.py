"""On a GPU, every family with fused layers against transformers' own, and its rows alone, beside others and guessed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tiny_designs
from gpu.test_many_rows import NEW, SAMPLING, requests, texts
from outrider.core.protocols import Admission, Shape, admit_all
from outrider.drafters import Copying, Nothing
from outrider.models.transformers.model import HuggingFaceModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
DEVICE = torch.device("cuda")
SIZES = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 4096}
MODELS = {name: (name, SIZES) for name in tiny_designs.BUILT} | {
    f"{name}, wide heads": (name, SIZES | {"head_dim": 256}) for name in ("gemma", "gemma2", "gemma3")
}


def model(name: str, dtype: torch.dtype) -> HuggingFaceModel:
    design, sizes = MODELS[name]
    return HuggingFaceModel(tiny_designs.built(design, **sizes).to(DEVICE, dtype))


def logits(of: HuggingFaceModel) -> Tensor:
    """Ragged rows beyond every window, one of them across two pieces of keys; guesses behind them."""
    session = of.start(3, Shape(256, 5, chunk=32))
    texts = [[(7 * place * place + 3 * place + row) % 90 for place in range(n)] for row, n in enumerate((140, 21, 1))]
    admit_all(session, [Admission(row, text) for row, text in enumerate(texts)])
    return session.score(torch.tensor([[30, 31, 32, 33]] * 3, device=DEVICE)).double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_function_is_transformers(name: str, dtype: torch.dtype) -> None:
    """Not twice as far from float64 as transformers' own layers in the same dtype: catches whatever of a family's
    layers the kernels leave out, on the device that runs them."""
    expected = logits(model(name, torch.float64))
    found = model(name, dtype)
    own = float((logits(found) - expected).norm() / expected.norm())
    assert found.fuse() and found.fused
    off = float((logits(found) - expected).norm() / expected.norm())
    assert 0 < off < 2 * own + 1e-5 and own < 0.3


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("name", [name for name in MODELS if "llama" not in name])
def test_together_is_alone_and_speculative_is_plain(name: str, graphs: bool) -> None:
    """In bfloat16, with runs as wide as they need to be: catches a kernel whose sums follow from a row's neighbours."""
    made = model(name, torch.bfloat16)
    assert made.fuse() and made.find_batch_invariance() and made.facts.runs_trees
    given = [request for request in requests(made) if len(request.prompt) + NEW < 200]
    for sampling in SAMPLING.values():
        alone = [texts(made, Nothing(), 0, sampling, [request], graphs)[0][0] for request in given]
        assert texts(made, Copying(shortest=1), 4, sampling, given, graphs)[0] == alone
