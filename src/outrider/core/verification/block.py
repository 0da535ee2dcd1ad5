"""Block verification (Sun et al. 2024): the guesses of a run are judged together, and never fewer are kept.

Token by token, a guess that q overrates can end the row although the guesses around it are underrated. Jointly,
what counts is how much of the whole prefix x_1..x_i the target would have written:
w_i = min(1, w_(i-1) p(x_i) / q(x_i)), the probability with which at least i guesses are kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Verdict, Verifier
from outrider.core.verification.maximal import draw_rest, take


def _block(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
    """Keep the longest prefix that its own r allows, then draw from norm(max(0, w_n p - q)).

    Prefix i is allowed with probability h_i = m_i / (m_i + 1 - w_i), where m_i is the mass of max(0, w_i p - q)
    behind it. Where nothing is proposed behind it q is zero, and h_i is w_i: the end of a draft, of a ragged one
    too, needs no case of its own.
    """
    if draft.tokens.shape[1] == 0:  # p' is p: plain decoding need not work that out
        return Verdict(torch.zeros_like(at[:, 0]), noise.winner("token", at[:, :1], p)[:, 0])
    p = _numbers(p)
    guesses = draft.tokens.shape[1]
    w = prefix_weights(p, draft)  # [B, G+1], float64
    rest = (w[..., None].to(p.dtype) * p - draft.padded(like=p)).clamp(min=0)  # [B, G+1, V]
    mass = rest.sum(-1, dtype=torch.float64)  # [B, G+1]
    # Numbers of this run alone: they decide over positions that the next run may have to guess again.
    r = noise.of_run(at).uniform("accept", at[:, :guesses])  # [B, G]
    allowed = draft.proposed & (r * (mass + 1 - w)[:, 1:] <= mass[:, 1:])  # prefixes of 1..G guesses
    place = torch.arange(guesses + 1, device=p.device)
    n = (torch.nn.functional.pad(allowed, (1, 0)) * place).amax(-1)  # the longest one, not the first refusal
    return Verdict(n, draw_rest(take(rest, n), take(p, n), noise, take(at, n)))


def _numbers(p: Tensor) -> Tensor:
    """p [B, G+1, V] with an even distribution wherever it is none.

    A row ends at such a place and what is drawn there is discarded, but p behind a guess has a say in whether the
    guess is kept: any distribution there leaves the tokens before it their distribution, and NaN does not.
    """
    most = p.amax(-1)  # NaN where p has one
    return p.masked_fill((most - most != 0)[..., None], 1 / p.shape[-1])


def prefix_weights(p: Tensor, draft: Draft) -> Tensor:
    """w_0 = 1, w_1, ... w_G -> [B, G+1]: the share of each drafted prefix that the target would have written.

    In float64: a product of G ratios of rounded numbers is compared with what is left of one.
    """
    guesses = draft.tokens.shape[1]
    p_of_x = p[:, :guesses].gather(-1, draft.tokens[..., None])[..., 0]  # [B, G]
    ratio = p_of_x.to(torch.float64) / draft.of_tokens().to(torch.float64)
    w = [torch.ones_like(p[:, 0, 0], dtype=torch.float64)]
    for i in range(guesses):
        w.append((w[-1] * ratio[:, i]).clamp(max=1))
    return torch.stack(w, 1)


block_coupling = Verifier("block", _block, exact=True, shares_noise=False, looks_ahead=True)
