"""Not only the tokens: the logits behind every emitted token are the same bits, speculation on or off."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tiny
from helpers import case, run
from outrider.core.protocols import Shape
from outrider.drafters import Nothing
from outrider.models.session import BufferedSession
from outrider.models.transformers.model import HuggingFaceModel

pytestmark = pytest.mark.cpu_paths


class Recording:
    """A model whose sessions keep the logits that stood behind each committed token."""

    def __init__(self, model: HuggingFaceModel) -> None:
        self.model = model
        self.vocab_size, self.max_length, self.device = model.vocab_size, model.max_length, model.device
        self.seen: dict[tuple[int, int], Tensor] = {}  # (row, position) -> logits [V]

    def start(self, rows: int, shape: Shape) -> BufferedSession:
        session = self.model.start(rows, shape)
        score, commit = session.score, session.commit

        def recorded_score(tail: Tensor) -> Tensor:
            self.last = score(tail)
            return self.last

        def recorded_commit(tokens: Tensor, count: Tensor, follows: bool = True) -> None:
            for row, length in enumerate(session.context.lengths.tolist()):
                for k in range(int(count[row])):
                    self.seen[row, length + k] = self.last[row, k].clone()
            commit(tokens, count, follows)

        session.score, session.commit = recorded_score, recorded_commit  # type: ignore[method-assign]
        return session


DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def same_logits(family: str, dtype: torch.dtype, device: str) -> None:
    """Decode with and without guesses and compare the logits behind every token that was emitted."""
    wanted = case(family)
    model = HuggingFaceModel(tiny.build(family).to(device=device, dtype=dtype))
    plain, speculative = Recording(model), Recording(model)
    requests = wanted.requests
    texts, _ = run(plain, Nothing(), requests, 0)
    again, trace = run(speculative, wanted.drafter("table"), requests, 6)
    assert again == texts
    assert sum(r.accepted for r in trace.records) > 0, "nothing was accepted, nothing was tested"
    for row, request in enumerate(requests):
        for position in range(len(request.prompt), len(request.prompt) + len(texts[row])):
            assert torch.equal(speculative.seen[row, position], plain.seen[row, position]), (row, position)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "t5", "bart", "mixtral", "qwen3_moe"])
def test_logits_are_bit_identical_with_and_without_guesses(family: str, dtype: torch.dtype) -> None:
    """Catches a run whose shape depends on the guesses: another kernel, other bits, in the end other text."""
    same_logits(family, dtype, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "t5", "bart"])
def test_logits_are_bit_identical_on_a_gpu(family: str, dtype: torch.dtype) -> None:
    """Catches the same on CUDA, where kernels are chosen by shape more eagerly than on a CPU."""
    same_logits(family, dtype, "cuda")
