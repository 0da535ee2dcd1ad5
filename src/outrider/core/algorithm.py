"""Speculative decoding on one screen, beside Algorithm 1 of Leviathan et al. 2023 and Algorithm 2 of Chen et al.

Paper -> code: M_p target, M_q drafter, x_i draft.tokens, q_i draft.probs, p_i p, n verdict.accepted,
t verdict.token.  Shapes: B rows, G = gamma, V vocabulary.  The acceptance rule itself, with r_i and p',
is ``core/verification/maximal.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.numpy_ops import highest
from outrider.core.protocols import Choices, Draft, DraftSession, Scoring, Session, Verdict, Verifier
from outrider.core.sampling import Sampling, choices, standardise


@dataclass(frozen=True)
class Step:
    """What one target run decided, still on the device: read it once, where tokens are emitted."""

    emitted: Tensor  # [B, G+1]: n guesses from M_q, then t from M_p
    count: Tensor  # [B]: how many of them count, n + 1
    draft: Draft
    overlap: Tensor  # [B, G]: sum-min(p, q) of each guess, p/l with lenience
    p: Tensor | Choices  # [B, G+1, V]: what each emitted token follows, for whoever drafts with this step

    @property
    def finite(self) -> Tensor:
        """[B]: how many leading tokens rest on finite logits. ``standardise`` makes NaN of all others."""
        most = self.p.weight if isinstance(self.p, Choices) else highest(self.p)  # [B, G+1]; NaN goes through
        return most.isfinite().to(torch.int64).cumprod(-1).sum(-1)


def speculative_step(
    target: Scoring, drafter: DraftSession, verify: Verifier, sampling: Sampling, noise: Noise, gamma: int
) -> Step:
    """SpeculativeDecodingStep for a batch of rows: between 1 and gamma+1 tokens each, from one target run."""
    at = target.context.positions(gamma + 1)  # [B, G+1] absolute positions
    draft = drafter.propose(gamma, sampling, verify.noise_for_draft(noise, at), at)  # x_1..x_G from M_q
    draft = draft.usable(target.vocab_size)  # up to the first q that is no number
    at = at[:, : draft.tokens.shape[1] + 1]  # a drafter may have fewer guesses than asked for
    logits = target.score(draft.tokens)  # [B, G+1, V]: M_p on every prefix, one run
    seen = verify.sees(sampling)
    probabilities = choices if seen.greedy and verify.compares else standardise  # at temperature 0 tokens say it all
    p = probabilities(logits, seen, target.context, draft.tokens)
    verdict = verify(p, draft, noise, at)  # n accepted, t from the adjusted distribution
    emitted, count = splice(draft.tokens, verdict)
    step = Step(emitted, count, draft, draft.overlap(verify.ceiling(p)), p)
    target.commit(emitted, count)
    drafter.commit(emitted, count)
    return step


def splice(guesses: Tensor, verdict: Verdict) -> tuple[Tensor, Tensor]:
    """n guesses, then t: -> tokens [B, G+1] and how many of them count [B]."""
    padded = torch.nn.functional.pad(guesses, (0, 1))
    return padded.scatter(1, verdict.accepted[:, None], verdict.token[:, None]), verdict.accepted + 1


def autoregressive_step(target: Session, sampling: Sampling, noise: Noise) -> Tensor:
    """Plain decoding, the loop that speculation must equal: one token per row [B] from one target run."""
    at = target.context.positions(1)
    p = standardise(target.score(at[:, :0]), sampling, target.context, at[:, :0])
    token = noise.winner("token", at, p)  # [B, 1]
    target.commit(token, torch.ones_like(token[:, 0]))
    return token[:, 0]
