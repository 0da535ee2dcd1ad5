"""Maximal coupling: the papers' rule, which accepts as often as any rule that keeps the distribution can."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from outrider.core import host_sync
from outrider.core.draft import FEW_ROWS
from outrider.core.noise import Noise, vocabulary_counter
from outrider.core.numpy_ops import loaded_kernel, whole
from outrider.core.protocols import Draft, Verdict, Verifier


def accepted_prefix(kept: Tensor) -> Tensor:
    """The first rejection ends a row: kept [B, G] bool -> n [B]."""
    return kept.to(torch.int64).cumprod(-1).sum(-1)


def take(values: Tensor, n: Tensor) -> Tensor:
    """values[b, n[b]] for every row: [B, K, ...] -> [B, ...]."""
    if values.dim() == 2:
        return values.gather(1, n[:, None])[:, 0]
    if len(n) <= FEW_ROWS and host_sync.free(values.device):  # a copy of each: torch would start threads to gather them
        if len(n) == 1:
            return values[:, int(n)]
        return torch.stack([values[row, k] for row, k in enumerate(n.tolist())])
    return values[torch.arange(n.shape[0], device=n.device), n]


def _maximal(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
    """Keep x_i with probability min(1, p/q), else draw from norm(max(0, p - q)): Leviathan section 2.3."""
    if draft.tokens.shape[1] == 0:  # p' is p: plain decoding need not work that out
        return Verdict(torch.zeros_like(at[:, 0]), noise.winner("token", at[:, :1], p)[:, 0])
    compiled = in_one_call(p, draft, noise, at)
    return compiled or corrected(p, draft, kept(p, draft, noise, at), noise, at)


def in_one_call(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict | None:
    """The verdict on one row whose drafter knows some tokens, in one call; None where there is none for it."""
    if len(p) != 1 or draft.probs is None or draft.support is None or not noise.keyed or not draft.on_host(p):
        return None
    judge = loaded_kernel("verdicts", "judge")
    if judge is None or not p.dtype == draft.probs.dtype == torch.float32:
        return None
    accepting, drawing = noise.keys("accept", at[:, :-1]), noise.keys("token", at)
    n, token = judge(
        p[0].numpy(), draft.tokens[0].numpy(), draft.proposed[0].numpy(), draft.probs[0].numpy(), draft.support.numpy(),
        accepting[0].numpy(), drawing[0].numpy(), vocabulary_counter(p.shape[2], p.device).numpy(),
    )  # fmt: skip
    return None if n < 0 else Verdict(whole(np.array([n])), whole(np.array([token])))


def kept(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Tensor:
    """Guesses before the first i with r_i > p_i(x_i) / q_i(x_i) -> n [B]."""
    if draft.on_host(p):
        return _kept_on_host(p, draft, noise, at)
    guesses = draft.tokens.shape[1]
    r = noise.uniform("accept", at[:, :guesses])  # [B, G]
    p_of_x = p[:, :guesses].gather(-1, draft.tokens[..., None])[..., 0]  # [B, G]
    possible = draft.proposed & (p_of_x > 0)  # of a tiny q the product may be rounded to zero
    return accepted_prefix(possible & (r * draft.of_tokens() <= p_of_x))


def _kept_on_host(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Tensor:
    """The same of a few numbers, which take torch longer to fetch than to compare."""
    random = noise.uniform("accept", at[:, : draft.tokens.shape[1]]).numpy()
    shares, q_of, found = p.numpy(), draft.one_by_one(), list[int]()
    for row, (tokens, proposed) in enumerate(zip(draft.tokens.tolist(), draft.proposed.tolist(), strict=True)):
        n = 0
        while n < len(tokens) and proposed[n]:
            share, least = shares[row, n, tokens[n]], random[row, n]
            least = least if q_of is None else least * q_of(row, n, tokens[n])
            if not (share > 0 and least <= share):
                break
            n += 1
        found.append(n)
    return whole(np.array(found))


def corrected(p: Tensor, draft: Draft, n: Tensor, noise: Noise, at: Tensor) -> Verdict:
    """n guesses, then t from the adjusted distribution p'."""
    p_n = take(p, n)  # [B, V]
    rest = draft.taken_from(p_n, n)  # p' unnormalised; p itself where nothing was proposed
    return Verdict(n, draw_rest(rest, p_n, noise, take(at, n)))


def draw_rest(rest: Tensor, p: Tensor, noise: Noise, at: Tensor) -> Tensor:
    """t at positions ``at`` [B] from weights ``rest`` [B, V] -> [B]."""
    if rest.device.type != "cpu" or bool((rest.numpy().max(-1) <= 0).any()):  # a GPU is asked nothing
        # Where rounding left nothing (p and q equal to the last bit, yet rejected), p is the right limit.
        rest = rest + p * (rest.amax(-1, keepdim=True) <= 0)
    return noise.winner("token", at[:, None], rest[:, None])[:, 0]


maximal_coupling = Verifier("maximal", _maximal, exact=True, shares_noise=False)
