"""Every ability of a drafting session against every session made of others, and SafeDrafter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
import torch
from torch import Tensor

from outrider.core import abilities as protocols
from outrider.core.abilities import Abilities, forkable
from outrider.core.noise import Noise
from outrider.core.prices import Ladder, Prices
from outrider.core.protocols import Draft, Drafter, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.core.token_tree import NodeTree, TreeShape
from outrider.decoding.safe_drafter import SafeDrafter
from outrider.drafters import Cascade, Fallback, Mixture, ModelDrafter, Standardised
from outrider.drafters.base import ContextSession
from outrider.errors import BadOption
from outrider.models.toy import ToyModel
from outrider.trace import PHASES, Level

MODEL = ToyModel(12, seed=3)
SHAPE = Shape(capacity=64, width=5)


class AbleSession(ContextSession):
    """Has every ability. Where it is not silent it guesses token 1, behind a match of ``length`` tokens."""

    caps: Tensor | None = None
    prices: Prices | None = None
    ends_behind: Tensor | None = None
    only_drafter = False
    capturable = True
    forked = False
    spent_for: tuple[int, ...] | None = (1,)
    grows_trees, grown = True, None

    def __init__(self, drafter: Able, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        self.silent, self.spent = torch.tensor(drafter.silent), drafter.spent
        self.matched = torch.full((rows,), drafter.length)
        self.levels = (Level(drafter.name, "none", 1, 2, 3, 4, dict.fromkeys(PHASES, 0.0)),)
        self.learned = (torch.zeros(rows),)
        self.model_sessions = (MODEL.start(rows, shape),)

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        tokens = torch.ones_like(at[:, :gamma])
        return Draft(tokens, None, (~self.silent)[:, None].expand_as(tokens))

    def grow(self, shape: TreeShape) -> NodeTree:
        self.grown = shape
        return NodeTree.chain(torch.ones((1, shape.nodes), dtype=torch.int64))

    def fork(self, rows: Tensor) -> Self:
        other = super().fork(rows)
        other.forked = True
        return other


@dataclass(frozen=True)
class Able:
    name: str
    silent: tuple[bool, bool]
    spent: int
    length: int

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return AbleSession(self, rows, shape, target)


FIRST = Able("first", (False, True), 5, 9)
SECOND = Able("second", (False, False), 7, 4)
CASCADE = Cascade(FIRST, ModelDrafter(MODEL.near(0.5)))


def safe(drafter: Drafter, target: Session) -> SafeDrafter:
    return SafeDrafter(lambda: drafter.start(2, SHAPE, target), 2, target)


SESSIONS: dict[str, Callable[[Session], Any]] = {
    "fallback": lambda target: Fallback(FIRST, SECOND).start(2, SHAPE, target),
    "mixture": lambda target: Mixture(FIRST, SECOND, cost=0.01).start(2, SHAPE, target),
    "cascade": lambda target: CASCADE.start(2, SHAPE, target),
    "standardised": lambda target: Standardised(SECOND, 0.5).start(2, SHAPE, target),
    "safe": lambda target: safe(SECOND, target),
}


@dataclass
class Wrapped:
    """A wrapper around one or two sessions that have every ability: row 0 is the first's, row 1 the second's."""

    name: str
    inside: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.target = MODEL.start(2, SHAPE)
        self.session = SESSIONS[self.name](self.target)
        for row in range(2):
            self.target.admit(row, [1, 2, 3])
            self.session.admit(row, [1, 2, 3])
        self.able: Any = self.session.abilities if isinstance(self.session, SafeDrafter) else Abilities(self.session)
        self.inside = [self.session.session] if self.name == "safe" else list(self.session.children())

    def ask(self) -> None:
        self.session.propose(4, Sampling(), Noise(torch.arange(2)), self.target.context.positions(5))

    def expect(self, found: object, **by_wrapper: object) -> None:
        """``one`` is of those that hold one session for the same target."""
        one = by_wrapper.pop("one")
        expected = {"standardised": one, "safe": one} | by_wrapper
        assert found == expected[self.name], f"{self.name}: {found}"


def capped(made: Wrapped) -> None:
    """The second drafter of two is told 0 for the rows that it is not needed for."""
    caps = torch.tensor([3, 2])
    (made.session.cap if made.name == "safe" else made.able.cap)(caps.tolist() if made.name == "safe" else caps)
    made.ask()
    told = [None if inner.caps is None else inner.caps.tolist() for inner in made.inside]
    made.expect(told, one=[[3, 2]], fallback=[[3, 2], [0, 2]], mixture=[[3, 2], [0, 2]], cascade=[None])


def priced(made: Wrapped) -> None:
    prices = Prices(Ladder((1.0,) * 5, (0.0, 0.01, 0.02, 0.03, 0.04)), [1.0, 1.0], [0.5, 0.5])
    (made.session if made.name == "safe" else made.able).price(prices)
    made.ask()
    told = [inner.prices is not None and inner.prices.ladder is prices.ladder for inner in made.inside]
    made.expect(told, one=[True], fallback=[True, True], mixture=[False, True], cascade=[False])


def ending_behind(made: Wrapped) -> None:
    made.able.end_behind(torch.tensor([7, -1]))
    told = [inner.ends_behind is not None for inner in made.inside]
    made.expect(told, one=[True], fallback=[False, False], mixture=[False, False], cascade=[False])


def only_drafter(made: Wrapped) -> None:
    made.able.declare_only_drafter()
    told = [inner.only_drafter for inner in made.inside]
    made.expect(told, one=[True], fallback=[False, False], mixture=[False, False], cascade=[False])


def spending(made: Wrapped) -> None:
    """A mixture's copies take no time."""
    made.ask()
    made.expect((made.session if made.name == "safe" else made.able).spent, one=7, fallback=12, mixture=7, cascade=None)
    found = made.able.spent_for
    made.expect(None if found is None else list(found), one=[1], fallback=None, mixture=[1], cascade=None)


def matching(made: Wrapped) -> None:
    """Behind a wrapper every match was silently of length zero."""
    made.ask()
    found = made.able.matched
    both = [FIRST.length, SECOND.length]
    made.expect(None if found is None else found.tolist(), one=[4, 4], fallback=both, mixture=both, cascade=None)


def levelled(made: Wrapped) -> None:
    names = [level.model for level in (made.session if made.name == "safe" else made.able).levels]
    both = ["first", "second"]
    made.expect(names, one=["second"], fallback=both, mixture=both, cascade=["model", "first"])


def capturable(made: Wrapped) -> None:
    made.session.asks = made.session.on_cpu = False  # as on a GPU
    made.expect(made.able.capturable, one=True, fallback=True, mixture=True, cascade=False)
    made.inside[-1].capturable = False
    assert not made.able.capturable


def held(found: Iterable[object], wanted: Iterable[object]) -> bool:
    return {id(one) for one in wanted} <= {id(one) for one in found}


def learning(made: Wrapped) -> None:
    assert held(made.able.learned, (tensor for inner in made.inside for tensor in inner.learned))
    assert len(list(made.able.learned)) == len(made.inside) + 2 * (made.name == "mixture")


def keeping_contexts(made: Wrapped) -> None:
    assert held(made.able.contexts, (inner.context for inner in made.inside))


def running_models(made: Wrapped) -> None:
    assert held(made.able.model_sessions, (one for inner in made.inside for one in inner.model_sessions))
    assert made.name != "cascade" or held(made.able.model_sessions, [made.session.middle.session])


def forking(made: Wrapped) -> None:
    """A fork is in everything but its rows as the session it came from, and asks the forks of the sessions inside."""
    rows = torch.tensor([1])
    if made.name == "cascade":
        with pytest.raises(BadOption, match="no fork"):
            forkable(made.session)
        return
    fork: Any = made.session.attempt(lambda inner: forkable(inner).fork(rows)) if made.name == "safe" else None
    inside = [fork] if fork is not None else forkable(made.session).fork(rows).children()  # type: ignore[attr-defined]
    assert len(inside) == len(made.inside)
    assert all(one.forked and one.context.rows == 1 and one is not other for one in inside for other in made.inside)


def growing(made: Wrapped) -> None:
    """Nine nodes of the second drafter's, or five beside four of the first one's copy."""
    found = made.able.growing
    sizes = [] if found is None else [found.grow(TreeShape(9, 4, 3)).tokens.shape[1]]
    sizes += [inner.grown for inner in made.inside]
    both = [9, TreeShape(4, 4, 1), TreeShape.of(5, 4)]
    made.expect(sizes, one=[9, TreeShape(9, 4, 3)], fallback=both, mixture=both, cascade=[None])
    for inner in made.inside[-1:]:
        inner.grows_trees = False
    assert made.able.growing is None


CHECKS: dict[str, Callable[[Wrapped], None]] = {
    "Capped": capped,
    "Priced": priced,
    "EndingBehind": ending_behind,
    "OnlyDrafter": only_drafter,
    "Spending": spending,
    "Matching": matching,
    "Levelled": levelled,
    "Capturable": capturable,
    "Learning": learning,
    "ContextKeeping": keeping_contexts,
    "ModelRunning": running_models,
    "Forkable": forking,
    "TreeGrowing": growing,
}

ABILITIES = [
    name
    for name, found in vars(protocols).items()
    if inspect.isclass(found) and found.__module__ == protocols.__name__ and name not in ("Abilities", "Composite")
]


@pytest.mark.parametrize("ability", ABILITIES)
@pytest.mark.parametrize("wrapper", SESSIONS)
def test_every_wrapper_passes_on_every_ability(wrapper: str, ability: str) -> None:
    """Wrappers forwarded by hand what somebody had thought of. A new protocol fails here until it has a check."""
    made = Wrapped(wrapper)
    assert all(isinstance(inner, getattr(protocols, ability)) for inner in made.inside)
    CHECKS[ability](made)


def test_a_fork_of_a_fallback_is_a_fallback() -> None:
    """A fork forgot whether it may ask who needs the second drafter, and what each may be asked for."""
    made = Wrapped("fallback")
    made.session.asks, made.session.limits = False, [2, 3]
    fork: Any = made.session.fork(torch.tensor([1]))
    assert not fork.asks and fork.limits == [2, 3] and fork.used_first.shape == (1,)


def test_abilities_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look takes 30 us and more on Python 3.11, and was taken several times a step."""
    made = Wrapped("safe")
    prices = Prices(Ladder((1.0,) * 5, (0.0,) * 5), [1.0, 1.0], [0.5, 0.5])

    def step() -> None:
        made.session.cap([3, 2])
        made.session.price(prices)
        made.ask()
        assert made.session.spent == 7

    step()

    def refused(cls: type, instance: object) -> bool:
        raise AssertionError(f"is {instance!r} {cls.__name__}?")

    monkeypatch.setattr(type(protocols.Capped), "__instancecheck__", refused)
    step()


def test_a_failed_drafter_has_no_abilities_left() -> None:
    made = Wrapped("safe")
    made.inside[0].propose = None
    with pytest.warns(UserWarning, match="left out"):
        made.ask()
    assert made.session.spent is None and made.session.levels == () and made.session.abilities.matched is None
    made.session.cap([1, 2])
    assert made.inside[0].caps is None
