"""What the copying drafter proposes, by hand: the longest earlier match decides, the latest among equals."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import run
from outrider.core.noise import Silence
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling
from outrider.decoding.loop import Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying, Nothing
from outrider.drafters.fallback import widened
from outrider.errors import BadOption
from outrider.models.toy import ToyModel
from outrider.trace import summarise

TARGET = ToyModel(30, seed=1, sharpness=3.0)


def guesses(drafter: Copying, *texts: Sequence[int], source: Sequence[int] | None = None) -> list[list[int]]:
    shape = Shape(capacity=32, width=5, source_capacity=0 if source is None else 16)
    session = drafter.start(len(texts), shape, TARGET.start(len(texts), shape))
    for row, text in enumerate(texts):
        session.admit(row, text, source)
    seeds = torch.zeros(len(texts), dtype=torch.int64)
    draft = session.propose(4, Sampling(), Silence(seeds), torch.zeros((len(texts), 5), dtype=torch.int64))
    return [t[p].tolist() for t, p in zip(draft.tokens, draft.proposed, strict=True)]


def test_goes_on_as_the_text_did() -> None:
    """Catches a copy that starts one place off."""
    assert guesses(Copying(), [1, 2, 3, 4, 5, 6, 1, 2]) == [[3, 4, 5, 6]]


def test_the_longest_match_wins_over_a_later_one() -> None:
    """Catches a match by recency alone: 1 2 3 was followed by 9, the later 2 3 by 7."""
    assert guesses(Copying(), [1, 2, 3, 9, 5, 2, 3, 7, 1, 2, 3]) == [[9, 5, 2, 3]]


def test_the_latest_of_equal_matches_wins() -> None:
    """Catches a match by age."""
    assert guesses(Copying(), [2, 3, 9, 2, 3, 7, 1, 2, 3]) == [[7, 1, 2, 3]]


def test_matches_longer_than_the_longest_are_equal() -> None:
    """Catches a limit on the match that is not a limit."""
    text = [5, 1, 2, 9, 8, 1, 2, 7, 5, 1, 2]
    assert guesses(Copying(longest=8), text)[0][0] == 9
    assert guesses(Copying(longest=2), text)[0][0] == 7


def test_rows_are_matched_separately() -> None:
    """Catches rows that find matches in each other, and guesses from beyond the end."""
    assert guesses(Copying(), [1, 2, 9, 1, 2], [1, 2, 3], [4]) == [[9, 1, 2, 9], [], []]


def test_a_text_that_goes_round_goes_round_again() -> None:
    """A copy ended with the text: where three tokens were one circle, a run had one guess for each of them at most."""
    assert guesses(Copying(), [6, 6, 6, 6], [1, 2, 1, 2, 1]) == [[6, 6, 6, 6], [2, 1, 2, 1]]


def test_short_matches_do_not_count() -> None:
    """Catches a draft from a match shorter than asked for."""
    assert guesses(Copying(shortest=3), [1, 2, 9, 1, 2]) == [[]]
    assert guesses(Copying(shortest=1), [2, 9, 8, 2]) == [[9, 8, 2, 9]]


def test_copies_from_the_source() -> None:
    """Catches an encoder-decoder draft that only looks at its own output (no peer looks at the source)."""
    assert guesses(Copying(), [0, 7, 8], source=[5, 7, 8, 9, 10, 11, 12]) == [[9, 10, 11, 12]]
    assert guesses(Copying(), [0, 7, 8], source=[5, 7, 8, 9]) == [[9]]
    assert guesses(Copying(), [0, 7, 8], source=[5, 7, 8]) == [[]], "nothing follows in the source, nothing to copy"


def test_no_match_runs_across_the_end_of_the_source() -> None:
    """Catches a match made of the source's last and the output's first token."""
    assert guesses(Copying(), [8, 3, 4, 7, 8], source=[5, 6, 7]) == [[]]


def test_the_output_wins_over_the_source_among_equals() -> None:
    """Catches a preference for the older text."""
    assert guesses(Copying(), [7, 8, 3, 7, 8], source=[5, 7, 8, 9]) == [[3, 7, 8, 3]]


def test_a_copied_source_saves_target_runs() -> None:
    """Catches a source that is searched but never used: text that repeats its source comes in few runs."""
    plain, _ = run(TARGET, Nothing(), [Request((3,), Stopping(24))], 0)
    told, trace = run(TARGET, Copying(), [Request((3,), Stopping(24), source=(3, *plain[0]))], 6)
    assert told == plain
    assert summarise(trace).tokens_per_run > 3


@pytest.mark.parametrize("options", [{"shortest": 0}, {"shortest": 3, "longest": 2}])
def test_settings_out_of_range(options: dict[str, int]) -> None:
    """Catches settings that would match everything or nothing."""
    with pytest.raises(BadOption, match="must be at least"):
        Copying(**options)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=24), min_size=1, max_size=3), st.booleans())
def test_host_and_device_find_the_same(texts: list[list[int]], sourced: bool) -> None:
    """Catches the search on a CPU and the one on a GPU drifting apart."""
    shape = Shape(capacity=32, width=5, source_capacity=8 if sourced else 0)
    session = Copying().start(len(texts), shape, TARGET.start(len(texts), shape))
    for row, text in enumerate(texts):
        session.admit(row, text, text[:6] if sourced else None)
    at, seeds = torch.zeros((len(texts), 5), dtype=torch.int64), torch.zeros(len(texts), dtype=torch.int64)
    here = widened(session.propose(4, Sampling(), Silence(seeds), at), 4)
    matched = session.matched  # type: ignore[attr-defined]
    there = session.propose_on_device(4)  # type: ignore[attr-defined]
    assert torch.equal(here.proposed, there.proposed) and torch.equal(matched, session.matched)  # type: ignore[attr-defined]
    assert torch.equal(here.tokens[here.proposed], there.tokens[there.proposed])
