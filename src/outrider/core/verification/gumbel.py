"""Matching: a guess is kept if and only if it is the token the target itself draws there.

With the target's own noise, shared by the draft, this is Gumbel coupling (Daliri et al. 2024): the output is
a function of the seed and the target alone, so it is the same text for every drafter, every gamma, and none.
At temperature 0 the distributions are one-hot and it is plain greedy verification.
"""

from __future__ import annotations

from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Choices, Draft, Verdict, Verifier
from outrider.core.verification.maximal import accepted_prefix, take


def _match(p: Tensor | Choices, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
    # What the target says at every position, [B, G+1].
    y = p.tokens if isinstance(p, Choices) else noise.winner("token", at, p)
    n = accepted_prefix(draft.proposed & (draft.tokens == y[:, :-1]))
    return Verdict(n, take(y, n))


gumbel_coupling = Verifier("gumbel", _match, exact=True, shares_noise=True, compares=True)
