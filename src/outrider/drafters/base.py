"""What most drafting sessions share: a context of their own and nothing else to keep in step."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from outrider.core import host_sync
from outrider.core.context import Context
from outrider.core.noise import Noise
from outrider.core.prices import Prices
from outrider.core.protocols import Admission, Draft, Session, Shape, Source
from outrider.core.sampling import Sampling, SamplingByRow, standardise


class ContextSession:
    """A drafting session that needs only the tokens so far. Subclasses write ``propose``."""

    capturable = False
    """Whether its steps can be captured as CUDA graphs: what that asks of them is said in ``Capturable``."""

    def __init__(self, rows: int, shape: Shape, target: Session) -> None:
        self.context = Context(rows, shape.capacity, target.device)
        self.vocab_size = target.vocab_size

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        self.context.admit(row, prompt)

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        """Together, unless a subclass has something to do for every row."""
        if type(self).admit is ContextSession.admit:
            self.context.admit_all([new.row for new in admissions], [new.prompt for new in admissions])
            return
        for new in admissions:
            self.admit(new.row, new.prompt, new.source)

    def release(self, row: int) -> None:
        self.context.release(row)

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        self.context.append(tokens, count)

    def rewind(self, lengths: Tensor) -> None:
        self.context.rewind(lengths)

    def select(self, rows: Tensor) -> None:
        self.context.select(rows)

    def fork(self, rows: Tensor) -> Self:
        other = copy(self)
        other.context = copy(self.context)
        other.select(rows)  # gives the copy tensors of its own
        return other


class Reach:
    """Which rows draft on: those whose guesses so far all count, with a chance of at least ``floor``.

    The chance is the product of the drafter's own confidence in the guesses it has made. So whether a guess is
    made depends on those before it, never on the token that would be drawn: what is drawn is always proposed.
    ``prices`` put another floor under each of up to ``most`` guesses: what its time is worth.
    """

    def __init__(self, floor: float, active: Tensor, prices: Prices | None = None, most: int = 0) -> None:
        self.floor, self.going = floor, active  # [B] bool
        self.chance = torch.ones(active.shape, device=active.device)  # [B]
        self.floors: list[Tensor | float] | None = None  # of guess 1, 2, ...: for all rows, or [B]
        self.made = 0
        if prices is not None and floor > 0:
            rows = [prices.floors(row, most) for row in range(len(active))]
            self.floors = [*rows[0]] if len(rows) == 1 else [torch.tensor(guess) for guess in zip(*rows, strict=True)]

    def took(self, q: Tensor | None, logits: Tensor, sampling: Sampling, chance: Tensor | None = None) -> None:
        """Another guess was drawn, from q [B, V], which was made of logits [B, N].

        ``chance`` [B]: that it is kept, as the drafter predicted before it was drawn.
        """
        self.made += 1
        if self.floor > 0 and (self.floors is None or self.made < len(self.floors)):
            floor = self.floor if self.floors is None else self.floors[self.made]
            self.chance = self.chance * (_confidence(q, logits, sampling) if chance is None else chance)
            self.going = self.going & (self.chance >= floor)

    @property
    def over(self) -> bool:
        """No row drafts on. Known on a CPU only: elsewhere asking would cost more than drafting on."""
        return self.floor > 0 and self.going.device.type == "cpu" and not bool(self.going.any())


def _confidence(q: Tensor | None, logits: Tensor, sampling: Sampling) -> Tensor:
    """The largest probability in q [B, V]; at temperature 0, where q is a point mass, the one behind it -> [B].

    How likely the very token drawn was tells less: a token sampled against the odds is often kept all the same.
    """
    if q is None or sampling.greedy:
        return _likeliest(logits)
    largest = q.amax(-1).to(torch.float32)
    if isinstance(sampling, SamplingByRow):
        return torch.where(sampling.greedy_rows(logits), _likeliest(logits), largest)
    return largest


def _likeliest(logits: Tensor) -> Tensor:
    """The probability of the likeliest token, logits [B, N] -> [B]."""
    return 1 / (logits - logits.amax(-1, keepdim=True)).float().exp().sum(-1)


class TableSession(ContextSession):
    """Drafts token by token from distributions that a table gives: subclasses write ``weights``.

    The weights go through the same ``standardise`` and ``draw`` as any model's logits.
    """

    def weights(self, guesses: Tensor) -> Tensor:
        """Relative frequencies of the next token after the context and guesses [B, k] -> [B, V].

        A row of zeros means nothing is known; the row then proposes nothing further.
        """
        raise NotImplementedError

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        rows = self.context.rows
        if gamma == 0:
            return Draft.empty(rows, self.context.device)
        tokens = at.new_zeros((rows, 0))
        probs, proposed = [], []
        going = self.context.active
        for k in range(gamma):
            weights = self.weights(tokens)  # [B, V]
            going = going & (weights.amax(-1) > 0)
            if host_sync.free(going.device) and not bool(going.any()):
                break
            # Where nothing is known any distribution will do: it is marked as not proposed.
            logits = torch.where(going[:, None], weights.log(), torch.zeros_like(weights))
            q = standardise(logits[:, None], sampling, self.context.ahead(tokens), tokens[:, :0])[:, 0]
            tokens = torch.cat([tokens, noise.winner("token", at[:, k : k + 1], q[:, None])], 1)
            probs.append(q)
            proposed.append(going)
            sampling = sampling.behind(q)
        if not probs:
            return Draft.empty(rows, self.context.device)
        return Draft(tokens, torch.stack(probs, 1), torch.stack(proposed, 1))
