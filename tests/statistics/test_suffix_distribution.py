"""Suffix memory keeps the target's distribution. Rows are searched one by one, so there are fewer than elsewhere."""

from __future__ import annotations

import pytest
from distributions import RAGGED, VOCAB, check_distribution, near

from outrider.core.protocols import Draft, Drafter, DraftSession, Session, Shape
from outrider.core.verification.maximal import maximal_coupling
from outrider.drafters import Mixture, Suffix, SuffixIndex

TEXTS = [[1, 2, 0, 1, 3, 4, 4, 2, 1, 0, 2, 2], [1, 2, 3, 1, 2, 4]]
DRAFTERS: dict[str, Drafter] = {
    "row": Suffix(shortest=1, floor=0),
    "texts": Suffix(SuffixIndex.of(TEXTS), shortest=1, floor=0),
    "stopping": Suffix(SuffixIndex.of(TEXTS), shortest=1, floor=0.2),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_distribution(name: str) -> None:
    """Catches counts reported as q that were not drawn from, and drafts that end because of what was drawn."""
    check_distribution(DRAFTERS[name], maximal_coupling, prompts=RAGGED, rows=18_000, detects=0.06)


WHERE = (1, 2, 0, 1, 3, 4, 2, 0, 3)
FORKED = SuffixIndex.of([[*WHERE, 1, 4, 3, 2, 1], [*WHERE, 2]])
"""Behind ``WHERE`` one text goes on for five tokens and the other for one: which was drawn shows in the length."""


@pytest.mark.parametrize("on_cpu", [True, False], ids=["on the host", "as on a GPU"])
def test_a_mixture_does_not_weigh_what_was_drawn(on_cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches copies that are taken because of their length: the short one was taken less often than it was drawn."""
    mixture = Mixture(Suffix(FORKED, floor=0), near(), cost=0.01)
    start = mixture.start

    def started(rows: int, shape: Shape, target: Session) -> DraftSession:
        session = start(rows, shape, target)
        session.on_cpu = on_cpu  # type: ignore[attr-defined]
        return session

    monkeypatch.setattr(mixture, "start", started)
    check_distribution(mixture, maximal_coupling, prompts=[WHERE], rows=12_000, gamma=4, detects=0.06)


class _Shifted:
    """The mutant: guesses drawn from counts, reported with those of the next token."""

    name = "shifted"

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        session = DRAFTERS["texts"].start(rows, shape, target)
        propose = session.propose

        def changed(*given: object) -> Draft:
            draft = propose(*given).dense(VOCAB)  # type: ignore[arg-type]
            return Draft(draft.tokens, None if draft.probs is None else draft.probs.roll(1, -1), draft.proposed)

        session.propose = changed  # type: ignore[method-assign, assignment]
        return session


def test_it_would_be_seen_if_q_were_another() -> None:
    with pytest.raises(AssertionError, match="not the expected distribution|probability zero"):
        check_distribution(_Shifted(), maximal_coupling, prompts=RAGGED, rows=18_000, detects=0.06)
