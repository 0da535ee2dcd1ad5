"""On a GPU, many rows of a fused model at once: a row's text is what it is alone, with guesses and without."""

from __future__ import annotations

import pytest
import torch

from outrider.bench.shapes import SIZES, build
from outrider.core.protocols import Admission, Drafter, Shape, admit_all
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.step_runner import StepRunner
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying, Nothing
from outrider.drafters.head import HeadDrafter
from outrider.drafters.head.backends.torch_backend import TorchBackend
from outrider.drafters.head.config import HeadConfig
from outrider.drafters.head.layers import Head
from outrider.drafters.head.session import HeadSession
from outrider.drafters.known_text import KnownText
from outrider.models.transformers.model import HuggingFaceModel
from outrider.trace import Trace

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
LENGTHS = (300, 130, 64, 40, 17, 2, 1)
"""Longest first: that is the order of slots, by which a known text goes."""

NEW = 40
SAMPLING = {"greedy": Sampling(), "gumbel": Sampling(1.0)}


@pytest.fixture(scope="module")
def model() -> HuggingFaceModel:
    made = build(SIZES["tiny"], torch.device("cuda"), torch.bfloat16)
    assert made.fuse()
    assert made.find_batch_invariance()
    return made


def requests(model: HuggingFaceModel) -> list[Request]:
    """Prompts that repeat themselves, so that there is something to copy; a seed each."""
    size = model.vocab_size
    return [
        Request(tuple((3 + row + 7 * (i % 11)) % size for i in range(count)), Stopping(NEW), seed=row)
        for row, count in enumerate(LENGTHS)
    ]


def texts(
    model: HuggingFaceModel, drafter: Drafter, gamma: int, sampling: Sampling, given: list[Request], graphs: bool
) -> tuple[list[list[int]], Trace]:
    decoder = Decoder(model, drafter, gumbel_coupling, sampling, gamma, pool=SessionPool(graphs=graphs))
    trace = Trace()
    rows = {event.index: list(event.row.tokens) for event in decoder.stream(given, trace)}
    return [rows[index] for index in range(len(given))], trace


def test_the_model_is_found_to_be_batch_invariant(model: HuggingFaceModel) -> None:
    assert model.facts.batch_invariant and model.facts.capacity_invariant and model.facts.slots >= len(LENGTHS)


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("name", SAMPLING)
def test_together_is_alone_and_speculative_is_plain(model: HuggingFaceModel, name: str, graphs: bool) -> None:
    sampling, given = SAMPLING[name], requests(model)
    alone = [texts(model, Nothing(), 0, sampling, [request], graphs)[0][0] for request in given]
    assert all(len(text) == NEW for text in alone) and len(set(map(tuple, alone))) == len(alone)
    assert texts(model, Nothing(), 0, sampling, given, graphs)[0] == alone
    whole = torch.zeros((len(given), max(LENGTHS) + NEW), dtype=torch.int64)
    for line, request, text in zip(whole, given, alone, strict=True):
        line[: len(request.prompt) + NEW] = torch.tensor([*request.prompt, *text])
    for gamma in (1, 4, 8):
        found, trace = texts(model, KnownText(whole, 0.3), gamma, sampling, given, graphs)
        assert found == alone
        kept = {record.accepted for record in trace.records}
        assert {0, gamma} <= kept or (gamma == 8 and len(kept) > 3), "guesses of all kinds"


@pytest.mark.parametrize("name", SAMPLING)
def test_few_slots_for_many_rows(model: HuggingFaceModel, name: str) -> None:
    """Rows that enter while others are under way, in slots that held others."""
    sampling, given = SAMPLING[name], requests(model)
    expected = texts(model, Nothing(), 0, sampling, given, False)[0]
    pool = SessionPool(graphs=True)
    for slots in (2, 3):
        decoder = Decoder(model, Copying(shortest=1), gumbel_coupling, sampling, 4, slots=slots, pool=pool)
        rows = {event.index: list(event.row.tokens) for event in decoder.stream(given, Trace())}
        assert [rows[index] for index in range(len(given))] == expected


def test_prompts_that_a_head_reads_together(model: HuggingFaceModel) -> None:
    """Its keys of a prompt are those it makes of that prompt alone; rows that stand beside are left as they are."""
    size, given = model.facts.hidden_size, requests(model)
    assert size is not None
    head = HeadDrafter(
        Head(HeadConfig("feature", size, 64, 1, layers=(1, -1), heads=(4, 2), gamma=3)), torch.arange(99)
    )
    found = []
    for together in (True, False):
        runner = StepRunner((model, head), len(given) + 9, Shape(512, 5))
        new = [Admission(row, request.prompt) for row, request in enumerate(given)]
        runner.target.context.tokens.zero_()
        admit_all(runner.target, new)
        for some in [new] if together else [[one] for one in new]:
            runner.drafter.admit_all(some)
        session = runner.drafter.session
        assert isinstance(session, HeadSession) and isinstance(session.backend, TorchBackend)
        assert session.backend.cache is not None
        found.append(torch.stack(session.backend.cache))
    assert found[0].count_nonzero() and not found[0][:, len(given) :].count_nonzero()
    assert torch.equal(*found)
