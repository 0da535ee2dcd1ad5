"""Lenience (Leviathan et al. 2023, A.5): more guesses kept, for a text that is not the target's any more.

Sampled, no token is emitted with more than 1/l times its probability; greedy, no guess is kept that has less than
l times the probability of the best token. Nothing bounds a token from below: rare ones may get rarer.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Verdict, Verifier
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import accepted_prefix, corrected, kept, take
from outrider.errors import require


def lenient(lenience: float) -> Verifier:
    """Keep x with probability min(1, p / (l q)), else draw from norm(max(0, p - q)). With l = 1: maximal coupling.

    The correction is Algorithm 1's own. It goes to none but the tokens that q underrates, so among all distributions
    with this acceptance the text's is the nearest to p.
    """
    _check(lenience)

    def ceiling(p: Tensor) -> Tensor:
        return p / lenience

    def rule(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
        return corrected(p, draft, kept(ceiling(p), draft, noise, at), noise, at)

    return Verifier(_name(lenience), rule, exact=lenience == 1, shares_noise=False, ceiling=ceiling)


def lenient_greedy(lenience: float) -> Verifier:
    """Temperature 0: keep x if p(x) >= l max p, else emit the best token. With l = 1 it is greedy verification.

    The p meant is the one before it was made one-hot, so this rule asks for temperature 1. (The paper prints the
    comparison the other way round; its text and its numbers mean this one.) At l = 1 a token that ties with the
    best would be kept where greedy decoding takes the first of the two, hence the exact rule itself.
    """
    _check(lenience)
    if lenience == 1:
        return gumbel_coupling

    def ceiling(p: Tensor) -> Tensor:
        return (p >= lenience * p.amax(-1, keepdim=True)).to(p.dtype)

    def rule(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
        guesses = draft.tokens.shape[1]
        good = ceiling(p[:, :guesses]).gather(-1, draft.tokens[..., None])[..., 0] > 0  # [B, G]
        n = accepted_prefix(draft.proposed & good)
        return Verdict(n, noise.winner("token", take(at, n)[:, None], take(p, n)[:, None])[:, 0])

    return Verifier(_name(lenience), rule, exact=False, shares_noise=False, sees=_unscaled, ceiling=ceiling)


def _unscaled(sampling: Sampling) -> Sampling:
    return replace(sampling, temperature=1.0)


def _name(lenience: float) -> str:
    return f"lenience {lenience!r}"  # all digits: captured steps are found by it


def _check(lenience: float) -> None:
    require(0 < lenience <= 1, f"lenience must be above 0 and at most 1, got {lenience!r}")
