"""The loop itself: shapes, limits, bad numbers, and requests in any order."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from helpers import case, run, wrapped

from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Decoder, Request, bucket
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying, ModelDrafter, Nothing, Uniform
from outrider.errors import BadOption, NumericalError, PromptError
from outrider.models.toy import ToyModel, ToySession
from outrider.planning.policies import Setting
from outrider.planning.step_clock import Timing
from outrider.trace import Trace, summarise

TARGET = ToyModel(10, seed=2)


class Poisoned(ToyModel):
    """Logits turn bad once a row holds ``after`` tokens."""

    def __init__(self, value: float, after: int, whole_row: bool) -> None:
        super().__init__(10, seed=2)
        self.value, self.after, self.whole_row = value, after, whole_row

    def start(self, rows: int, shape: Shape) -> ToySession:
        session = super().start(rows, shape)
        honest = session.score

        def score(tail: torch.Tensor) -> torch.Tensor:
            logits = honest(tail).clone()
            bad = session.context.positions(tail.shape[1] + 1) >= self.after
            logits[..., : None if self.whole_row else 1][bad] = self.value
            return logits

        session.score = score  # type: ignore[method-assign]
        return session


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(1.0, top_k=3, repetition_penalty=1.2)])
@pytest.mark.parametrize(
    ("value", "whole_row"),
    [(float("nan"), True), (float("nan"), False), (float("inf"), False), (float("-inf"), True)],
)
@pytest.mark.parametrize("verifier", [maximal_coupling, gumbel_coupling], ids=lambda v: v.name)
def test_bad_logits_are_an_error(value: float, whole_row: bool, sampling: Sampling, verifier: object) -> None:
    """Catches NaN or infinite logits that silently become token 0."""
    model = Poisoned(value, 6, whole_row)
    with pytest.raises(NumericalError, match=r"NaN or infinite logits after \d+ tokens"):
        run(model, Uniform(), [Request((1, 2), Stopping(20))], 3, sampling, verifier)  # type: ignore[arg-type]


@pytest.mark.parametrize("verifier", [maximal_coupling, gumbel_coupling], ids=lambda v: v.name)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bad_logits_behind_the_end_of_a_text_are_in_no_statistic(temperature: float, verifier: Any) -> None:
    """A healthy text had a NaN acceptance: guesses behind its end met bad logits and were counted as judged."""
    verifier = gumbel_coupling if temperature == 0 else verifier
    for seed in range(5):
        request = Request((1, 2), Stopping(3), seed=seed)
        model = Poisoned(float("nan"), 5, whole_row=True)
        _, trace = run(model, ModelDrafter(TARGET), [request], 7, Sampling(temperature), verifier)
        assert all(math.isfinite(x) for record in trace.records for x in record.overlap)
        stats = summarise(trace)
        assert 0 <= stats.alpha <= 1 + 1e-6 and 0 <= stats.alpha_counted <= 1


class PoisonedRow(Poisoned):
    """The same, but only for rows whose prompt begins with ``marked``."""

    def __init__(self, after: int, marked: int) -> None:
        super().__init__(float("nan"), after, whole_row=True)
        self.marked = marked

    def start(self, rows: int, shape: Shape) -> ToySession:
        session = ToyModel.start(self, rows, shape)
        honest = session.score

        def score(tail: torch.Tensor) -> torch.Tensor:
            logits = honest(tail).clone()
            bad = session.context.positions(tail.shape[1] + 1) >= self.after
            logits[bad & (session.context.tokens[:, :1] == self.marked)] = self.value
            return logits

        session.score = score  # type: ignore[method-assign]
        return session


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)])
@pytest.mark.parametrize("drafter", [Nothing(), ModelDrafter(TARGET.near(0.5))], ids=lambda d: d.name)
def test_bad_logits_end_their_own_row_only(drafter: object, sampling: Sampling, slots: int) -> None:
    """A NaN in one row used to end every request of the call. The others must go on, unchanged."""
    requests = [Request((first, 2), Stopping(12), seed=first) for first in (1, 7, 3, 4, 5)]
    alone, _ = run(TARGET, Nothing(), requests, 0, sampling)
    trace, rows = Trace(), {}
    decoder = Decoder(PoisonedRow(7, marked=7), drafter, gumbel_coupling, sampling, 3, slots=slots)  # type: ignore[arg-type]
    for event in decoder.stream(requests, trace):
        rows[event.index] = event.row
    assert [rows[i].tokens for i in (0, 2, 3, 4)] == [alone[i] for i in (0, 2, 3, 4)]
    assert (rows[1].finish_reason, rows[1].tokens) == ("error", alone[1][:5])  # two of prompt and five are seven
    assert "after 7 tokens" in (rows[1].error or "")
    assert all(rows[i].error is None for i in (0, 2, 3, 4))
    assert sum(r.emitted for r in trace.records) == sum(len(row.tokens) for row in rows.values())


def test_minus_infinity_for_some_tokens_is_fine() -> None:
    """Catches a health check that refuses models which forbid tokens."""
    model = Poisoned(float("-inf"), 0, whole_row=False)
    texts, _ = run(model, Uniform(), [Request((1, 2), Stopping(20))], 3, Sampling(1.0))
    assert 0 not in texts[0]


def test_bad_logits_beyond_what_counts_are_ignored() -> None:
    """Catches a request that fails because of guesses that were rejected anyway."""
    model = Poisoned(float("nan"), 2 + 8, whole_row=True)
    texts, _ = run(model, Uniform(), [Request((1, 2), Stopping(8))], 4, Sampling(1.0))
    assert texts == run(TARGET, Nothing(), [Request((1, 2), Stopping(8))], 0, Sampling(1.0))[0]


def test_a_processor_that_leaves_nothing_is_an_error() -> None:
    """Catches a processor that forbids every token: NaN probabilities silently became token 0."""

    def forbid_all(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -torch.inf)

    for verifier, temperature in product((maximal_coupling, gumbel_coupling), (0.0, 1.0)):
        sampling = Sampling(temperature, processors=(forbid_all,))
        with pytest.raises(NumericalError, match="logits_processor"):
            run(TARGET, Nothing(), [Request((1,), Stopping(3))], 0, sampling, verifier)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request((), Stopping(3)), "the prompt is empty"),
        (Request((1, 99), Stopping(3)), r"prompt token \[99\] is outside the vocabulary of 96"),
        (Request((1, -1), Stopping(3)), r"prompt token \[-1\] is outside"),
        (Request((1,) * 256, Stopping(3)), "the prompt has 256 tokens, the model's limit is 256; shorten it"),
    ],
)
def test_prompts_that_cannot_be_continued(request_: Request, says: str) -> None:
    """Catches a prompt that crashes deep inside, or is cut in silence."""
    with pytest.raises(PromptError, match=says):
        run(wrapped("llama"), Nothing(), [request_])


@pytest.mark.parametrize("source", [(5, 99), (-1, 5), ()], ids=str)
def test_sources_that_cannot_be_read(source: tuple[int, ...]) -> None:
    """Catches an encoder's input that crashes deep inside."""
    with pytest.raises(PromptError):
        run(wrapped("t5"), Nothing(), [Request((0,), Stopping(3), source=source)])


def test_source_beyond_the_encoders_limit() -> None:
    """Catches a source longer than the position table of the encoder."""
    with pytest.raises(PromptError, match="limit"):
        run(wrapped("bart"), Nothing(), [Request((0,), Stopping(3), source=(5,) * 300)])


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_generation_ends_at_the_models_limit(family: str) -> None:
    """Catches a run past the last position: table lookups out of range, or text the model cannot know."""
    model = wrapped(family)
    prompt = tuple(3 + i % 90 for i in range(250))
    texts, _ = run(model, Copying(), [Request(prompt, Stopping(6))], 7)
    assert len(texts[0]) == 6
    assert texts == run(model, Nothing(), [Request(prompt, Stopping(6))], 0)[0]
    beyond, _ = run(model, Copying(), [Request(prompt, Stopping(500))], 7)
    assert beyond[0][:6] == texts[0]
    assert len(beyond[0]) <= 6


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gamma": -1}, "gamma must be 0"),
        ({"gamma": 9, "width": 9}, "gamma 9 needs a width of 10, this model was loaded with 9; load it with width=10"),
        ({"gamma": 0, "width": 0}, "width must be at least 1"),
        ({"gamma": 1, "slots": 0}, "slots must be at least 1"),
    ],
)
def test_shapes_out_of_range(options: dict[str, int], says: str) -> None:
    """Catches shapes that would fail inside a run."""
    with pytest.raises(BadOption, match=says):
        Decoder(TARGET, Nothing(), gumbel_coupling, Sampling(), **options)


@pytest.mark.parametrize("answer", [-1, 9, 99])
def test_a_policy_out_of_range(answer: int) -> None:
    """Catches a policy of somebody's own whose answer fails deep inside a step instead of being named."""

    class Wild:
        def start(self, setting: Setting) -> Wild:
            return self

        def admit(self, row: int) -> None: ...

        def choose(self, row: int) -> int:
            return answer

        def learn(self, row: int, asked: int, accepted: int, examined: int) -> None: ...

        def timed(self, step: Timing) -> None: ...

    decoder = Decoder(TARGET, Uniform(), gumbel_coupling, Sampling(), Wild())
    with pytest.raises(BadOption, match=rf"the policy asked for \[{answer}\] guesses; gamma must be from 0 to 8"):
        list(decoder.stream([Request((1, 2), Stopping(4))], Trace("d", "gumbel", True)))


def test_shapes_follow_from_the_request_alone() -> None:
    """Catches a shape that depends on the other requests: then bits would, too."""
    decoder = Decoder(TARGET, Nothing(), gumbel_coupling, Sampling(), 0)
    assert decoder.shape(Request((1,), Stopping(3))).capacity == 256
    assert decoder.shape(Request((1,) * 200, Stopping(100))).capacity == 512
    assert [bucket(n) for n in (1, 256, 257, 1025)] == [256, 256, 512, 2048]


def test_events_tell_the_whole_story() -> None:
    """Catches events lost, doubled, or credited to the wrong request."""
    wanted = case("llama")
    decoder = Decoder(wanted.model, ModelDrafter(wanted.model), gumbel_coupling, Sampling(), 4, slots=2)
    told: dict[int, list[int]] = {}
    for event in decoder.stream(wanted.requests, Trace(), names=[7, 8, 9]):
        told.setdefault(event.index, []).extend(event.tokens)
        assert 0 <= event.accepted <= len(event.tokens)
    assert told == dict(zip([7, 8, 9], wanted.expected, strict=True))


def test_a_smaller_width_gives_the_same_text() -> None:
    """Catches text that depends on W in exact arithmetic: the toy has no rounding to hide behind."""
    request = [Request((1, 2), Stopping(30), seed=3)]
    texts = [run(TARGET, ModelDrafter(TARGET), request, w - 1, Sampling(1.0), width=w)[0] for w in (1, 2, 5, 12)]
    assert all(t == texts[0] for t in texts)


@pytest.mark.parametrize(
    ("limit", "prompt", "new", "capacity"),
    [
        (None, 20, 8190, 16384),
        (8192, 20, 4000, 4096),
        (8192, 20, 9000, 8256),
        (8192, 8000, 500, 8256),
        (128, 4, 9, 192),
    ],
)
def test_capacity_does_not_double_at_the_limit(limit: int | None, prompt: int, new: int, capacity: int) -> None:
    """8,192 tokens and 18 for guesses became 16,384: the limit is as far as any text goes."""
    target = ToyModel(10, seed=2)
    target.max_length = limit  # type: ignore[misc]
    decoder = Decoder(target, Nothing(), gumbel_coupling, Sampling(), 0)
    shape = decoder.shape(Request((1,) * prompt, Stopping(new)))
    assert shape.capacity == capacity and capacity % shape.chunk == 0


def test_a_text_up_to_the_limit_is_the_models_own() -> None:
    """In the room that is left there: a prompt near the limit, whole prefill chunks, guesses behind the last token."""
    model = wrapped("llama")
    assert model.max_length == 256
    prompt = tuple(3 + i * i % 90 for i in range(243))
    for fixed in (prompt, prompt[:60]):
        request = Request(fixed, Stopping(1000))
        plain, _ = run(model, Nothing(), [request], 0)
        assert len(plain[0]) == 256 - len(fixed)
        for drafter in (Copying(), ModelDrafter(wrapped("llama", seed=1))):
            assert run(model, drafter, [request], 8)[0] == plain


def test_admitting_a_prompt_touches_what_was_used() -> None:
    """A short prompt cleared 8,192 positions of every layer. What the row before wrote is cleared, NaN and all."""
    session = wrapped("llama").start(2, Shape(2048, 9))
    buffers = [b for pair in session.cache.buffers() for b in pair]
    for buffer in buffers:
        buffer[:, :, 1024:] = 7.0  # never used by a row
    session.admit(0, (5, 6, 7))
    assert all(bool((b[:, :, 1024:] == 7.0).all()) for b in buffers)
    session.admit(0, tuple(range(3, 93)) * 5)
    session.score(torch.full((2, 8), 5))
    for buffer in buffers:
        assert not bool(buffer[0, :, 512:1024].any()), "a row writes no further"
        buffer[0, :, :467] = float("nan")
    session.admit(0, (5, 6, 7))
    assert not any(bool(b[0].isnan().any()) for b in buffers)
