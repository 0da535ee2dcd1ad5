"""Steps that are launched before the last one was read: rows that end meanwhile, rehearsals, and who tells the time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from helpers import case, wrapped
from outrider.core import host_sync
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.step_result import PendingStep
from outrider.decoding.step_runner import Rule, StepRunner
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying
from outrider.planning.policies import Fixed, Planner, Policy, Rehearsal, Setting
from outrider.planning.step_clock import Timing
from outrider.trace import Stopwatch, Trace


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As on a GPU; the numbers of guesses of the steps that were launched."""
    monkeypatch.setattr(host_sync, "on_cpu", False)
    monkeypatch.setattr(StepRunner, "ahead", property(lambda runner: runner.graphs))
    gammas: list[int] = []
    launch = StepRunner.launch

    def noted(self: StepRunner, rule: Rule, gamma: int, watch: Stopwatch | None = None) -> PendingStep:
        gammas.append(gamma)
        return launch(self, rule, gamma, watch)

    monkeypatch.setattr(StepRunner, "launch", noted)
    return gammas


def decoded(
    requests: list[Request], gamma: int | Policy, graphs: bool, sampling: Sampling, slots: int = 1
) -> tuple[dict[int, list[int]], Trace]:
    trace, pool = Trace(), SessionPool(graphs=graphs)
    decoder = Decoder(wrapped("llama"), Copying(shortest=1), gumbel_coupling, sampling, gamma, slots=slots, pool=pool)
    texts: dict[int, list[int]] = {}
    for event in decoder.stream(requests, trace):
        texts.setdefault(event.index, []).extend(event.tokens)
    return texts, trace


SAMPLING = {"greedy": Sampling(), "gumbel": Sampling(1.0)}


@pytest.mark.parametrize("gamma", [0, 3])
@pytest.mark.parametrize("name", SAMPLING)
def test_a_row_enters_the_slot_of_one_that_ended_under_way(name: str, gamma: int, launched: list[int]) -> None:
    """The step under way still holds the old row: what it gives belongs to nobody, and must not reach the new one."""
    sampling = SAMPLING[name]
    endless = [Request(prompt, Stopping(12), seed) for seed, prompt in enumerate([(5, 6, 7), (9, 8, 9, 8), (4,)])]
    plain, _ = decoded(endless, 0, False, sampling)
    # The first two end by a token that nobody knew of when the next step was launched.
    ends = [Stopping(12, eos=frozenset([plain[index][5]])) for index in range(2)] + [Stopping(12)]
    requests = [Request(r.prompt, stopping, r.seed) for r, stopping in zip(endless, ends, strict=True)]
    expected, _ = decoded(requests, gamma, False, sampling)
    assert [expected[i] for i in range(3)] == [plain[i][: len(expected[i])] for i in range(3)]
    launched.clear()
    found, trace = decoded(requests, gamma, True, sampling)
    assert found == expected
    assert len(launched) > len(trace.records), "steps were under way when rows ended"
    assert [ending.row for ending in trace.endings] == [0, 1, 2], "each ends once"
    for index, request in enumerate(requests):
        records = [record for record in trace.records if record.row == index]
        assert records[0].position == len(request.prompt)
        assert sum(record.emitted for record in records) == len(expected[index])


@dataclass
class Told:
    """A policy that notes what it hears."""

    timings: list[Timing] = field(default_factory=list)

    def start(self, setting: Setting) -> Planner:
        listening = self

        class Listening(Fixed):
            def timed(self, step: Timing) -> None:
                listening.timings.append(step)

        return Listening(0)


NUMBERS = (4, 4, 2, 0, 3)


@pytest.mark.parametrize("graphs", [False, True])
def test_a_rehearsal_asks_for_its_numbers_in_turn(graphs: bool, launched: list[int]) -> None:
    """All rows of a run for the same, then for none; the text is plain text."""
    requests = [Request((5, 6, 7), Stopping(50)), Request((9, 8, 9, 8), Stopping(50))]
    plain, _ = decoded(requests, 0, False, Sampling(), slots=2)
    launched.clear()
    told = Told()
    found, trace = decoded(requests, Rehearsal(NUMBERS, told), graphs, Sampling(), slots=2)
    assert found == plain
    assert tuple(launched[: len(NUMBERS)]) == NUMBERS and set(launched[len(NUMBERS) :]) == {0}
    # A step that was captured says nothing about what it takes.
    steps, captured = len(launched), len(set(NUMBERS)) if graphs else 0
    assert 0 < len(told.timings) <= steps and len(told.timings) >= steps - 2 * captured - 2
    assert decoded(requests, Rehearsal(()), graphs, Sampling(), slots=2)[0] == plain


def test_every_batch_rehearses_from_the_start() -> None:
    """A policy is shared by batches and calls: the count of runs is a batch's own."""
    setting = Setting(1, 8, Copying(), Shape(64, 9))
    for planner in (rehearsal := Rehearsal((2, 1))).start(setting), rehearsal.start(setting):
        found = []
        for _ in range(4):
            planner.begin([5], waiting=False)  # type: ignore[attr-defined]
            found += [planner.choose(0), planner.choose(0)]
        assert found == [2, 2, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("graphs", [False, True])
def test_without_a_gpu_no_device_tells_the_time(graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before a step was read nor after, replayed or not: the host's clock is asked instead."""
    monkeypatch.setattr(host_sync, "on_cpu", not graphs)
    made = StepRunner((case("llama").model, Copying()), 1, Shape(64, 5, chunk=8), graphs)
    made.target.admit(0, [3, 4, 5])
    made.drafter.admit(0, [3, 4, 5])
    for gamma in (2, 2, 0):
        step = made.launch(Rule(gumbel_coupling, Sampling()), gamma)
        assert step.device_seconds is None
        assert len(step.read().row(0)[0]) >= 1
        assert step.device_seconds is None
    assert made.graphs == graphs and (made.captures > 0) == graphs
