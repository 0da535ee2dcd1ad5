"""Trees proved, not sampled: the distribution of a step, added up over all draws of a tree and all judgements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from tree_worlds import SIZE, TreeWorld, bias_of_candidates, distance

from outrider.core.draft import Choices, Draft
from outrider.core.noise import Noise, Silence
from outrider.core.token_tree import ROOT, TokenTree
from outrider.core.verification.block import block_coupling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.lenient import lenient
from outrider.core.verification.maximal import maximal_coupling
from outrider.core.verification.tree import (
    Decision,
    NodeRule,
    Probabilities,
    Residual,
    TreeDraft,
    by_matching,
    one_by_one,
    tree_rule,
    walk,
)
from outrider.decoding.tree_growth import FIRST_CANDIDATE, GrowthRules, TreePlace, best, grow
from outrider.errors import BadOption
from outrider.planning.tree_costs import SampledOutlook

CLOSE = 1e-6


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 6])
def test_law_of_a_step_is_the_targets(seed: int, nodes: int) -> None:
    """Catches any wrong chance, residual or renormalisation, and trees whose form knows what was drawn."""
    assert distance(TreeWorld.random(seed, nodes, depth=2)) < CLOSE


@pytest.mark.parametrize("seed", range(3))
def test_law_of_deeper_trees(seed: int) -> None:
    """Catches what two levels cannot show: nodes that are pruned after others were drawn behind them."""
    assert distance(TreeWorld.random(seed, nodes=3, depth=3, sharpness=2.5)) < CLOSE


@pytest.mark.parametrize("seed", range(4))
def test_law_with_floors_and_point_masses(seed: int) -> None:
    """Catches places that are left out by what they hold, and candidates that nobody drew judged as if drawn."""
    world = TreeWorld.random(seed, nodes=4, depth=2)
    floored = replace(world, floors=(0.1, 0.2, 0.25, 0.3))
    assert distance(floored) < CLOSE
    sure = {text: len(text) % SIZE if sum(text) % 2 else distribution for text, distribution in world.q.items()}
    assert distance(replace(world, q=sure)) < CLOSE


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 6))
def test_law_of_one_position(seed: int, candidates: int, size: int) -> None:
    """Catches a q that is not renormalised after a rejection: all orders of all candidates, added up."""
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(size) * 0.5), rng.dirichlet(np.ones(size) * 0.5)
    distribution = np.zeros(size)
    for order in permutations(range(size), min(candidates, size)):
        left, chance = Residual(p, q), 1.0
        rest, share = q.copy(), 1.0
        for x in order:  # drawn one by one, whatever becomes of those before
            share *= rest[x] / rest.sum() if rest.sum() > 0 else 0
            rest[x] = 0
        for x in order:
            kept = left.chance(x)
            distribution[x] += share * chance * kept
            chance *= 1 - kept
            left.reject(x)
        distribution += share * chance * left.p
    np.testing.assert_allclose(distribution, p, atol=1e-9)


def test_one_candidate_is_maximal_coupling() -> None:
    """Catches a tree that is a chain and is judged in any other way than chains are."""
    generator = torch.Generator().manual_seed(3)
    p, q = (torch.randn((2, 400, 7), generator=generator).softmax(-1)).unbind()
    at, noise = torch.tensor([[9]]), Noise(torch.tensor([0]))
    for place in range(400):
        own = Noise(torch.tensor([place]))
        x = int(own.child("draft").winner("token", at, q[None, place : place + 1]))
        draft = Draft(torch.tensor([[x]]), q[None, place : place + 1], torch.tensor([[True]]))
        after = torch.stack([p[place], p[0]])[None]
        verdict = maximal_coupling(after, draft, own, torch.tensor([[9, 10]]))
        found = one_by_one(p[None, place : place + 1], [x], q[place].double().numpy(), own, at)
        assert (found.kept is not None) == bool(verdict.accepted)
        assert found.kept is not None or found.token == int(verdict.token)
    assert noise.is_the_targets


def never_renormalised(
    p: Tensor | Choices, candidates: Sequence[int], q: Probabilities | None, noise: Noise, at: Tensor
) -> Decision:
    """A mutant: the second candidate is judged by the q of the first."""

    class Wrong(Residual):
        def reject(self, x: int) -> None:
            q = self.q
            super().reject(x)
            self.q = q

    return _with(Wrong, p, candidates, q, noise, at)


def from_p_itself(
    p: Tensor | Choices, candidates: Sequence[int], q: Probabilities | None, noise: Noise, at: Tensor
) -> Decision:
    """A mutant: every candidate is judged by p, and the last token is drawn from it."""

    class Wrong(Residual):
        def reject(self, x: int) -> None:
            p = self.p
            super().reject(x)
            self.p = p

    return _with(Wrong, p, candidates, q, noise, at)


def _with(
    kind: Any, p: Tensor | Choices, candidates: Sequence[int], q: Probabilities | None, noise: Noise, at: Tensor
) -> Decision:
    with mock.patch("outrider.core.verification.tree.Residual", kind):
        return one_by_one(p, candidates, q, noise, at)


@pytest.mark.parametrize("mutant", [never_renormalised, from_p_itself])
def test_wrong_rules_are_found(mutant: NodeRule) -> None:
    """A test that cannot fail proves nothing."""
    assert max(distance(TreeWorld.random(seed, 3, depth=1), mutant) for seed in range(4)) > 0.01


def peeking(oracle: Any, rules: Any, start: int) -> TreeDraft:
    """A mutant: of all candidates behind the text, those with the largest q are run, as with topk after drawing."""
    draft = grow(oracle, replace(rules, depth=1, nodes=SIZE - 1), start)
    q = draft.probabilities(ROOT)
    assert q is not None
    likeliest = max(draft.tree.tokens, key=lambda token: float(q[token]))
    return TreeDraft(TokenTree((likeliest,), (ROOT,)), lambda node: q)


def by_what_follows(oracle: Any, rules: Any, start: int) -> TreeDraft:
    """A mutant: a guess is run only if the drafter is sure of what follows it."""
    draft = grow(oracle, replace(rules, nodes=2, floors=()), start)
    node = draft.tree.children(ROOT)[0]
    q = draft.probabilities(node) if draft.tree.children(node) else None
    return draft if q is None or q.max() > 0.7 else TreeDraft(TokenTree((), ()))


def third_candidates(nodes: int, floors: tuple[float, ...] = ()) -> TreeWorld:
    """A drafter that is unsure behind two tokens, sure behind a third and knows nothing behind a fourth."""
    behind = {0: [0.35, 0.35, 0.2, 0.1, 0, 0], 1: [0.45, 0.45, 0.1, 0, 0, 0], 2: [1.0, 0, 0, 0, 0, 0]}
    rows = {text: behind[1 if text[0] < 2 else 2] for n in (1, 2) for text in product(range(6), repeat=n)}
    rows |= {(3,): [1 / 6] * 6} | {text: behind[2] for text in rows if len(text) == 2}
    q = {text: torch.tensor(row, dtype=torch.float64) for text, row in {(): behind[0], **rows}.items()}
    return TreeWorld({}, dict(q), nodes, 3, floors, 6, SampledOutlook().outlook)


def by_the_worst_place(places: Sequence[TreePlace], rules: GrowthRules) -> set[TreePlace]:
    """A mutant: who is asked for what follows goes by the last of the best places, which may hang on any token."""
    worst = places[-1].value if len(places) == rules.nodes else 0.0
    floor = rules.floors[min(len(places), len(rules.floors) - 1)] if rules.floors else 0.0
    return {place for place in places if place.value * FIRST_CANDIDATE > max(worst, floor)}


def test_what_is_kept_was_drawn_without_being_looked_at() -> None:
    """Catches places that stay or go by what follows them: the text was biased by six of a hundred tokens."""
    assert bias_of_candidates(third_candidates(6)) < CLOSE and bias_of_candidates(third_candidates(7)) < CLOSE
    assert bias_of_candidates(third_candidates(9, floors=(0.0,) * 6 + (0.04, 0.08, 0.08))) < CLOSE
    with mock.patch("outrider.decoding.tree_growth.promising", by_the_worst_place):
        assert bias_of_candidates(third_candidates(6)) > 0.2


@pytest.mark.parametrize("mutant", [peeking, by_what_follows])
def test_a_tree_that_knows_its_tokens_is_found(mutant: Any) -> None:
    """Catches places that are taken by what was drawn for them: the usual reranking of trees by probabilities."""
    assert max(distance(TreeWorld.random(seed, 2, depth=2), growing=mutant) for seed in range(8)) > 0.01


def _as_point_masses(
    p: Tensor | Choices, candidates: Sequence[int], q: Probabilities | None, noise: Noise, at: Tensor
) -> Decision:
    return one_by_one(p, candidates, None, noise, at)


def test_point_masses_may_be_chosen_by_anything() -> None:
    """Catches a residual of point masses that is not p without them: any candidates are exact so, by any choice."""
    for seed in range(4):
        assert distance(TreeWorld.random(seed, 3, depth=2), _as_point_masses) < CLOSE
        assert distance(TreeWorld.random(seed, 2, depth=2), _as_point_masses, growing=peeking) < CLOSE


def test_matching_finds_the_targets_own_token() -> None:
    """Catches a candidate that is kept, or missed, where it is not, or is, the token plain decoding gives."""
    noise, at = Noise(torch.tensor([5])), torch.tensor([[3]])
    p = torch.tensor([[[0.1, 0.5, 0.4]]])
    y = int(noise.winner("token", at, p))
    others = [x for x in range(3) if x != y]
    assert by_matching(p, [others[0], y], None, noise, at) == Decision(1, y)
    assert by_matching(p, others, None, noise, at) == Decision(None, y)
    best_token = Choices(torch.tensor([[2]]), torch.ones((1, 1)))
    assert by_matching(best_token, [0, 1, 2], None, Silence(torch.tensor([5])), at) == Decision(2, 2)


def test_a_walk_ends_at_logits_that_are_no_numbers() -> None:
    """Catches a text that goes on behind NaN, or loses the tokens before it."""
    tree = TokenTree((1, 2), (ROOT, 0))
    p = {ROOT: torch.tensor([[[0.0, 1.0, 0.0]]]), 0: torch.full((1, 1, 3), torch.nan)}
    verdict = walk(TreeDraft(tree), lambda node: p[node], by_matching, Noise(torch.tensor([0])), 4)
    assert verdict.path == (0,) and verdict.healthy == 1


def test_rules_that_judge_chains_only_are_refused() -> None:
    """Catches a coupling that is ignored."""
    assert tree_rule(gumbel_coupling) is by_matching and tree_rule(maximal_coupling) is one_by_one
    for rule in (block_coupling, lenient(0.5)):
        with pytest.raises(BadOption, match="tree"):
            tree_rule(rule)


def test_parents_come_before_their_children() -> None:
    """Catches a tie between a sure guess and its parent that leaves a child without it."""
    places = [TreePlace(0.5, 2, 0, 0), TreePlace(0.5, 1, ROOT, 0), TreePlace(0.5, 1, ROOT, 1)]
    rules = TreeWorld.random(0, 2, 2).rules(Noise(torch.tensor([0])))
    assert [place.depth for place in best(places, rules)] == [1, 1]
