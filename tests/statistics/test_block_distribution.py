"""Block verification through the product's own step and drafters: joint distributions over several runs, and mutants.

Chi-square with a false-failure rate of 1e-9 each; what one run's enumeration cannot see is noise used by two runs.
"""

from __future__ import annotations

import pytest
import torch
from distributions import PROMPT, RAGGED, SAMPLINGS, TARGET, check_distribution, drafters
from torch import Tensor

from outrider.core.algorithm import speculative_step
from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Shape, Verdict, Verifier
from outrider.core.sampling import Sampling
from outrider.core.verification.block import block_coupling
from outrider.core.verification.maximal import maximal_coupling


@pytest.mark.parametrize("name", ["near", "far", "cool", "uniform", "copy", "table"])
def test_distribution_for_every_kind_of_drafter(name: str) -> None:
    """Catches a bias for good, bad, point-mass and ragged drafts."""
    check_distribution(drafters()[name], block_coupling, rows=60_000, gamma=3, detects=0.026)


@pytest.mark.parametrize("sampling", ["top-k", "penalties"])
def test_distribution_with_options(sampling: str) -> None:
    """Catches p and q of different supports judged jointly: zeros in either."""
    check_distribution(drafters()["near"], block_coupling, SAMPLINGS[sampling], rows=60_000, detects=0.03)


def test_joint_distribution_of_three_tokens_over_several_runs() -> None:
    """Catches what a run leaves behind for the next one."""
    check_distribution(drafters()["uniform"], block_coupling, rows=100_000, length=3, gamma=3, detects=0.025)


def test_ragged_batch() -> None:
    """Catches weights or noise of another row when rows have different lengths and drafts."""
    check_distribution(drafters()["copy"], block_coupling, prompts=RAGGED, rows=60_000, gamma=3, detects=0.035)


class _Unforgetful(Noise):
    """Noise whose runs are not told apart: every number is addressed by its position alone."""

    def of_run(self, at: Tensor) -> Noise:
        return self


def _same_uniforms_every_run(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
    return block_coupling(p, draft, _Unforgetful(noise.seeds, noise.path), at)


def _one_uniform_for_the_block(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
    """Another project's correction of its block rule; it needs a number of its own for every prefix."""

    class One(Noise):
        def of_run(self, at: Tensor) -> Noise:
            return self

        def uniform(self, stream: str, at: Tensor) -> Tensor:
            return noise.of_run(at).uniform(stream, at)[:, :1].expand_as(at)

    return block_coupling(p, draft, One(noise.seeds, noise.path), at)


MUTANTS = {
    "draft noise of the next run": Verifier("m", block_coupling.rule, exact=True, shares_noise=False),
    "uniforms of the next run": Verifier("m", _same_uniforms_every_run, True, False, looks_ahead=True),
    "one uniform": Verifier("m", _one_uniform_for_the_block, True, False, looks_ahead=True),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_noise_is_caught(mutant: str) -> None:
    """Catches a distribution test blind to numbers that decide twice."""
    with pytest.raises(AssertionError, match="not the expected distribution"):
        # Each shows best with a draft of its kind: a uniform that decides twice needs guesses that are often kept.
        drafter, gamma = ("near", 2) if mutant.startswith("uniforms") else ("uniform", 3)
        check_distribution(drafters()[drafter], MUTANTS[mutant], rows=80_000, gamma=gamma, detects=0.025)


def kept(verifier: Verifier, rows: int = 60_000, gamma: int = 3) -> Tensor:
    """How many of gamma guesses each row keeps in its first run -> counts [gamma + 1]."""
    shape = Shape(capacity=32, width=gamma + 1)
    target = TARGET.start(1, shape)
    drafting = drafters()["near"].start(1, shape, target)
    for session in (target, drafting):
        session.admit(0, PROMPT)
        session.select(torch.zeros(rows, dtype=torch.int64))
    step = speculative_step(target, drafting, verifier, Sampling(1.0), Noise(torch.arange(rows)), gamma)
    return torch.bincount(step.count - 1, minlength=gamma + 1)


def test_more_guesses_are_kept_than_token_by_token() -> None:
    """Catches a block rule that has turned into the token-wise one: at least as many at every length, more in all."""
    jointly, token_wise = kept(block_coupling), kept(maximal_coupling)
    at_least = [counts.flip(0).cumsum(0).flip(0)[1:] / counts.sum() for counts in (jointly, token_wise)]
    spread = 6 * 0.5 / 60_000**0.5  # six standard deviations of a share: one false failure in a billion
    assert bool((at_least[0] >= at_least[1] - spread).all())
    assert float(at_least[0].sum()) > float(at_least[1].sum()) + 3 * spread
