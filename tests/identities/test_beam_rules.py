"""The step of beam search as an identity: with part of the scores it decides as with all of them, or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

import pytest
import torch

from outrider.beam import rules as beam_rules
from outrider.beam.rules import Hypothesis, Rules, Scored, Search, Tokens, advance, replay

VOCAB, LENGTH = 4, 3
NODES = [tuple(node) for depth in range(LENGTH) for node in product(range(VOCAB), repeat=depth)]
Advance = Callable[[Search, Rules, Scored], Search | None]


class Table:
    """A language model as a table: log-probabilities of the next token behind every text of up to two tokens."""

    def __init__(self, seed: int, bias: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn((len(NODES), VOCAB), generator=generator) * random.Random(seed).choice([1, 3, 9])
        # Coarse values, so that ties occur; a bias may lift them above 0, as a logits processor may.
        self.scores = logits.log_softmax(-1).round() + bias
        self.values, order = self.scores.sort(descending=True, stable=True)
        self.tokens = order.tolist()

    def showing(self, nodes: set[Tokens]) -> Scored:
        return Scored({node: i for i, node in enumerate(NODES) if node in nodes}, self.values, self.tokens)

    @property
    def everything(self) -> Scored:
        return self.showing(set(NODES))


def rules(seed: int, bounded: bool = True) -> Rules:
    drawn = random.Random(seed)
    ends = frozenset(drawn.sample(range(VOCAB), drawn.choice([0, 1, 2])))

    def reason(tokens: Tokens) -> str | None:
        return "eos" if tokens[-1] in ends else "length" if len(tokens) >= LENGTH else None

    return Rules(
        beams=drawn.choice([2, 3]),
        max_new_tokens=LENGTH,
        ends=reason,
        end_tokens=len(ends),
        length_penalty=drawn.choice([1.0, 0.0, 2.0, -1.0]),
        early_stopping=drawn.choice([True, False, "never"]),
        bounded=bounded,
    )


def plain(table: Table, asked: Rules) -> list[Search]:
    """Every state of the search with all scores at hand."""
    states = [Search.start(asked.beams)]
    while not states[-1].done:
        after = advance(states[-1], asked, table.everything)
        assert after is not None
        states.append(after)
    return states


def compare(step: Advance, seeds: range, bias: float = 0.0) -> tuple[int, int, int]:
    """(steps decided with a score missing, steps left open, wrong decisions) over random tables and random gaps."""
    decided = undecided = wrong = 0
    for seed in seeds:
        table, asked = Table(seed, bias), rules(seed, bounded=bias == 0)
        for number, state in enumerate(states := plain(table, asked)):
            drawn = random.Random(seed * 100 + number)
            running = list(dict.fromkeys(h.tokens for h in state.running))
            if state.done or len(running) < 2:
                continue
            hidden = set(drawn.sample(running, drawn.randrange(1, len(running))))
            after = step(state, asked, table.showing(set(NODES) - hidden))
            decided += after is not None
            undecided += after is None
            wrong += after is not None and after != states[number + 1]
    return decided, undecided, wrong


def test_a_step_on_part_of_the_scores_is_the_step_on_all_of_them() -> None:
    """Catches acceptance of a step that an unscored hypothesis could still have changed; both outcomes must occur."""
    decided, undecided, wrong = compare(advance, range(800))
    assert wrong == 0
    assert decided > 100 and undecided > 100


def test_nothing_is_dominated_where_scores_can_rise() -> None:
    """Catches domination argued from log-probabilities below 0 where a processor has lifted them."""
    decided, _, wrong = compare(advance, range(300), bias=1.0)
    assert (decided, wrong) == (0, 0)


def _with(**changed: object) -> Advance:
    """A wrong step: what ``advance`` would decide if it saw the world as the mutant does."""

    def step(search: Search, asked: Rules, scored: Scored) -> Search | None:
        known = [h for h in search.running if h.tokens in scored.place]
        missing = [h.score for h in search.running if h.tokens not in scored.place]
        if not known:
            return None
        candidates, complete = beam_rules.best_candidates(known, len(search.running[0].tokens) + 1, asked, scored)
        lead = candidates[0 if "first" in changed else -1].score
        enough = lead >= max(missing, default=-1e30) if "ties" in changed else lead > max(missing, default=-1e30)
        if missing and "unchecked" not in changed and not (complete and enough):
            return None
        return beam_rules.next_beams(search, asked, candidates)

    return step


MUTANTS = {
    "no check of what is missing": _with(unchecked=True),
    "the best candidate leads, not the last one needed": _with(first=True),
    "a tie taken for a lead": _with(ties=True),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_rules_are_caught(name: str) -> None:
    """Catches a test that any rule would pass."""
    assert compare(MUTANTS[name], range(800))[2] > 0


def test_domination_without_a_bound_is_caught() -> None:
    """Catches a test that would not notice domination under a positive bias."""
    assert compare(_with(), range(300), bias=1.0)[2] > 0


@pytest.mark.parametrize("seed", range(40))
def test_replay_ends_on_the_plain_search(seed: int) -> None:
    """Catches a replay that skips, repeats or invents steps, whatever part of the tree each run shows."""
    table, asked, drawn = Table(seed), rules(seed), random.Random(seed)
    states = plain(table, asked)
    state, total = Search.start(asked.beams), 0
    while not state.done:
        shown = {h.tokens for h in state.running} | {node for node in NODES if drawn.random() < 0.5}
        state, steps = replay(state, asked, table.showing(shown))
        total += steps
        assert steps >= 1 and state == states[total]
    assert state.finished == states[-1].finished


def test_scores_are_length_normalised_and_only_the_first_beams_may_end() -> None:
    """Catches an end taken from below the first w candidates, and a score not divided by length ** penalty."""
    asked = Rules(2, 9, lambda tokens: "eos" if tokens[-1] == 0 else None, 1, length_penalty=2.0)
    state = Search((Hypothesis((3,), -1.0), Hypothesis((4,), -2.0)))
    values = torch.tensor([[-0.5, -1.0, -3.0, -9.0], [-0.25, -0.5, -9.0, -9.0]])
    after = advance(state, asked, Scored({(3,): 0, (4,): 1}, values, [[1, 0, 2, 4], [0, 1, 2, 4]]))
    assert after is not None
    assert after.running == (Hypothesis((3, 1), -1.5), Hypothesis((4, 1), -2.5))
    assert after.finished == (Hypothesis((3, 0), -0.5, "eos"),)  # (4, 0) at -2.25 is only third
