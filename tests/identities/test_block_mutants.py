"""Wrong forms of block verification: each could be somebody's bug, and must break the enumerated distribution."""

from __future__ import annotations

import pytest
import torch
from block_worlds import emitted_distribution, random_world, target_distribution
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Verdict
from outrider.core.verification.block import prefix_weights
from outrider.core.verification.maximal import draw_rest, take


class Parts:
    """Block verification in its parts; a mutant replaces one."""

    def weights(self, p: Tensor, draft: Draft) -> Tensor:
        return prefix_weights(p, draft)

    def rest(self, w: Tensor, p: Tensor, q: Tensor) -> Tensor:
        return (w[..., None] * p - q).clamp(min=0)

    def uniforms(self, noise: Noise, at: Tensor) -> Tensor:
        return noise.of_run(at).uniform("accept", at[:, :-1])

    def allowed(self, r: Tensor, w: Tensor, mass: Tensor) -> Tensor:
        return r * (mass + 1 - w)[:, 1:] <= mass[:, 1:]

    def longest(self, allowed: Tensor) -> Tensor:
        place = torch.arange(1, allowed.shape[1] + 1)
        return (allowed * place).amax(-1)

    def rule(self, p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
        w, q = self.weights(p, draft), draft.padded(like=p)
        mass = (w[..., None] * p - q).clamp(min=0).sum(-1)
        n = self.longest(draft.proposed & self.allowed(self.uniforms(noise, at), w, mass))
        rest = self.rest(w.to(p.dtype), p, q)
        return Verdict(n, draw_rest(take(rest, n), take(p, n), noise, take(at, n)))


class TokenWiseResidual(Parts):
    """vllm-ascend#7807: after the joint decision, t still comes from max(0, p - q)."""

    def rest(self, w: Tensor, p: Tensor, q: Tensor) -> Tensor:
        return (p - q).clamp(min=0)


class ProductOfUniforms(TokenWiseResidual):
    """vllm-ascend#3794, as it was: the product of the ratios against the product of the uniforms."""

    def allowed(self, r: Tensor, w: Tensor, mass: Tensor) -> Tensor:
        return r.cumprod(-1) <= w[:, 1:]


class WeightForThreshold(Parts):
    """h_i = w_i everywhere, which is right for the last guess only."""

    def allowed(self, r: Tensor, w: Tensor, mass: Tensor) -> Tensor:
        return r <= w[:, 1:]


class NoCut(Parts):
    """w without min(1, .): a lucky prefix lends its surplus to a later guess."""

    def weights(self, p: Tensor, draft: Draft) -> Tensor:
        ratio = p[:, :-1].gather(-1, draft.tokens[..., None])[..., 0] / draft.of_tokens()
        return torch.nn.functional.pad(ratio.cumprod(-1), (1, 0), value=1.0)


class CutRatios(Parts):
    """w as the product of min(1, p/q): token by token in disguise."""

    def weights(self, p: Tensor, draft: Draft) -> Tensor:
        ratio = p[:, :-1].gather(-1, draft.tokens[..., None])[..., 0] / draft.of_tokens()
        return torch.nn.functional.pad(ratio.clamp(max=1).cumprod(-1), (1, 0), value=1.0)


class FirstRefusal(Parts):
    """The first prefix refused ends the row, as it does token by token."""

    def longest(self, allowed: Tensor) -> Tensor:
        return allowed.to(torch.int64).cumprod(-1).sum(-1)


class WeightBefore(Parts):
    """The residual with the weight one guess too early."""

    def rest(self, w: Tensor, p: Tensor, q: Tensor) -> Tensor:
        return super().rest(torch.cat([w[:, :1], w[:, :-1]], 1), p, q)


WRONG = [TokenWiseResidual, ProductOfUniforms, WeightForThreshold, NoCut, CutRatios, FirstRefusal, WeightBefore]


def test_the_parts_put_together_are_the_rule() -> None:
    """Catches a scaffold that is itself wrong."""
    world = random_world(2, 5)
    torch.testing.assert_close(emitted_distribution(world, Parts().rule), target_distribution(world), atol=1e-8, rtol=0)


@pytest.mark.parametrize("mutant", WRONG)
def test_wrong_rules_break_the_distribution(mutant: type[Parts]) -> None:
    """Catches an enumeration that cannot fail. The distance is total variation, far above rounding."""
    worst = 0.0
    for seed in range(3):
        world = random_world(2, seed)
        worst = max(
            worst, float((emitted_distribution(world, mutant().rule) - target_distribution(world)).abs().sum() / 2)
        )
    assert worst > 1e-3
