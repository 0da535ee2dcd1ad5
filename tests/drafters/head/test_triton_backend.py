"""The Triton backend guesses as torch does: plain functions stand in for the kernels, as in test_fused.py."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import cpus
import plain_kernels
import tiny
from helpers import wrapped
from outrider.core import host_sync
from outrider.core.noise import Noise
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling
from outrider.core.token_tree import NodeTree, TreeShape
from outrider.drafters.head import Head, HeadConfig, HeadDrafter, prepared
from outrider.drafters.head.backends import triton_backend
from outrider.drafters.head.choice import BackendChoice, choose_for_any_rows
from outrider.drafters.head.session import HeadSession
from outrider.kernels.triton import available
from outrider.runtime import cpu

pytestmark = pytest.mark.cpu_paths

FUSED = {triton_backend.FusedHead, triton_backend.FusedBlock, triton_backend.FusedAttention}


@pytest.fixture(params=[cpus.WITHOUT_NUMBA, cpus.A72], ids=lambda facts: facts.name, autouse=True)
def packing_or_not(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stand-ins for kernels run on a CPU, and those of x86 pack a head's weights for single rows, too.

    CPUs on which torch drafts for a few rows, as the Triton backend is compared with torch.
    """
    with cpu.using(request.param):
        yield


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = SimpleNamespace(**{n: getattr(plain_kernels, n) for n in plain_kernels.ROWS})
    head = SimpleNamespace(**{n: getattr(plain_kernels, n) for n in plain_kernels.HEAD})
    product = SimpleNamespace(**{n: getattr(plain_kernels, n) for n in plain_kernels.PRODUCT})
    monkeypatch.setitem(sys.modules, "outrider.kernels.triton.rows", rows)
    monkeypatch.setitem(sys.modules, "outrider.kernels.triton.head", head)
    monkeypatch.setitem(sys.modules, "outrider.kernels.triton.product", product)
    proven = available.proven
    monkeypatch.setattr(triton_backend, "available", SimpleNamespace(run_on=lambda device: True, proven=proven))
    monkeypatch.setattr(available, "PROVEN", {})


def drafter(heads: tuple[int, int], window: int, layers: tuple[int, ...] = (1, -1)) -> HeadDrafter:
    torch.manual_seed(3)
    config = HeadConfig("feature", 32, 64, 2, layers=layers, heads=heads, window=window, gamma=4)
    made = Head(config)
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.3)  # new heads add nothing: their outputs start at zero
    return HeadDrafter(made, torch.arange(0, tiny.VOCAB, 2), floor=0.0)


def guesses(made: HeadDrafter) -> list[Tensor]:
    """Ragged rows, some steps with rejections, a step without guesses, and a fork."""
    target = wrapped("llama").start(2, Shape(128, 6, chunk=8))
    session = made.start(2, Shape(128, 6, chunk=8), target)
    for row, prompt in enumerate((list(range(3, 40)), [9])):
        target.admit(row, prompt)
        session.admit(row, prompt)
    noise = Noise(torch.arange(2))
    found = []
    for gamma, count in ((4, (2, 5)), (0, (1, 1)), (5, (1, 3)), (3, (4, 1))):
        at = target.context.positions(gamma + 1)
        draft = session.propose(gamma, Sampling(1.0), noise, at)
        found += [draft.tokens] + ([] if draft.probs is None else [draft.probs])
        target.score(draft.tokens)
        tokens = torch.nn.functional.pad(draft.tokens, (0, 1), value=7)
        for part in (target, session):
            part.commit(tokens, torch.tensor(count).clamp(max=gamma + 1))
    fork = session.fork(torch.tensor([1, 0]))
    fork.commit(torch.tensor([[5, 6], [7, 8]]), torch.tensor([2, 1]))
    return [*found, fork.propose(2, Sampling(), noise, target.context.positions(3)).tokens]


@pytest.mark.parametrize("layers", [(1, -1), (0, 1, -1)])
@pytest.mark.parametrize(("heads", "window"), [((4, 2), 512), ((4, 2), 8), ((4, 4), 512), ((0, 0), 512)])
def test_a_fused_head_guesses_as_before(
    heads: tuple[int, int], window: int, layers: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    expected = guesses(drafter(heads, window, layers))
    request.getfixturevalue("on_a_gpu")
    found = guesses(drafter(heads, window, layers))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("heads", "window"), [((4, 2), 512), ((4, 2), 8), ((0, 0), 512)])
def test_a_fused_head_grows_the_same_trees(
    heads: tuple[int, int], window: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a branch that looks back on the guesses of another, or on text that is beyond its window."""
    monkeypatch.setattr(host_sync, "on_cpu", False)
    monkeypatch.setattr(prepared, "choose", choose_for_any_rows_of)
    expected = grown(drafter(heads, window))
    request.getfixturevalue("on_a_gpu")
    for ours, theirs in zip(grown(drafter(heads, window)), expected, strict=True):
        assert torch.equal(ours.tokens, theirs.tokens) and torch.equal(ours.places.paths, theirs.places.paths)


def choose_for_any_rows_of(config: HeadConfig, device: torch.device, rows: int, dtype: torch.dtype) -> BackendChoice:
    return choose_for_any_rows(config, device, dtype)


def grown(made: HeadDrafter) -> list[NodeTree]:
    """Behind texts of three lengths, each a little longer than the one before."""
    target = wrapped("llama").start(1, Shape(128, 6, chunk=8))
    session = made.start(1, Shape(128, 6, chunk=8), target)
    assert isinstance(session, HeadSession) and session.grows_trees
    found = []
    for each in (target, session):
        each.admit(0, list(range(3, 24)))
    for token in (5, 9, 30):
        target.score(torch.zeros((1, 0), dtype=torch.int64))
        for each in (target, session):
            each.commit(torch.tensor([[token]]), torch.tensor([1]))
        found.append(session.grow(TreeShape(20, 5, 4)))
    return found


def test_a_head_to_be_trained_stays_as_it_is(on_a_gpu: None) -> None:
    """Only the copy that a session runs is fused; the drafter's own head can still be trained and saved."""
    made = drafter((4, 2), 512)
    before = {name: weight.clone() for name, weight in made.head.state_dict().items()}
    guesses(made)
    assert {type(module) for module in made.head.modules()}.isdisjoint(FUSED)
    after = made.head.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("fault", ["raises", "differs"])
def test_kernels_that_do_not_work_here_are_not_used(
    fault: str, on_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that refuses, or one that gets it wrong: one warning, and the head drafts as ever."""
    right = plain_kernels.look_back

    def wrong(*arguments: Any) -> Tensor:
        if fault == "raises":
            raise RuntimeError("no such instruction")
        return right(*arguments) + 1

    monkeypatch.setattr(sys.modules["outrider.kernels.triton.head"], "look_back", wrong)
    said = "no such instruction" if fault == "raises" else "differ"
    with pytest.warns(UserWarning, match=f"kernels for heads in torch.float32 are not used on cpu: .*{said}"):
        found = guesses(drafter((4, 2), 512))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = guesses(drafter((4, 2), 512))
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
