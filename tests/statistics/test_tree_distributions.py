"""The distribution of texts decoded with trees, over several runs of the product's own loop with its own noise."""

from __future__ import annotations

from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest
import torch
from distributions import PROMPT, TARGET, drafters

from outrider.core.noise import Noise
from outrider.core.sampling import Sampling
from outrider.core.verification.maximal import maximal_coupling
from outrider.core.verification.tree import happens, one_by_one
from outrider.decoding.loop import Decoder
from outrider.decoding.request import Request
from outrider.decoding.stopping import Stopping
from outrider.decoding.tree_growth import Behind, GrowthRules
from outrider.testing import assert_same_distribution, counts_of, exact_distribution
from outrider.trace import Trace

TEXTS, LENGTH = 1500, 2


def texts(drafter: object, nodes: int, gamma: int) -> torch.Tensor:
    """The first tokens of many texts; each goes on for longer, so that runs end in the middle of trees."""
    decoder = Decoder(TARGET, drafter, maximal_coupling, Sampling(1.0), gamma, tree=nodes)  # type: ignore[arg-type]
    requests = [Request(PROMPT, Stopping(LENGTH + 1), seed) for seed in range(TEXTS)]
    rows = {event.index: event.row for event in decoder.stream(requests, Trace())}
    return torch.tensor([rows[index].tokens[1:] for index in range(TEXTS)])


def distribution() -> torch.Tensor:
    """Of the second and third token."""
    return exact_distribution(TARGET, Sampling(1.0), PROMPT, LENGTH + 1).sum(0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["near", "far"])
def test_law_over_several_runs(name: str) -> None:
    """Catches noise that is used twice: by two runs, by two nodes, or by the draft and by the target."""
    found = counts_of(texts(drafters()[name], 4, 2), TARGET.vocab_size)
    assert_same_distribution(found, distribution(), detects=0.2, what=name)


def _laws(sharpness: float) -> tuple[torch.Tensor, torch.Tensor]:
    """p, and q, which may be surer of other tokens."""
    chance = np.random.default_rng(0)
    p, q = (torch.tensor(np.exp(scale * chance.normal(size=5))) for scale in (1, sharpness))
    return p / p.sum(), q / q.sum()


@dataclass(frozen=True)
class Decided:
    """Tokens decided on by the streams of noise that the loop uses; one coin or one race for all: mutants."""

    candidates: int
    sharpness: float
    own_coins: bool = True
    own_draws: bool = True
    count: int = 8000

    def counts(self) -> torch.Tensor:
        p, q = _laws(self.sharpness)
        rules, at = GrowthRules(3, 1, 5, Sampling(1.0), Noise(torch.tensor([0]))), torch.tensor([[7]])
        coins = happens if self.own_coins else lambda chance, noise, stream, at: happens(chance, noise, "accept", at)
        found = torch.zeros(5)
        with mock.patch("outrider.core.verification.tree.happens", coins):
            for seed in range(self.count):
                noise = Noise(torch.tensor([seed]))
                draws = noise.child("draft") if self.own_draws else noise
                drawn = Behind(q, None, -1).drawn(self.candidates, rules, draws, at)
                found[one_by_one(p[None, None], drawn, q.numpy(), noise, at).token] += 1
        return found

    def check(self, detects: float | None = None) -> None:
        assert_same_distribution(self.counts(), _laws(self.sharpness)[0], detects=detects)


@pytest.mark.parametrize("world", [Decided(3, 3.0), Decided(1, 1.0), Decided(2, 1.0)])
def test_law_of_one_position_by_its_noise(world: Decided) -> None:
    """Catches candidates, coins and the last token drawn from numbers that are not independent."""
    world.check(detects=0.1)


@pytest.mark.parametrize("mutant", [Decided(3, 3.0, own_coins=False), Decided(1, 1.0, own_draws=False, count=20_000)])
def test_numbers_that_are_used_twice_are_found(mutant: Decided) -> None:
    """A test that cannot fail proves nothing: one coin for all candidates; candidates of the target's own race.

    With several candidates the second mutant is nearly right, and not found: what is left of a race is memoryless.
    """
    with pytest.raises(AssertionError, match="not the expected distribution"):
        mutant.check()
