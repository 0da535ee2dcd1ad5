"""When a beam search guesses, and how deep: by what its runs and drafts take, and how often levels were kept.

A level of a draft tree is one step of the search without a run of its own. It pays if

    steps per run * seconds of a plain step > seconds of the draft + seconds of the wider run,

and where rows cost time that is seldom so: the tree has as many tokens at every level as the search has at each step,
and more. The planner of ``gamma="auto"`` decides, with a level in the place of a guess; what it has seen stays with the
``LLM``. Bits do not depend on what it decides: where they depend on shapes, all runs have the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider.core.model_facts import facts_of
from outrider.core.protocols import Drafter, LanguageModel
from outrider.planning.policies import JointPlanner, Planner, Policy, Setting, declared_runs
from outrider.planning.step_clock import Timing
from outrider.runtime import timer

DISMISSED_AFTER = 4
"""Steps without guesses after which a search goes on without its drafter, which would have to follow every row."""


@dataclass(frozen=True)
class SearchShape:
    """What a search asks of the target and of the drafter."""

    beams: int  # w: hypotheses that run together
    rows: int  # u: rows of a run with guesses
    levels: int  # the most guesses behind each other

    def run_costs(self, target: LanguageModel) -> Callable[[int], float] | float:
        """What a run costs by its width, levels + 1, in plain runs: w tokens in those, u rows of that width in others.

        Where shapes are constant all runs cost the same.
        """
        tokens = declared_runs(target) if facts_of(target).batch_invariant else None
        if tokens is None:
            return 1.0
        plain = tokens(self.beams)
        return lambda width: 1.0 if width == 1 else tokens(self.rows * width) / plain


class Levels:
    """How many levels of guesses the next run of one search has. Without a policy always as many as there may be."""

    def __init__(self, policy: Policy | None, shape: SearchShape, target: LanguageModel, drafter: Drafter) -> None:
        self.most = shape.levels
        self.planner: Planner | None = None
        self.idle = self.runs = 0  # runs without guesses since the last with some; all runs
        if policy is not None and shape.levels > 0:
            kind = ("beams", shape, facts_of(target).engine)
            widths = shape.run_costs(target)
            self.planner = policy.start(Setting(1, shape.levels, drafter, kind, widths, beams=shape.beams, joint=True))
        self.began = timer.now()
        self.drafted = 0.0

    def choose(self, left: int) -> int:
        """For a run of a search that may have so many more steps; the last step needs no guess behind it."""
        self.began, self.drafted = timer.now(), 0.0
        if self.planner is None:
            return min(self.most, left - 1)
        if isinstance(self.planner, JointPlanner):
            self.planner.begin([left], waiting=False)
        chosen = min(self.planner.choose(0), left - 1)
        self.idle = 0 if chosen else self.idle + 1
        return chosen

    def plain(self) -> None:
        """A run of a search that has no drafter begins."""
        self.began, self.drafted = timer.now(), 0.0

    def made(self) -> None:
        """The draft is there."""
        self.drafted = timer.now() - self.began

    @property
    def dismissed(self) -> bool:
        """Whether the search goes on without its drafter."""
        return self.idle >= DISMISSED_AFTER

    def learn(self, asked: int | None, guessed: int, steps: int, left: int) -> None:
        """A run was for ``steps`` steps of the search. ``asked``: levels it was to have; None: there is no drafter."""
        self.runs += 1
        if self.planner is None:
            return
        seconds = timer.now() - self.began - self.drafted
        if self.runs > 1:  # in the first run a search has one hypothesis, and the drafter reads the prompt
            drafting = self.drafted if asked else None
            self.planner.timed(Timing(guessed + 1, seconds, drafting, guessed))
        if asked is None:
            return
        kept = min(steps - 1, guessed)
        self.planner.learn(0, asked, kept, min(kept + 1, guessed))
        if isinstance(self.planner, JointPlanner):
            self.planner.ended([left])
