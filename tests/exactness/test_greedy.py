"""Greedy text is transformers' own, token for token in float32: every family, drafter, gamma, batch."""

from __future__ import annotations

from itertools import product

import pytest
import tiny
from helpers import DRAFTERS, case, run

from outrider.core.sampling import Sampling
from outrider.decoding.loop import Request
from outrider.decoding.stopping import Stopping
from outrider.trace import summarise

GAMMAS = (0, 1, 4, 7)
FULL = ("llama", "t5")  # every combination; the other families have a set that covers each value of each kind
COVERING = [
    *((drafter, 4, 3) for drafter in DRAFTERS),
    *(("none", 0, 3), ("copy", 1, 1), ("other", 1, 3), ("self", 1, 3), ("self", 7, 3), ("table", 7, 1), ("auto", 7, 3)),
]


def combinations() -> list[tuple[str, str, int, int]]:
    full = [(f, *rest) for f in FULL for rest in product(DRAFTERS, GAMMAS, (1, 3))]
    return full + [(f, *rest) for f in tiny.FAMILIES if f not in FULL for rest in COVERING]


@pytest.mark.parametrize(("family", "drafter", "gamma", "batch"), combinations())
def test_same_text_as_transformers(family: str, drafter: str, gamma: int, batch: int) -> None:
    """Catches any slip in positions, masks, windows, rollback or ragged rows: one wrong logit, another token."""
    wanted = case(family)
    texts, trace = run(wanted.model, wanted.drafter(drafter), wanted.requests[-batch:], gamma)
    assert trace.drafter_error is None
    assert texts == wanted.expected[-batch:]


@pytest.mark.parametrize("family", ["llama", "bart"])
def test_many_full_acceptances(family: str) -> None:
    """Catches a slip of one position after full acceptance that only shows after many steps."""
    wanted = case(family)
    requests = [Request(r.prompt, Stopping(90), 5, r.source) for r in wanted.requests[:2]]
    texts, trace = run(wanted.model, wanted.drafter("self"), requests, 7, Sampling(1.0))
    assert texts == run(wanted.model, wanted.drafter("none"), requests, 0, Sampling(1.0))[0]
    assert summarise(trace).alpha_counted == 1.0
    assert summarise(trace).tokens_per_run > 7


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_cases_can_fail(family: str) -> None:
    """Catches a suite gone soft: texts that are constant, rows that all end together, eos never reached."""
    wanted = case(family)
    lengths = [len(text) for text in wanted.expected]
    assert min(lengths) < max(lengths), "no row ends early"
    assert any(text[-1] == wanted.eos for text in wanted.expected)
    assert max(len(set(text)) for text in wanted.expected) >= 5


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_full_and_partial_acceptance_happen(family: str) -> None:
    """Catches an off-by-one that turns the target's own guesses down, and drafts that are never really examined."""
    wanted = case(family)
    _, own = run(wanted.model, wanted.drafter("self"), wanted.requests)
    assert summarise(own).alpha_counted == 1.0
    _, other = run(wanted.model, wanted.drafter("other"), wanted.requests)
    assert summarise(other).wasted > 0
    _, table = run(wanted.model, wanted.drafter("table"), wanted.requests)
    assert summarise(table).accepted > 0
