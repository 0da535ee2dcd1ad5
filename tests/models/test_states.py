"""What a session shows of its model's layers: true for its own text, and silent about everything else."""

from __future__ import annotations

import pytest
import torch

import tiny
from outrider.core.protocols import Shape
from outrider.errors import BadOption
from outrider.models.cached_session import CachedSession
from outrider.models.transformers.model import HuggingFaceModel

TEXT = [3, 9, 4, 11, 7, 5, 8, 2, 6, 10]
LAYERS = (1, -1)


def session(family: str = "llama", capacity: int = 64) -> CachedSession:
    shape = Shape(capacity=capacity, width=4, source_capacity=8, chunk=4)
    started = HuggingFaceModel(tiny.build(family)).start(2, shape)
    started.keep_states(LAYERS)
    return started


def grown(started: CachedSession, tokens: list[int]) -> None:
    """Commit tokens to row 0, one run each."""
    for token in tokens:
        started.score(torch.zeros((2, 0), dtype=torch.int64))
        started.commit(torch.full((2, 1), token), torch.tensor([1, 0]))


def test_states_are_those_of_a_plain_forward() -> None:
    """Catches states written at another position, of another layer or row, in prefill or after it."""
    started = session()
    started.admit(0, TEXT[:6])
    grown(started, TEXT[6:])
    with torch.no_grad():
        given = started.model.model(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
    expected = torch.stack([given[layer][0] for layer in LAYERS], 1)[: len(TEXT) - 1]  # the last is not run yet
    assert started.states is not None
    assert torch.allclose(started.states[0, : len(TEXT) - 1], expected, atol=1e-5)


NORMS = ("norm", "ln_f", "final_layer_norm")


@pytest.mark.parametrize("family", sorted(tiny.DECODER_ONLY))
def test_the_last_layer_is_shown_before_its_norm_and_behind_it(family: str) -> None:
    """Layer 2 of two was shown behind the last norm, as -1 is: a published head reads what comes before it."""
    started = HuggingFaceModel(tiny.build(family)).start(2, Shape(capacity=64, width=4, chunk=4))
    started.keep_states((2, -1))
    started.admit(0, TEXT[:6])
    grown(started, TEXT[6:])
    assert started.states is not None
    before, behind = started.states[0, : len(TEXT) - 1].unbind(1)
    parts = dict(started.model.model.get_decoder().named_children())
    norm = next(part for name in NORMS for part in [parts.get(name)] if part is not None)
    with torch.no_grad():
        torch.testing.assert_close(norm(before), behind, rtol=0, atol=1e-5)
    assert not torch.allclose(before, behind, atol=1e-2)


def test_states_that_wait_are_written_in_order() -> None:
    """Runs write their states late: catches a guess that failed and is written over the token that took its place,
    states of runs beyond what may wait, and a fork that writes what its parent runs."""
    often, late = session(capacity=128), session(capacity=128)
    for started in (often, late):
        started.admit(0, TEXT[:3])
        for token in range(80):  # more runs than wait, each with a guess that is not kept
            started.score(torch.full((2, 1), 12))
            started.commit(torch.full((2, 1), token % 12), torch.tensor([1, 0]))
            assert started is late or started.states is not None  # reading writes
    child = late.fork(torch.tensor([0, 1]))
    before = child.states
    assert before is not None
    kept = before.clone()
    grown(late, [5, 6])
    grown(often, [5, 6])
    assert child.states is not None and torch.equal(child.states, kept)  # read first: nothing waits for it
    assert often.states is not None and late.states is not None
    assert torch.equal(often.states, late.states) and not torch.equal(late.states, kept)


def test_a_slot_forgets_the_request_before() -> None:
    """A prompt of one token has no state behind it: a head once read that of the slot's last request there."""
    started = session()
    started.admit(0, TEXT)
    started.release(0)
    started.admit(0, TEXT[:1])
    assert started.states is not None and not started.states[0].any()


def test_what_was_taken_back_leaves_no_trace() -> None:
    """After a rewind ``hidden`` was the state of a token beyond the text: a draft that saw it knew the next guess."""
    seen = []
    for supposed in ([5, 6, 7, 8], [9, 2, 3, 4]):
        started = session()
        started.admit(0, TEXT[:4])
        grown(started, [TEXT[4], *supposed])
        started.rewind(torch.tensor([5, 1]))
        assert started.hidden is not None
        seen.append(started.hidden[0].clone())
    assert torch.equal(*seen)


def test_two_drafts_cannot_ask_for_different_layers() -> None:
    """Catches a second draft that silently changes what the first one reads."""
    started = session()
    started.keep_states(LAYERS)
    with pytest.raises(BadOption, match="kept for another draft"):
        started.keep_states((0, -1))
    with pytest.raises(BadOption, match="do not exist"):
        HuggingFaceModel(tiny.build("llama")).start(1, Shape(capacity=64, width=4)).keep_states((99,))


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
def test_a_source_is_read_whatever_the_first_token(family: str) -> None:
    """A start token beyond a small draft's vocabulary broke its encoder run; keys of a source depend on no token."""
    started = session(family)
    started.admit(0, [10_000], [3, 4, 5])
    assert started.score(torch.zeros((2, 0), dtype=torch.int64))[0].isfinite().all()
