"""Drafters no one would write on purpose: bad q, no q, guesses that stop, errors, second thoughts. All are honest:
where a guess is proposed with a q that is one, the guess was drawn from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.noise import Noise, counter_of
from outrider.core.protocols import Draft, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.core.traits import DrafterTraits
from outrider.drafters.base import ContextSession

BROKEN = {"zero": 0.0, "nan": float("nan"), "inf": float("inf")}


@dataclass(frozen=True)
class Hostile:
    """Draws from q of its own, a random table by the last token, whatever the target's options are."""

    seed: int
    sharpness: float = 2.0
    support: tuple[int, ...] = ()  # the only tokens it knows; (): all
    told: bool = False  # q is given over the support alone
    points: bool = False  # no q: it proposes the likeliest token
    broken: str = ""  # "zero", "nan" or "inf": what q is behind some tokens
    broken_share: float = 0.0
    stops: bool = False  # guesses end behind some tokens, so rows are ragged
    garbage: bool = False  # what is not proposed is no token, and its q no number
    outside: bool = False  # behind some tokens it guesses what is no token
    narrow: int = 99  # columns it has at most
    moods: int = 1  # tables used in turn, call by call: it changes its mind
    raises: int = 0  # at this call of propose; 0: never

    name = "hostile"
    traits = DrafterTraits(cost=0.1)

    @property
    def shared(self) -> bool:
        """Whether rows of one batch influence each other's guesses, by the number of calls they share."""
        return self.moods > 1 or self.raises > 0

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _HostileSession(self, rows, shape, target)


class _HostileSession(ContextSession):
    def __init__(self, how: Hostile, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        self.how, self.calls, size = how, 0, target.vocab_size
        chosen = torch.Generator().manual_seed(how.seed)
        known = torch.tensor(sorted({t % size for t in how.support}) or list(range(size)))
        logits = torch.full((how.moods, size, size), -torch.inf)
        logits[..., known] = how.sharpness * torch.randn((how.moods, size, len(known)), generator=chosen)
        self.table = logits.softmax(-1)
        if how.broken:
            self.table[:, torch.rand(size, generator=chosen) < how.broken_share] = BROKEN[how.broken]
        self.ending = torch.rand(size, generator=chosen) < (0.4 if how.stops else 0.0)  # [V]: behind these tokens
        self.leaving = torch.rand(size, generator=chosen) < (0.4 if how.outside else 0.0)
        self.support = known if how.told else None

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        self.calls += 1
        if self.calls == self.how.raises:
            raise RuntimeError("hostile: this call fails")
        gamma = min(gamma, self.how.narrow)
        if gamma == 0:
            return Draft.empty(self.context.rows, self.context.device)
        table = self.table[self.calls % self.how.moods]
        table = table if self.support is None else table[:, self.support]
        last, going = self.context.read(self.context.lengths - 1, 1)[:, 0], self.context.active
        tokens, probs, proposed = [], [], []
        for k in range(gamma):
            q = table[last]  # [B, V] or [B, N]
            going = going & ~self.ending[last]
            token = self._draw(q, noise, at[:, k : k + 1])
            away = self.leaving[last]
            last = token.clamp(0, self.vocab_size - 1)
            tokens.append(torch.where(away, self.vocab_size + 3, token))
            probs.append(q)
            proposed.append(going)
        draft = Draft(torch.stack(tokens, 1), torch.stack(probs, 1), torch.stack(proposed, 1), support=self.support)
        return self._as_it_gives_it(draft)

    def _draw(self, q: Tensor, noise: Noise, at: Tensor) -> Tensor:
        """[B]: by the target's own way to draw, or the likeliest where it has no q."""
        if self.how.points:
            index = q.nan_to_num(0.0).argmax(-1)
        elif self.support is None:
            index = noise.winner("token", at, q[:, None])[:, 0]
        else:
            index = noise.winner("token", at, q[:, None], counter_of(self.support))[:, 0]
        return index if self.support is None else self.support[index]

    def _as_it_gives_it(self, draft: Draft) -> Draft:
        tokens, probs, support = draft.tokens, draft.probs, draft.support
        assert probs is not None
        if self.how.garbage:
            tokens = torch.where(draft.proposed, tokens, -7)
            probs = torch.where(draft.proposed[..., None], probs, torch.nan)
        if self.how.points:
            return Draft(tokens, None, draft.proposed)
        return Draft(tokens, probs, draft.proposed, support=support)
