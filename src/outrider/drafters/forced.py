"""Guesses that a constraint leaves no choice about, as the keys of a JSON schema: they cost no draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Admission, Draft, Drafter, DraftSession, Session, Shape
from outrider.core.records import ForcedTokens
from outrider.core.sampling import Sampling
from outrider.core.traits import DrafterTraits, traits_of
from outrider.drafters.fallback import joined, widened
from outrider.drafters.known_rows import KnownRowsSession


class Forced:
    """Rows under a constraint follow it where it forces as many tokens as they may guess; ``other`` drafts elsewhere.

    With fewer forced tokens than that ``other`` is asked first: it sees the constraint, too, and may guess beyond them.
    Where it has no guess at all they are used. Both are decided before anything is drawn.
    """

    def __init__(self, other: Drafter) -> None:
        self.other = other
        self.name = other.name

    @property
    def traits(self) -> DrafterTraits:
        return traits_of(self.other)

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _ForcedSession(self.other.start(rows, shape, target), rows, target)


@dataclass
class _Constrained:
    """A row under a constraint, and its output so far."""

    forced: ForcedTokens
    output: list[int] = field(default_factory=list)


class _ForcedSession(KnownRowsSession):
    def __init__(self, other: DraftSession, rows: int, target: Session) -> None:
        super().__init__(other, rows, target)
        self.constrained: dict[int, _Constrained] = {}  # by row

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        super().admit_all(admissions)
        for new in admissions:
            self.constrained.pop(new.row, None)
            if new.forced is not None:
                self.constrained[new.row] = _Constrained(new.forced)

    def release(self, row: int) -> None:
        super().release(row)
        self.constrained.pop(row, None)

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        if gamma == 0 or not self.constrained:
            return self._with({}, gamma, sampling, noise, at)
        most = [gamma] * self.rows if self.caps is None else self.caps.clamp(max=gamma).tolist()
        known = {row: each.forced(each.output)[: most[row]] for row, each in self.constrained.items()}
        known = {row: tokens for row, tokens in known.items() if tokens}
        enough = {row: tokens for row, tokens in known.items() if len(tokens) == most[row]}
        draft = self._with(enough, gamma, sampling, noise, at)
        if len(enough) == len(known):
            return draft
        draft = widened(draft.usable(self.target.vocab_size), gamma)
        proposed = draft.proposed[:, 0].tolist()
        silent = {row: tokens for row, tokens in known.items() if not proposed[row]}
        mine, has_some = self._points(silent, gamma)
        return joined(mine, draft, has_some, self.target.vocab_size) if silent else draft

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        super().commit(tokens, count)
        for row, each in self.constrained.items():
            each.output.extend(tokens[row, : int(count[row])].tolist())

    def rewind(self, lengths: Tensor) -> None:
        super().rewind(lengths)
        self.constrained.clear()  # only a cascade takes tokens back, and it has no constraints

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        found = self.constrained
        self.constrained = {
            new: _Constrained(found[old].forced, list(found[old].output))
            for new, old in enumerate(rows.tolist())
            if old in found
        }
