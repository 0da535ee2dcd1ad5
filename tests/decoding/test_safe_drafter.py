"""A drafter can never hurt a request: whatever it does, the text stays exact and the statistics say what happened."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers import run
from outrider.core.noise import Noise
from outrider.core.protocols import Admission, Draft, Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.safe_drafter import SafeDrafter
from outrider.decoding.stopping import Stopping
from outrider.drafters import ModelDrafter, Nothing
from outrider.models.toy import ToyModel
from outrider.trace import Trace, summarise

TARGET = ToyModel(10, seed=2)
REQUESTS = [Request((1, 2, 3)[: i + 1], Stopping(12 + i), seed=i) for i in range(3)]
WARM = Sampling(1.0)


class Failing:
    """A model drafter that raises when ``method`` is called for the ``after``-th time."""

    name = "failing"

    def __init__(self, method: str, after: int = 2) -> None:
        self.method, self.after = method, after

    def start(self, rows: int, shape: Shape, target: Any) -> Any:
        if self.method == "start":
            raise RuntimeError("broken start")
        session = ModelDrafter(TARGET.near(0.3)).start(rows, shape, target)
        honest, calls = getattr(session, self.method), iter(range(10_000))

        def failing(*arguments: Any) -> Any:
            if next(calls) + 1 >= self.after:
                raise RuntimeError(f"broken {self.method}")
            return honest(*arguments)

        setattr(session, self.method, failing)
        return session


@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("method", ["start", "admit_all", "propose", "commit", "release"])
def test_the_request_goes_on_without_the_drafter(method: str, after: int) -> None:
    """Catches a drafter's exception that ends the request, changes its text, or goes unreported."""
    plain, _ = run(TARGET, Nothing(), REQUESTS, 0, WARM)
    with pytest.warns(UserWarning, match=f"broken {method}"):
        texts, trace = run(TARGET, Failing(method, after), REQUESTS, 4, WARM, slots=2)
    assert texts == plain
    assert summarise(trace).drafter_error == f"RuntimeError: broken {method}"


def test_statistics_count_what_was_drafted_before_the_failure() -> None:
    """Catches statistics that forget, or go on counting guesses nobody made."""
    with pytest.warns(UserWarning):
        _, trace = run(TARGET, Failing("propose", after=3), REQUESTS[:1], 4, WARM)
    drafted = [len(record.drafted) for record in trace.records]
    assert drafted[:2] == [4, 4]
    assert not any(drafted[2:])


def test_an_error_in_one_group_is_not_forgotten_by_the_next() -> None:
    """Catches a later batch of other shapes that overwrites the report of an earlier one's failure."""
    short, long = Request((1,), Stopping(4)), Request((1,), Stopping(600))

    class FailsFirst:
        name = "fails first"
        drafters = iter([Failing("propose", after=1), ModelDrafter(TARGET)])

        def start(self, rows: int, shape: Shape, target: Any) -> Any:
            return next(self.drafters).start(rows, shape, target)

    with pytest.warns(UserWarning, match="broken propose"):
        _, trace = run(TARGET, FailsFirst(), [short, long], 2, WARM)
    assert any(record.drafted for record in trace.records), "the second group drafts"
    assert trace.drafter_error == "RuntimeError: broken propose"


def test_maximal_coupling_goes_on_too() -> None:
    """Catches a fallback that works for matching only."""
    with pytest.warns(UserWarning):
        texts, _ = run(TARGET, Failing("propose", 1), REQUESTS, 4, WARM, maximal_coupling)
    assert texts == run(TARGET, Nothing(), REQUESTS, 0, WARM, maximal_coupling)[0]


class Malformed:
    """A drafter whose drafts are not what they should be."""

    name = "malformed"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def start(self, rows: int, shape: Shape, target: Any) -> Any:
        session = ModelDrafter(TARGET.near(0.3)).start(rows, shape, target)

        def propose(gamma: int, *arguments: Any) -> Any:
            tokens = torch.zeros((rows, gamma), dtype=torch.int64)
            yes = torch.ones_like(tokens, dtype=torch.bool)
            return {
                "not a draft": "guess",
                "too many columns": Draft(torch.zeros((rows, gamma + 3), dtype=torch.int64), None, yes),
                "too few rows": Draft(tokens[:-1], None, yes[:-1]),
                "wrong vocabulary": Draft(tokens, torch.ones((rows, gamma, 3)) / 3, yes),
                "float tokens": Draft(tokens.float(), None, yes),
                "flags of another shape": Draft(tokens, None, yes[:, :1]),
            }[self.kind]

        session.propose = propose
        return session


@pytest.mark.parametrize(
    "kind",
    [
        "not a draft", "too many columns", "too few rows", "wrong vocabulary", "float tokens", "flags of another shape",
    ],
)  # fmt: skip
def test_malformed_drafts_are_a_failure_of_the_drafter(kind: str) -> None:
    """Catches a draft of the wrong shape that takes the request down with it."""
    with pytest.warns(UserWarning, match="the drafter failed"):
        texts, trace = run(TARGET, Malformed(kind), REQUESTS, 4, WARM, maximal_coupling)
    assert texts == run(TARGET, Nothing(), REQUESTS, 0, WARM, maximal_coupling)[0]
    assert trace.drafter_error is not None


def test_interrupts_are_not_swallowed() -> None:
    """Catches an except so wide that Ctrl-C only stops the drafting."""

    class Interrupted(Failing):
        def start(self, rows: int, shape: Shape, target: Any) -> Any:
            raise KeyboardInterrupt

    decoder = Decoder(TARGET, Interrupted("start"), maximal_coupling, WARM, 2)
    with pytest.raises(KeyboardInterrupt):
        list(decoder.stream(REQUESTS, Trace()))


class Listening:
    """Remembers what it is told, and how."""

    name = "listening"

    def __init__(self) -> None:
        self.told: list[int] = []
        self.widths: list[int] = []
        self.asked: list[tuple[int, int]] = []  # guesses, and tokens known at that time

    def start(self, rows: int, shape: Shape, target: Any) -> Any:
        session = Nothing().start(rows, shape, target)
        honest = session.commit

        def commit(tokens: Any, count: Any) -> None:
            self.told += tokens[0, : int(count[0])].tolist()
            self.widths.append(tokens.shape[1])
            honest(tokens, count)

        def propose(gamma: int, *_: Any) -> Draft:
            self.asked.append((gamma, len(self.told)))
            return Draft.empty(rows, target.device)

        session.commit, session.propose = commit, propose
        return session


class Rarely:
    """A policy that asks in every tenth run."""

    def start(self, setting: Any) -> Any:
        self.runs = 0
        return self

    def admit(self, row: int) -> None: ...

    def learn(self, *_: int) -> None: ...

    def timed(self, step: Any) -> None: ...

    def choose(self, row: int) -> int:
        self.runs += 1
        return 2 if self.runs % 10 == 0 else 0


def test_a_drafter_that_is_not_asked_hears_everything_in_time() -> None:
    """Catches tokens that are lost or told twice while speculation steps aside, and more at once than a run commits."""
    drafter = Listening()
    decoder = Decoder(TARGET, drafter, maximal_coupling, Sampling(0.0), Rarely(), width=5)
    request = Request((1, 2, 3), Stopping(40))
    (*_, last) = decoder.stream([request], Trace())
    text = list(last.row.tokens)
    assert drafter.told == text[: len(drafter.told)] and len(text) - len(drafter.told) <= 5
    assert drafter.asked == [(2, 9), (2, 19), (2, 29), (2, 39)], "asked only where guesses are wanted, and knowing all"
    assert max(drafter.widths) <= 5


class Sparse(ModelDrafter):
    """Makes guesses that take time for some rows only, or for none."""

    rows: tuple[int, ...] | None = None

    def start(self, rows: int, shape: Shape, target: Any) -> Any:
        session: Any = super().start(rows, shape, target)
        session.spent_for, session.spent = self.rows, None if self.rows is None else len(self.rows)
        return session


@pytest.mark.parametrize(
    ("rows", "found"),
    [(None, [{0, 2}, set(), {1}]), ((0,), [{0}, set(), set()]), ((), [set(), set(), set()])],
    ids=["all", "one", "none"],
)
def test_rows_whose_texts_are_read_for_a_draft_are_told_once(
    rows: tuple[int, ...] | None, found: list[set[int]]
) -> None:
    """Catches reading that is told of rows that had been read, have left, or were not drafted for."""
    drafter = Sparse(TARGET.near(0.3))
    drafter.rows = rows
    target = TARGET.start(3, Shape(64, 5))
    safe = SafeDrafter(lambda: drafter.start(3, Shape(64, 5), target), 3, target)
    for row in range(3):
        target.admit(row, (1, 2, 3))
    noise, at = Noise(torch.arange(3)), target.context.positions(5)
    safe.admit_all([Admission(row, (1, 2, 3)) for row in range(3)])
    safe.release(1)
    told = []
    for step in range(3):
        if step == 2:
            safe.admit(1, (4, 5))
        safe.cap([2, 2, 2])
        safe.propose(2, WARM, noise, at)
        told.append(set(safe.texts_read))
    assert told == found


def test_a_drafter_that_fails_has_read_nothing() -> None:
    """Catches the time of a failure that is kept as what reading takes."""
    target = TARGET.start(1, Shape(64, 5))
    safe = SafeDrafter(lambda: Failing("propose", 1).start(1, Shape(64, 5), target), 1, target)
    target.admit(0, (1, 2, 3))
    safe.admit(0, (1, 2, 3))
    safe.cap([2])
    with pytest.warns(UserWarning, match="broken propose"):
        safe.propose(2, WARM, Noise(torch.arange(1)), target.context.positions(5))
    assert not safe.texts_read
