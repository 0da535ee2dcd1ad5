"""Policies at work in the decoder: the text is the same, rows keep to themselves, and clocks are told the truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from clocks import ticking
from helpers import run
from outrider.core.prices import Prices
from outrider.core.protocols import Draft, Drafter
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.batch import RunningBatch
from outrider.decoding.inbox import RequestList
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying, Mixture, ModelDrafter, Nothing
from outrider.errors import BadOption
from outrider.models.toy import ToyModel
from outrider.planning.policies import Auto, Fixed, Gradient, Planner, Policy, Setting
from outrider.planning.step_clock import Timing
from outrider.runtime import timer
from outrider.theory import Costs
from outrider.trace import Trace

MODEL = ToyModel(12, seed=3, sharpness=2.0)
NEAR = ModelDrafter(MODEL.near(0.5), "near")
STOPPING = ModelDrafter(MODEL.near(0.5), "stopping", floor=0.1)
DRAFTERS = [NEAR, STOPPING, Mixture(Copying(), NEAR), Mixture(Copying(), STOPPING)]
STEEP = Costs(target=lambda width: 1 + 0.15 * (width - 1), draft=0.05)
"""Rows of a run cost something."""


def requests(count: int = 5, seed: int | None = None) -> list[Request]:
    return [
        Request(tuple((7 * i + j) % 12 for j in range(3 + i)), Stopping(18 + 5 * i), i if seed is None else seed)
        for i in range(count)
    ]


class Ragged:
    """Row i asks for i guesses, then for i + 1, and so on around."""

    def start(self, setting: Setting) -> Planner:
        return _RaggedPlanner(setting)


class _RaggedPlanner(Fixed):
    def __init__(self, setting: Setting) -> None:
        super().__init__(0)
        object.__setattr__(self, "setting", setting)
        object.__setattr__(self, "calls", 0)

    def choose(self, row: int) -> int:
        object.__setattr__(self, "calls", self.calls + 1)  # type: ignore[attr-defined]
        return (row + self.calls) % (self.setting.limit + 1)  # type: ignore[attr-defined]


POLICIES: dict[str, Callable[[], Policy]] = {
    "auto": Auto,
    "auto, cheap": lambda: Auto(0.01),
    "auto, dear": lambda: Auto(0.6),
    "auto, wide runs dear": lambda: Auto(STEEP),
    "gradient": Gradient,
    "fixed": lambda: Fixed(3),
    "ragged": Ragged,
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("drafter", DRAFTERS, ids=lambda d: d.name)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_greedy_and_gumbel_text_is_the_same_whatever_the_policy(
    name: str, drafter: Drafter, temperature: float
) -> None:
    """Catches rows that are cut at another row's gamma, and caches that fall out of step over plain steps.

    The clock is the test's own. By the real one, a machine on which drafts of this toy are slow made no guess at all.
    """
    how = {"sampling": Sampling(temperature), "verifier": gumbel_coupling, "slots": 3}
    plain, _ = run(MODEL, Nothing(), requests(), 0, **how)
    with timer.using(ticking()):
        texts, trace = run(MODEL, drafter, requests(), POLICIES[name](), **how)
    assert texts == plain
    assert any(r.accepted for r in trace.records), "no guess was ever kept: nothing was tested"


@pytest.mark.parametrize("drafter", DRAFTERS, ids=lambda d: d.name)
@pytest.mark.parametrize("distribution", [lambda n: n**2, lambda n: -n, lambda n: n * (1 + 50 * (n % 5 == 1))])
def test_no_clock_changes_the_text(drafter: Drafter, distribution: Callable[[int], float]) -> None:
    """Of one that races, one that runs backwards, and one by which every draft is dear."""
    how = {"sampling": Sampling(1.0), "verifier": gumbel_coupling, "slots": 3}
    plain, _ = run(MODEL, Nothing(), requests(), 0, **how)
    with timer.using(ticking(distribution)):
        assert run(MODEL, drafter, requests(), Auto(), **how)[0] == plain


def test_fixed_is_what_a_number_is() -> None:
    one = run(MODEL, NEAR, requests(), 3, Sampling(1.0), maximal_coupling)
    two = run(MODEL, NEAR, requests(), Fixed(3), Sampling(1.0), maximal_coupling)
    assert one[0] == two[0] and one[1].records == two[1].records


def test_rows_have_a_gamma_of_their_own() -> None:
    """Catches one gamma for the batch: rows are cut to their own, and the drafter runs for the longest."""
    _, trace = run(MODEL, NEAR, requests(3), Ragged(), Sampling(1.0), maximal_coupling, width=6)
    drafted = {(r.row, len(r.drafted)) for r in trace.records}
    assert len({length for _, length in drafted}) >= 4


@pytest.mark.parametrize("policy", [Auto(0.1), Auto(STEEP), Gradient(0.1)], ids=["auto", "steep", "gradient"])
@pytest.mark.parametrize("drafter", DRAFTERS, ids=lambda d: d.name)
def test_given_costs_make_a_row_independent_of_clock_and_neighbours(policy: Policy, drafter: Drafter) -> None:
    """Catches timings, or the rows beside, that decide anything although costs were given."""
    how = {"sampling": Sampling(1.0), "verifier": maximal_coupling, "slots": 3}
    alone = [run(MODEL, drafter, [r], policy, **how)[0][0] for r in requests(seed=7)]
    with timer.using(ticking(lambda moment: moment**2)):
        assert run(MODEL, drafter, requests(seed=7), policy, **how)[0] == alone


def test_a_row_that_stepped_aside_asks_nothing_of_the_drafter() -> None:
    """Catches drafting for nobody: a step without guesses must not run the drafter."""
    asked: list[int] = []

    class Counting:
        name, cost = "counting", 0.5

        def start(self, rows: int, shape: object, target: object) -> object:
            session = Nothing().start(rows, shape, target)  # type: ignore[arg-type]
            real = session.propose

            def propose(gamma: int, *rest: object) -> Draft:
                asked.append(gamma)
                return real(gamma, *rest)  # type: ignore[arg-type]

            session.propose = propose  # type: ignore[method-assign]
            return session

    run(MODEL, Counting(), [Request((1, 2), Stopping(60))], Auto(0.5))  # type: ignore[arg-type]
    assert 0 < sum(map(bool, asked)) < 15


@pytest.mark.parametrize("bad", ["often", 1.5, -1, object()])
def test_what_is_no_gamma_is_refused(bad: object) -> None:
    from outrider.options import Options

    with pytest.raises(BadOption, match="gamma"):
        Options(gamma=bad)


@pytest.mark.parametrize("bad", [-0.1, math.nan])
def test_what_is_no_cost_is_refused(bad: float) -> None:
    with pytest.raises(BadOption, match="draft"):
        Auto(bad)


def test_caps_keep_a_prefix() -> None:
    draft = Draft(torch.zeros((2, 3), dtype=torch.int64), None, torch.ones((2, 3), dtype=torch.bool))
    kept: Sequence[Sequence[bool]] = draft.cut(torch.tensor([1, 5])).proposed.tolist()
    assert kept == [[True, False, False], [True, True, True]]


# --- what the decoder tells ----------------------------------------------------------------------------


class Listening(Fixed):
    """Asks for four guesses and keeps what it is told."""

    def __init__(self, prices: Prices | None = None) -> None:
        super().__init__(4)
        for name, value in {"steps": [], "rows": [], "prices": prices}.items():
            object.__setattr__(self, name, value)

    def learn(self, row: int, asked: int, accepted: int, examined: int) -> None:
        self.rows.append((asked, accepted, examined))  # type: ignore[attr-defined]

    def timed(self, step: Timing) -> None:
        self.steps.append(step)  # type: ignore[attr-defined]


def listened(drafter: Drafter, **options: Any) -> tuple[list[Timing], list[tuple[int, int, int]], Trace]:
    policy: Any = Listening()
    _, trace = run(MODEL, drafter, [Request((1, 2, 3, 4), Stopping(40))], policy, Sampling(1.0), **options)
    return policy.steps, policy.rows, trace


def test_runs_are_timed_by_the_width_they_had() -> None:
    """Catches a run timed as wide as was asked for, though the drafter had stopped earlier."""
    steps, _, trace = listened(STOPPING, exact=False)
    made = [len(record.drafted) for record in trace.records]
    assert [step.width - 1 for step in steps] == made == [step.guesses for step in steps]
    assert min(made) < 4, "it never stopped: nothing was tested"
    assert all(step.seconds > 0 for step in steps)
    assert all(step.drafting is not None and step.drafting > 0 for step in steps[1:])


def test_a_draft_that_reads_the_prompt_does_not_tell_what_guesses_take() -> None:
    """Where texts are short and each is tried once, every draft that was timed had encoded its source, too: guesses
    seemed dear for good."""
    steps, _, _ = listened(STOPPING)
    assert steps[0].read == {0} and steps[0].guesses > 0
    assert not any(step.read for step in steps[1:])


def test_runs_of_constant_width_are_one_kind() -> None:
    """Catches a table of widths for runs that are all padded to the same."""
    steps, _, _ = listened(STOPPING)
    assert {step.width for step in steps} == {1} and {step.guesses for step in steps} > {4}


def test_copies_are_not_timed_as_guesses_of_a_model() -> None:
    """Catches a long copy that makes the second drafter look quick, and the other way round."""
    prompt = tuple([5, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 0] * 3)
    policy: Any = Listening()
    drafter = Mixture(Copying(), NEAR)
    run(MODEL, drafter, [Request(prompt, Stopping(4))], policy, Sampling(), exact=False)
    first = policy.steps[0]
    assert first.width == 5 and first.guesses == 0


def test_a_guess_not_made_is_told_from_one_not_kept() -> None:
    """And nothing is told of what lies behind a rejection."""
    _, rows, trace = listened(STOPPING)
    for (asked, accepted, examined), record in zip(rows, trace.records, strict=True):
        assert asked == 4 and accepted == record.accepted
        assert examined == (accepted if accepted == len(record.drafted) else accepted + 1)


@pytest.mark.parametrize("drafter", DRAFTERS, ids=lambda d: d.name)
def test_prices_reach_the_drafter_and_do_not_stay(drafter: Drafter) -> None:
    """Catches a session used again by a call with a fixed gamma that still goes by an earlier call's prices."""
    decoder = Decoder(MODEL, drafter, gumbel_coupling, Sampling(), Auto(STEEP))
    pool = decoder.pool
    request = [Request((1, 2, 3, 4), Stopping(12))]
    seen: list[Any] = []
    with pool.lend((MODEL, drafter), 1, decoder.shape(request[0])) as runner:
        for policy in (Auto(STEEP), Fixed(4)):
            batch = RunningBatch(Decoder(MODEL, drafter, gumbel_coupling, Sampling(), policy), runner, Trace())
            list(batch.run(RequestList([(0, request[0])])))
            session: Any = runner.drafter.session
            seen.append(session.prices)
    assert isinstance(seen[0], Prices) and seen[1] is None
