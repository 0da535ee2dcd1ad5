"""Drafting with a trained head: guess after guess from a backend's logits, whatever backend runs the layers."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.prices import Prices
from outrider.core.protocols import Admission, Draft, Session, Shape, Source
from outrider.core.sampling import Sampling
from outrider.core.token_tree import NodeTree, TreeShape
from outrider.drafters.base import ContextSession, Reach
from outrider.drafters.fallback import joined, widened
from outrider.drafters.head.backend import Branching, DraftRequest, PredictsAcceptance, ReadyHead, Texts
from outrider.drafters.head.branches import grow
from outrider.drafters.known_tokens import GuessPlace, KnownTokens


class HeadSession(ContextSession):
    """The rows of a batch, drafted for by one head."""

    prices: Prices | None = None  # what guesses take here and time is worth, where a policy tells
    caps: Tensor | None = None  # [B]: guesses a row may have; None: as many as are asked for
    ends_behind: Tensor | None = None  # [B]: no guess follows a first one that is this token; None: of no row

    def __init__(self, prepared: ReadyHead, floor: float, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        assert target.embedding is not None
        if prepared.layers:
            target.keep_states(prepared.layers)
        self.output, self.floor, self.target = prepared.output, floor, target
        self.known = KnownTokens(self.output.tokens, self.output.counter, target.vocab_size)
        self.embedding = target.embedding.detach()
        self.backend = prepared.start(rows, shape)

    @property
    def capturable(self) -> bool:  # type: ignore[override]
        return self.backend.capturable

    @property
    def texts(self) -> Texts:
        return Texts(self.context, self.target, self.embedding)

    @property
    def device(self) -> torch.device:
        return self.context.device

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        self.admit_all([Admission(row, prompt, source)])

    @torch.no_grad()
    def admit_all(self, admissions: Sequence[Admission]) -> None:
        self.context.admit_all([new.row for new in admissions], [new.prompt for new in admissions])
        self.backend.admit_all(self.texts, {new.row: len(new.prompt) for new in admissions})

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        self.backend.commit(self.texts, tokens, count)

    def rewind(self, lengths: Tensor) -> None:
        super().rewind(lengths)
        self.backend.rewind(self.texts)

    @torch.no_grad()
    def select(self, rows: Tensor) -> None:
        self.backend = self.backend.select(self.texts, rows)
        super().select(rows)
        self.caps = self.ends_behind = None  # they were of other rows

    @torch.no_grad()
    def fork(self, rows: Tensor) -> Self:
        other = copy(self)
        other.context = copy(self.context)
        other.context.select(rows)  # gives the copy tensors of its own
        other.backend, other.caps, other.ends_behind = self.backend.fork(self.texts, rows), None, None
        return other

    @property
    def grows_trees(self) -> bool:
        return isinstance(self.backend, Branching) and self.backend.branches

    def grow(self, shape: TreeShape) -> NodeTree:
        assert isinstance(self.backend, Branching)
        return grow(self.backend, self.texts, shape)

    @torch.no_grad()
    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        texts = self.texts
        gamma = self.backend.begin(texts, gamma, self.caps) if gamma else 0
        if gamma == 0:  # the target has run nothing yet, or a fork has used up what one look at the target gave
            return Draft.empty(self.context.rows, self.device)
        request = DraftRequest(gamma, sampling, noise, at, self.floor, self.prices, self.caps, self.ends_behind)
        whole = self.backend.draft(texts, request)
        if whole is None:
            return self._guess_by_guess(texts, request, self.context.active)
        draft = self._drafted(whole.tokens, whole.q, whole.proposed)
        if whole.left is None:
            return draft
        rest = self._guess_by_guess(texts, request, self.context.active & whole.left)
        width = max(draft.tokens.shape[1], rest.tokens.shape[1])
        return joined(widened(draft, width), widened(rest, width), ~whole.left[:, None], self.vocab_size)

    def _guess_by_guess(self, texts: Texts, request: DraftRequest, rows: Tensor) -> Draft:
        """Of some rows [B] bool."""
        sampling, at = request.sampling, request.at
        last = self.context.read(self.context.lengths - 1, 1)[:, 0]
        tokens: list[Tensor] = []
        probs, proposed = [], []
        begun = rows & (self.context.lengths > 1)  # behind one token the target has run nothing yet
        reach = Reach(self.floor, begun, self.prices, request.gamma)
        predicts = self.backend if isinstance(self.backend, PredictsAcceptance) else None
        for k in range(request.gamma):
            logits = self.backend.logits(texts, k, last)
            last, q = self._draw(logits, sampling, request.noise, tokens, at[:, k : k + 1])
            tokens.append(last)
            probs.append(q)
            proposed.append(reach.going)
            reach.took(q, logits, sampling, None if predicts is None else predicts.acceptance())
            if k == 0 and self.ends_behind is not None:
                reach.going = reach.going & (last != self.ends_behind)
            sampling = sampling if q is None else sampling.behind(q)
            if reach.over:
                break
        known = [q for q in probs if q is not None]
        return self._drafted(torch.stack(tokens, 1), torch.stack(known, 1) if known else None, torch.stack(proposed, 1))

    def _drafted(self, tokens: Tensor, q: Tensor | None, proposed: Tensor) -> Draft:
        """q [B, G, N] may be of the tokens that the head knows only."""
        trimmed = q is not None and q.shape[-1] < self.vocab_size
        return Draft(tokens, q, proposed, support=self.output.tokens if trimmed else None)

    def _draw(
        self, logits: Tensor, sampling: Sampling, noise: Noise, guesses: list[Tensor], at: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """A token [B] and the distribution it came from, as ``KnownTokens.draw`` gives them."""
        if sampling.greedy and not sampling.adjusts:
            return self.backend.likeliest(logits), None
        before = torch.stack(guesses, 1) if guesses else at[:, :0]
        return self.known.draw(logits, sampling, noise, GuessPlace(self.context, before, at))
