"""Tokens that a constraint forces are guesses before any drafter is asked, and a request may choose its drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from helpers import case, wrapped
from outrider.core.protocols import Drafter
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.decoding.loop import Decoder, Event, Request
from outrider.drafters import Copying, ModelDrafter, Ngram, Nothing
from outrider.drafters.by_request import ByRequest
from outrider.drafters.forced import Forced
from outrider.trace import Trace

CAPACITY = 120
REQUEST = replace(
    case("llama").requests[0],
    stopping=replace(case("llama").requests[0].stopping, max_new_tokens=40, eos=frozenset(), stop=()),
)


def served(drafter: Drafter, requests: list[Request], gamma: int) -> tuple[list[list[int]], list[int], list[int]]:
    """Texts, target runs and guesses made, of requests that run together."""
    decoder = Decoder(wrapped("llama"), drafter, gumbel_coupling, Sampling(), gamma, slots=len(requests))
    queue = decoder.queue(CAPACITY)
    queue.submit_all(requests, [lambda number: None] * len(requests))
    queue.close()
    events: list[Event] = list(decoder.serve(queue, Trace(), CAPACITY, slots=len(requests)))
    own = [[event for event in events if event.index == index] for index in range(len(requests))]
    guesses = [sum(len(event.record.drafted) for event in each if event.record is not None) for each in own]
    return [list(each[-1].row.tokens) for each in own], [len(each) for each in own], guesses


TEXT = served(Nothing(), [REQUEST], 0)[0][0]


def forcing(text: Sequence[int], most: int, every: int = 1) -> Callable[[Sequence[int]], list[int]]:
    """A constraint that forces up to ``most`` tokens of a text, behind every so many of its tokens."""
    return lambda output: list(text[len(output) : len(output) + most]) if len(output) % every == 0 else []


@pytest.mark.parametrize("other", [Nothing(), Copying(), ModelDrafter(wrapped("llama"))], ids=["none", "copy", "model"])
@pytest.mark.parametrize("gamma", [0, 2])
def test_forced_tokens_fill_runs_whatever_is_planned(other: Drafter, gamma: int) -> None:
    """Nine tokens of a run are sure where eight guesses are, though the planner asks for none or two."""
    rows = [replace(REQUEST, forced=forcing(TEXT, 20)), REQUEST, replace(REQUEST, forced=forcing(TEXT, 3, every=2))]
    texts, runs, _ = served(Forced(other), rows, gamma)
    assert texts == [TEXT] * 3
    assert runs[0] == 5 and runs[2] <= 20
    if gamma == 0:
        assert runs[1] == 40, "a row beside them is asked for no more than before"


@pytest.mark.parametrize("other", [Nothing(), ModelDrafter(wrapped("llama"))], ids=["none", "model"])
def test_a_constraint_that_is_wrong_changes_no_text(other: Drafter) -> None:
    """Tokens of forced bytes may be others than the model would choose: they are guesses as any."""
    wrong = [(token + 1) % 50 for token in TEXT]
    mixed = [token if place % 5 else (token + 1) % 50 for place, token in enumerate(TEXT)]
    rows = [replace(REQUEST, forced=forcing(text, most)) for text in (wrong, mixed) for most in (1, 4, 20)]
    assert served(Forced(other), rows, 4)[0] == [TEXT] * 6


def test_a_request_that_wants_no_guesses_gets_none() -> None:
    texts, runs, guesses = served(Forced(Nothing()), [replace(REQUEST, forced=forcing(TEXT, 20), gamma=0)], 4)
    assert texts == [TEXT] and runs == [40] and guesses == [0]


def test_the_drafter_is_asked_where_few_tokens_are_forced() -> None:
    """One forced token would give two tokens a run; a drafter that guesses beyond it gives five."""
    twin = ModelDrafter(wrapped("llama"))
    _, runs, _ = served(Forced(twin), [replace(REQUEST, forced=forcing(TEXT, 1))], 4)
    assert runs == [8]
    _, runs, _ = served(Forced(Nothing()), [replace(REQUEST, forced=forcing(TEXT, 1))], 4)
    assert runs == [20]


def test_rows_are_drafted_for_by_the_drafters_they_name() -> None:
    """One that is always right, one that copies, one that counts, none: each row has the guesses of its own."""
    drafters = {"twin": ModelDrafter(wrapped("llama")), "copy": Copying(), "ngram": Ngram(), "none": Nothing()}
    rows = [replace(REQUEST, drafter=name) for name in (None, "copy", "twin", "none", "ngram")]
    texts, runs, guesses = served(ByRequest(drafters), rows, 4)
    assert texts == [TEXT] * 5
    assert runs[0] == runs[2] == 8 and runs[3] == 40 and guesses[3] == 0
    for row in (1, 4):
        alone = served(drafters[str(rows[row].drafter)], [REQUEST], 4)
        assert (runs[row], guesses[row]) == (alone[1][0], alone[2][0])
