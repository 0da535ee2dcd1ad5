"""A drafter that is itself a speculative decoder: a middle model drafts for the target, and is drafted for.

The middle model emits exact samples of its own distribution, faster than token by token, because a lower drafter
guesses for it. The lower drafter may be a cascade again. The first gamma tokens of what the middle model emits are
the guesses, and p of the middle model, which scored every prefix, is their q.

Nothing is chosen by its value: a guess is kept because of its index, and a guess is a function of noise up to its
own position, so what is thrown away and drawn again later was never looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outrider.core.algorithm import Step, speculative_step
from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Drafter, DraftSession, Session, Shape, Source
from outrider.core.sampling import Sampling
from outrider.core.timing import TimedTarget
from outrider.core.traits import DrafterTraits, traits_of
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import accepted_prefix, maximal_coupling
from outrider.drafters.model import FittedSession, ModelDrafter
from outrider.errors import require
from outrider.trace import PHASES, Level, Stopwatch


class Cascade:
    """``lower`` drafts for ``middle``, ``middle`` for the target.

    guesses: asked of ``lower`` per run of the middle model; its own choice, or 4, if not given.
    once: ``lower`` is asked once per draft, then the middle model goes on alone. This is Algorithm 3 of the
    hierarchical extension (Tulsian et al. 2024), but the token after a rejection comes from the residual: drawn
    from the middle model itself, as printed there, it would not follow the q that the target is told.
    gamma: guesses per target run unless asked otherwise.
    """

    def __init__(
        self, lower: Drafter, middle: ModelDrafter, *, guesses: int | None = None, once: bool = False, gamma: int = 6
    ) -> None:
        require(isinstance(lower, Drafter), f"lower must be a drafter, got {lower!r}")
        require(
            isinstance(middle, ModelDrafter),
            f"middle must be a ModelDrafter, got {middle!r}: only a model that runs by itself can check guesses; "
            "wrap it in ModelDrafter(model)",
        )
        self.guesses = traits_of(lower).gamma or 4 if guesses is None else guesses
        require(self.guesses >= 1, f"guesses must be at least 1, got {guesses}")
        self.lower, self.middle, self.once, self.gamma = lower, middle, once, gamma
        self.name = f"{lower.name}{'>>' if once else '>'}{middle.name}"

    @property
    def traits(self) -> DrafterTraits:
        """A guess takes a run of the middle model at most; what the lower drafter saves of it is measured."""
        return replace(traits_of(self.middle), gamma=self.gamma, stops_itself=False)

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        # At worst a row keeps everything while a neighbour gets one token per run, gamma runs long.
        room = (shape.width - 1) * (self.guesses + 1) + self.guesses + 2
        # Two tokens may be pending before the guesses: the target's own, and the middle model's last one.
        inner = replace(shape, capacity=shape.capacity + room, width=self.guesses + 2)
        middle = FittedSession(self.middle.model.start(rows, inner), target.vocab_size)
        return _CascadeSession(self, middle, self.lower.start(rows, inner, middle))


class _CascadeSession:
    """Between ``propose`` and ``commit`` both sessions below have committed what they only believe.

    The lower session drafts for the middle model: caps, prices, spent guesses and matches of the target's drafts are
    not its business. Steps cannot be captured: how many runs of the middle model a draft takes is read off the device.
    """

    same_target = False
    capturable = False

    def __init__(self, drafter: Cascade, middle: FittedSession, lower: DraftSession) -> None:
        self.drafter, self.middle, self.lower = drafter, middle, lower
        self.truth: Tensor | None = None  # [B] lengths before anything was believed; None while all is true
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.counts = torch.zeros(4, dtype=torch.float64, device=middle.device)  # see _count

    def children(self) -> tuple[DraftSession, ...]:
        return (self.lower,)

    @property
    def model_sessions(self) -> tuple[Session, ...]:
        return (self.middle.session,)

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        self.middle.admit(row, prompt, source)
        self.lower.admit(row, prompt, source)

    def release(self, row: int) -> None:
        self.middle.release(row)
        self.lower.release(row)

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        context = self.middle.context
        if gamma == 0:
            return Draft.empty(context.rows, context.device)
        self._forget()
        self.truth = start = context.lengths.clone()  # the context changes its own in place
        sampling = self.drafter.middle.sampling or sampling
        # The target's own noise asks for the token the middle model draws with it; matching finds that very token.
        verify = gumbel_coupling if sampling.greedy or noise.is_the_targets else maximal_coupling
        watch = Stopwatch(self.seconds)
        timed = TimedTarget(self.middle, watch)
        probs: Tensor | None = None
        for number in range(gamma):
            wanting = context.active & (context.lengths < start + gamma)  # [B]
            if not bool(wanting.any()):
                break
            offset = context.lengths - start  # [B]: guesses there are already
            asked = 0 if self.drafter.once and number > 0 else self.drafter.guesses
            step = speculative_step(timed, self.lower, verify, sampling, noise, asked)
            watch.lap("accept")
            self._count(step, wanting)
            sampling = sampling.only(step.finite >= step.count)  # the last token of others was drawn from nothing
            if isinstance(step.p, Tensor) and not sampling.greedy:  # greedy guesses are point masses
                probs = step.p.new_zeros((context.rows, gamma + 1, step.p.shape[-1])) if probs is None else probs
                _put(probs, step.p, offset)
        proposed = context.active[:, None].expand(-1, gamma)
        q = None if probs is None else probs[:, :gamma]
        return Draft(context.read(start, gamma), q, proposed, by_verification=not verify.shares_noise)

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        """What was believed and is true stays, with all that was computed for it; the rest is taken back."""
        if self.truth is not None:
            agree = self._agreement(tokens, count)
            self._forget(agree)
            place = torch.arange(tokens.shape[1], device=tokens.device) + agree[:, None]
            tokens, count = tokens.gather(1, place.clamp(max=tokens.shape[1] - 1)), count - agree
        self.middle.commit(tokens, count, follows=False)
        self.lower.commit(tokens, count)

    def rewind(self, lengths: Tensor) -> None:
        self._forget()
        self.middle.rewind(lengths)
        self.lower.rewind(lengths)

    def select(self, rows: Tensor) -> None:
        self.middle.select(rows)
        self.lower.select(rows)
        self.truth = None if self.truth is None else self.truth.index_select(0, rows)

    @property
    def levels(self) -> tuple[Level, ...]:
        """This level's numbers; those below it are the lower session's."""
        runs, drafted, examined, accepted = (int(n) for n in self.counts[:4].tolist())
        names = (self.drafter.middle.name, self.drafter.lower.name)
        return (Level(*names, runs, drafted, examined, accepted, dict(self.seconds)),)

    def _forget(self, agree: Tensor | int = 0) -> None:
        """Back to the truth, and the first agree [B] of the tokens believed beyond it."""
        if self.truth is not None:
            for session in (self.middle, self.lower):
                session.rewind(self.truth + agree)
            self.truth = None

    def _agreement(self, tokens: Tensor, count: Tensor) -> Tensor:
        """How many leading tokens of the truth [B, K] were believed -> [B]."""
        context, width = self.middle.context, tokens.shape[1]
        assert self.truth is not None
        place = torch.arange(width, device=tokens.device)
        believed = place < (context.lengths - self.truth)[:, None]
        return accepted_prefix((context.read(self.truth, width) == tokens) & (place < count[:, None]) & believed)

    def _count(self, step: Step, wanting: Tensor) -> None:
        """Runs, guesses drafted, examined and accepted, of rows that still wanted tokens. Stays on the device."""
        drafted, accepted = step.draft.proposed.sum(-1), step.count - 1  # [B] each
        examined = torch.minimum(accepted + 1, drafted)
        per_row = torch.stack([torch.ones_like(drafted), drafted, examined, accepted])  # [4, B]
        self.counts += (per_row * wanting).sum(-1)


def _put(probs: Tensor, p: Tensor, offset: Tensor) -> None:
    """Write p [B, K, V] into probs [B, G+1, V] from index offset [B] on; what goes too far ends in the last place.

    Columns behind the tokens emitted are written too: the next run of the row overwrites them.
    """
    place = offset[:, None] + torch.arange(p.shape[1], device=p.device)  # [B, K]
    rows = torch.arange(p.shape[0], device=p.device)[:, None]
    probs[rows, place.clamp(max=probs.shape[1] - 1)] = p
