"""Guesses that a constraint leaves no choice about, as the keys of a JSON schema: they cost no draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Admission, Draft
from outrider.core.records import ForcedTokens
from outrider.core.sampling import Sampling
from outrider.drafters.fallback import joined, widened
from outrider.drafters.known_rows import KnownRowsDrafter, KnownRowsSession


@dataclass
class _Constrained:
    """A row under a constraint, and its output so far."""

    forced: ForcedTokens
    output: list[int] = field(default_factory=list)

    def next(self, most: int) -> Sequence[int]:
        return self.forced(self.output)[:most] if most else ()

    def read(self, tokens: Sequence[int]) -> None:
        self.output.extend(tokens)

    def copy(self) -> Self:
        return replace(self, output=list(self.output))


class _ForcedSession(KnownRowsSession[_Constrained]):
    def known_row(self, new: Admission) -> _Constrained | None:
        return None if new.forced is None else _Constrained(new.forced)

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        known = self.guesses(gamma)
        most = [gamma] * self.rows if self.caps is None else self.caps.clamp(max=gamma).tolist()
        enough = {row: tokens for row, tokens in known.items() if len(tokens) == most[row]}
        draft = self._with(enough, gamma, sampling, noise, at)
        if len(enough) == len(known):
            return draft
        draft = widened(draft.usable(self.target.vocab_size), gamma)
        proposed = draft.proposed[:, 0].tolist()
        silent = {row: tokens for row, tokens in known.items() if not proposed[row]}
        mine, has_some = self._points(silent, gamma)
        return joined(mine, draft, has_some, self.target.vocab_size) if silent else draft


class Forced(KnownRowsDrafter):
    """Rows under a constraint follow it where it forces as many tokens as they may guess; ``other`` drafts elsewhere.

    With fewer forced tokens than that ``other`` is asked first: it sees the constraint, too, and may guess beyond them.
    Where it has no guess at all they are used. Both are decided before anything is drawn.
    """

    session = _ForcedSession
