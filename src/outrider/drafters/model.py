"""Another language model as the drafter: the papers' M_q."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.prices import Prices
from outrider.core.protocols import (
    Admission,
    Choose,
    Draft,
    DraftSession,
    Guessing,
    LanguageModel,
    ReadsLate,
    Session,
    Shape,
    Source,
    admit_all,
)
from outrider.core.sampling import Sampling, standardise
from outrider.core.traits import DrafterTraits
from outrider.drafters.base import Reach
from outrider.errors import require


class ModelDrafter:
    """Drafts by running a smaller model token by token, with the same sampling options as the target.

    Vocabularies may differ in padding rows: tokens the target does not have are never drafted, and tokens
    the draft does not have get probability zero. ``sampling`` gives the draft options of its own: q is then
    what it really drew from, which is all that exactness needs. Drafting stops where, by the model's own
    confidence, the guesses so far are all right with a chance below ``floor`` or, where a policy tells what guesses
    cost, not worth another one; 0 is never.
    """

    traits = DrafterTraits(cost=0.15, gamma=4)  # each guess costs a run of the model

    def __init__(
        self,
        model: LanguageModel,
        name: str = "model",
        sampling: Sampling | None = None,
        gamma: int | None = None,
        floor: float = 0.0,
        sampled_cost: float | None = None,
    ) -> None:
        """``sampled_cost``: of a guess above temperature 0, in runs of the target; None: as the traits say."""
        require(0 <= floor < 1, f"floor must be a chance below 1 (0: never stop early), got {floor!r}")
        self.model, self.name, self.sampling, self.floor = model, name, sampling, floor
        gamma = type(self).traits.gamma if gamma is None else gamma
        self.traits = replace(
            type(self).traits, gamma=gamma, stops_itself=floor > 0, sampling=sampling, sampled_cost=sampled_cost
        )

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        # After full acceptance two tokens are pending: width 2, always, so that q does not depend on neighbours.
        return _ModelSession(self, rows, replace(shape, width=2), target)


class FittedSession:
    """A draft model's session with logits over the target's vocabulary: padded with -inf, or cut."""

    def __init__(self, session: Session, vocab_size: int) -> None:
        self.session, self.vocab_size = session, vocab_size
        self._guessing = session if isinstance(session, Guessing) else None
        self.context = session.context
        self.embedding, self.unembedding = session.embedding, session.unembedding

    @property
    def hidden(self) -> Tensor | None:
        return self.session.hidden

    @property
    def states(self) -> Tensor | None:
        return self.session.states

    def keep_states(self, layers: Sequence[int]) -> None:
        self.session.keep_states(layers)

    @property
    def device(self) -> torch.device:
        return self.session.device

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        self.session.admit(row, prompt, source)

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        admit_all(self.session, admissions)

    def release(self, row: int) -> None:
        self.session.release(row)

    def score(self, tail: Tensor) -> Tensor:
        return self._fit(self.session.score(tail))

    def extend(self, tokens: Tensor) -> Tensor:
        return self._fit(self.session.extend(tokens))

    def guess(self, count: int) -> Tensor | None:
        """The likeliest tokens of both vocabularies [B, count]; None where the model does not write by itself."""
        return None if self._guessing is None else self._guessing.guess(count, self.vocab_size)

    def guess_chosen(self, count: int, choose: Choose) -> Tensor | None:
        """Tokens [B, count] that ``choose`` takes by logits over the target's vocabulary; None as above."""
        if self._guessing is None:
            return None
        return self._guessing.guess_chosen(count, lambda guess, logits: choose(guess, self._fit(logits)))

    def commit(self, tokens: Tensor, count: Tensor, follows: bool = True) -> None:
        self.session.commit(tokens, count, follows)

    def rewind(self, lengths: Tensor) -> None:
        self.session.rewind(lengths)

    def select(self, rows: Tensor) -> None:
        self.session.select(rows)

    def fork(self, rows: Tensor) -> FittedSession:
        return FittedSession(self.session.fork(rows), self.vocab_size)

    def _fit(self, logits: Tensor) -> Tensor:
        missing = self.vocab_size - logits.shape[-1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        return logits[..., : self.vocab_size]


class _ModelSession:
    prices: Prices | None = None  # what guesses take here and time is worth, where a policy tells

    def __init__(self, drafter: ModelDrafter, rows: int, shape: Shape, target: Session) -> None:
        session = drafter.model.start(rows, shape)
        if isinstance(session, ReadsLate) and target.context.device.type == "cpu":  # a replayed step encodes nothing
            session.read_late()
        self.session = FittedSession(session, target.vocab_size)
        self.sampling, self.floor = drafter.sampling, drafter.floor
        self.only_drafter = False  # see ``OnlyDrafter``

    @property
    def capturable(self) -> bool:
        return self.only_drafter  # otherwise a host-device sync tells how far it is behind

    @property
    def model_sessions(self) -> tuple[Session, ...]:
        return (self.session.session,)

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        self.session.admit(row, prompt, source)

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        self.session.admit_all(admissions)

    def release(self, row: int) -> None:
        self.session.release(row)

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        sampling = self.sampling or sampling
        context = self.session.context
        tokens = at.new_zeros((context.rows, 0))
        if gamma == 0:
            return Draft.empty(context.rows, context.device)
        if not sampling.adjusts and self.floor == 0:
            draft = self._written(gamma, sampling, noise, at)
            if draft is not None:
                return draft
        logits = self.session.score(tokens)[:, -1:]  # [B, 1, V]
        probs, proposed, reach = [], [], Reach(self.floor, context.active, self.prices, gamma)
        for k in range(gamma):
            q = standardise(logits, sampling, context.ahead(tokens), tokens[:, :0])[:, 0]
            x = noise.winner("token", at[:, k : k + 1], q[:, None])  # [B, 1]
            tokens = torch.cat([tokens, x], 1)
            probs.append(q)
            proposed.append(reach.going)
            reach.took(q, logits[:, 0], sampling)
            sampling = sampling.behind(q)
            if k + 1 == gamma or reach.over:
                break
            logits = self.session.extend(x)[:, -1:]
        return Draft(tokens, torch.stack(probs, 1), torch.stack(proposed, 1))

    def _written(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft | None:
        """The draft of a model that writes by itself: nothing but its own logits decides; None where it does not."""
        context, distributions = self.session.context, list[Tensor]()

        def drawn(guess: int, logits: Tensor) -> Tensor:
            distributions.append(standardise(logits[:, None], sampling, context, at[:, :0]))
            return noise.winner("token", at[:, guess : guess + 1], distributions[-1])[:, 0]

        tokens = self.session.guess(gamma) if sampling.greedy else self.session.guess_chosen(gamma, drawn)
        if tokens is None:
            return None
        probs = None if sampling.greedy else torch.cat(distributions, 1)
        return Draft(tokens, probs, context.active[:, None].expand(-1, gamma))

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        self.session.commit(tokens, count, follows=self.only_drafter)

    def rewind(self, lengths: Tensor) -> None:
        self.session.rewind(lengths)

    def select(self, rows: Tensor) -> None:
        self.session.select(rows)

    def fork(self, rows: Tensor) -> _ModelSession:
        other = copy(self)
        other.session = self.session.fork(rows)
        return other
