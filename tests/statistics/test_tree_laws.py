"""The law of texts decoded with trees, over several runs of the product's own loop with its own noise."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from laws import PROMPT, TARGET, drafters

from outrider.core.noise import Noise
from outrider.core.sampling import Sampling
from outrider.core.verification.maximal import maximal_coupling
from outrider.core.verification.tree import happens, one_by_one
from outrider.decoding.loop import Decoder
from outrider.decoding.request import Request
from outrider.decoding.stopping import Stopping
from outrider.decoding.tree_growth import Behind, GrowthRules
from outrider.testing import assert_same_law, counts_of, exact_law
from outrider.trace import Trace

TEXTS, LENGTH = 1500, 2


def texts(drafter: object, nodes: int, gamma: int) -> torch.Tensor:
    """The first tokens of many texts; each goes on for longer, so that runs end in the middle of trees."""
    decoder = Decoder(TARGET, drafter, maximal_coupling, Sampling(1.0), gamma, tree=nodes)  # type: ignore[arg-type]
    requests = [Request(PROMPT, Stopping(LENGTH + 1), seed) for seed in range(TEXTS)]
    rows = {event.index: event.row for event in decoder.stream(requests, Trace())}
    return torch.tensor([rows[index].tokens[1:] for index in range(TEXTS)])


def law() -> torch.Tensor:
    """Of the second and third token."""
    return exact_law(TARGET, Sampling(1.0), PROMPT, LENGTH + 1).sum(0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["near", "far"])
def test_law_over_several_runs(name: str) -> None:
    """Catches noise that is used twice: by two runs, by two nodes, or by the draft and by the target."""
    found = counts_of(texts(drafters()[name], 4, 2), TARGET.vocab_size)
    assert_same_law(found, law(), detects=0.2, what=name)


def _laws(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """p and a q that is sure of other tokens."""
    chance = np.random.default_rng(seed)
    p, q = (torch.tensor(np.exp(scale * chance.normal(size=5))) for scale in (1, 3))
    return p / p.sum(), q / q.sum()


def decided(own_draws: bool = True, own_coins: bool = True, count: int = 8000) -> torch.Tensor:
    """How often each token is decided on, by the streams of noise that the loop uses; without its own: mutants."""
    p, q = _laws()
    rules, at = GrowthRules(3, 1, 5, Sampling(1.0), Noise(torch.tensor([0]))), torch.tensor([[7]])
    found = torch.zeros(5)
    for seed in range(count):
        noise = Noise(torch.tensor([seed]))
        drawn = Behind(q, None, -1).drawn(3, rules, noise.child("draft") if own_draws else noise, at)
        coins = happens if own_coins else lambda chance, noise, stream, at: happens(chance, noise, "accept", at)
        with mock.patch("outrider.core.verification.tree.happens", coins):
            found[one_by_one(p[None, None], drawn, q.numpy(), noise, at).token] += 1
    return found


def test_law_of_one_position_by_its_noise() -> None:
    """Catches candidates, coins and the last token drawn from numbers that are not independent."""
    assert_same_law(decided(), _laws()[0], detects=0.1)


@pytest.mark.parametrize("mutant", [{"own_draws": False}, {"own_coins": False}])
def test_numbers_that_are_used_twice_are_found(mutant: dict[str, bool]) -> None:
    """A test that cannot fail proves nothing: one coin for all candidates; candidates of the target's own race."""
    with pytest.raises(AssertionError, match="not the expected law"):
        assert_same_law(decided(**mutant), _laws()[0])
