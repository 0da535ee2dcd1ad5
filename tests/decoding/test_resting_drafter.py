"""A drafter that is not asked for guesses is told nothing, and starts anew with the texts when it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from helpers import case, wrapped
from outrider.core import host_sync
from outrider.core.protocols import Admission, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.step_runner import StepRunner
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying
from outrider.planning.policies import Rehearsal
from outrider.trace import Trace


class Listening:
    """A drafter whose session notes which prompts it is given, and how many tokens it was told of."""

    name = "listening"

    def __init__(self) -> None:
        self.prompts: list[Sequence[int]] = []
        self.told = 0

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        session: Any = Copying(shortest=1).start(rows, shape, target)
        admit_all, commit = session.admit_all, session.commit

        def noted(admissions: Sequence[Admission]) -> None:
            self.prompts += [list(new.prompt) for new in admissions]
            admit_all(admissions)

        def counted(tokens: Any, count: Any) -> None:
            self.told += 1
            commit(tokens, count)

        session.admit_all, session.commit = noted, counted
        return session  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(host_sync, "on_cpu", False)
    monkeypatch.setattr(StepRunner, "ahead", property(lambda runner: runner.graphs))


def decoded(
    drafter: Any, gamma: Any, requests: list[Request], graphs: bool = True
) -> tuple[dict[int, list[int]], Trace]:
    trace = Trace()
    pool = SessionPool(graphs=graphs)
    decoder = Decoder(wrapped("llama"), drafter, gumbel_coupling, Sampling(), gamma, slots=2, pool=pool)
    return {event.index: list(event.row.tokens) for event in decoder.stream(requests, trace)}, trace


def test_plain_decoding_with_a_drafter_tells_it_nothing() -> None:
    drafter = Listening()
    decoded(drafter, 0, case("llama").requests)
    assert drafter.prompts == [] and drafter.told == 0


def test_it_starts_with_the_text_so_far_when_it_is_asked() -> None:
    """Also after a rest of many runs, with rows that have changed meanwhile."""
    drafter, requests = Listening(), [Request((5, 6, 7, 5, 6), Stopping(60)), Request((9, 8, 9, 8), Stopping(40))]
    plain, _ = decoded(Copying(), 0, requests, graphs=False)
    numbers = (0, 0, 0, 4, *[0] * 16, 4, 2, 0, 3)
    found, trace = decoded(drafter, Rehearsal(numbers), requests)
    assert found == plain
    first, second = drafter.prompts[:2], drafter.prompts[2:4]
    whole = [list(request.prompt) + plain[index] for index, request in enumerate(requests)]
    for prompt in (*first, *second):
        assert any(text[: len(prompt)] == list(prompt) for text in whole)
    assert min(map(len, second)) > max(map(len, first))
    assert len(drafter.prompts) == 4 and any(record.drafted for record in trace.records)


def test_the_text_is_the_same_with_new_rows_in_old_slots() -> None:
    requests = case("llama").requests * 2
    plain, _ = decoded(Copying(), 0, requests, graphs=False)
    for numbers in ((3,) * 40, (0, 3) * 20, (*[0] * 12, 3, *[0] * 12, 2)):
        assert decoded(Copying(), Rehearsal(numbers), requests)[0] == plain


def test_a_pooled_drafter_that_rested_has_no_rows_of_the_batch_before() -> None:
    """It was not told that they had ended; a batch in which it may not rest would draft for them, out of its room."""
    pool, drafter, model = SessionPool(graphs=True), Copying(shortest=1), wrapped("llama")
    first = Decoder(model, drafter, gumbel_coupling, Sampling(), Rehearsal((3, *[0] * 12)), slots=2, pool=pool)
    list(first.stream([Request((5, 6, 7), Stopping(30)), Request((9, 8), Stopping(30))], Trace()))
    (runner,) = pool.idle
    assert runner.drafter.resting
    second = Decoder(model, drafter, maximal_coupling, Sampling(1.0), Rehearsal((2, 2)), slots=2, pool=pool)
    list(second.stream([Request((4, 4, 4), Stopping(6), seed=3)], Trace()))
    session: Any = runner.drafter.session
    assert pool.idle == (runner,) and not runner.drafter.may_rest
    assert session.context.active.tolist().count(True) <= 1


def test_processors_are_not_asked_about_texts_that_have_ended() -> None:
    """A step launched ahead ran them behind the end of a row, and one that raises there lost all others."""
    request = Request((5, 6, 7), Stopping(5))

    def strict(ids: Any, scores: Any) -> Any:
        assert ids.shape[1] < 3 + 5
        return scores

    decoder = Decoder(
        wrapped("llama"), Copying(), gumbel_coupling, Sampling(processors=(strict,)), 0, slots=2,
        pool=SessionPool(graphs=True),
    )  # fmt: skip
    requests = [request, Request((9, 8, 7), Stopping(5))]
    assert len({event.index for event in decoder.stream(requests, Trace()) if event.row.finish_reason}) == 2


def test_a_step_that_was_captured_is_not_timed() -> None:
    """Under lookahead the step before it was left out instead, and the capture counted."""
    told: list[int] = []

    class Timed:
        def start(self, setting: Any) -> Any:
            planner: Any = Rehearsal((3, 3, 2, 2, 3, 2)).start(setting)
            planner.timed = lambda step: told.append(step.guesses)
            return planner

    decoded(Copying(shortest=1), Timed(), [Request((5, 6, 7, 5), Stopping(40))])
    assert told[:4] == [3, 2, 3, 2], "the first of each number was captured"
