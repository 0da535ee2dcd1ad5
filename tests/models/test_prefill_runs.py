"""Which tokens of which prompts run beside which when they are prefilled together."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from outrider.models.prefill import PrefillRun, neighbours, row_by_row, side_by_side

LENGTHS = st.dictionaries(st.integers(0, 20), st.integers(0, 200), max_size=12)
"""Tokens to run, by row; 0: a prompt of one token."""


def check_covered(runs: Iterable[PrefillRun], lengths: dict[int, int]) -> None:
    """Every token once, each behind those before it; nothing but padding runs besides."""
    done = dict.fromkeys(lengths, 0)
    for run in runs:
        assert len(run.rows) > 0 and len(run.positions) > 0
        for row in run.rows:
            assert run.positions.start < lengths[row], "the prompt is over, or the row has none"
            assert run.positions.start == done[row]
            done[row] = run.positions.stop
    assert all(done[row] >= lengths[row] for row in lengths)


@given(LENGTHS, st.integers(1, 300))
def test_every_token_runs_once_side_by_side(lengths: dict[int, int], tokens: int) -> None:
    runs = list(side_by_side(lengths, tokens))
    check_covered(runs, lengths)
    for run in runs:
        longest = max(lengths[row] for row in run.rows)
        assert run.positions.stop <= longest, "no run is longer than the prompts in it"


@given(LENGTHS, st.integers(1, 300))
def test_runs_hold_about_the_wanted_tokens(lengths: dict[int, int], tokens: int) -> None:
    """As many as keep the device busy, up to the granule of a row; fewer only where prompts or neighbours end."""
    by_start: dict[int, list[PrefillRun]] = {}
    for run in side_by_side(lengths, tokens):
        by_start.setdefault(run.positions.start, []).append(run)
    for start, runs in by_start.items():
        rows = [row for run in runs for row in run.rows]
        held = sum(len(run.rows) * len(run.positions) for run in runs)
        assert held < tokens + 16 * len(rows)
        if all(lengths[row] - start >= tokens + 16 for row in rows):
            assert held > tokens - len(rows), "prompts are long enough to fill it"


@given(LENGTHS, st.integers(1, 300), st.data())
def test_what_was_copied_is_not_run_but_for_the_run_a_row_begins_in(
    lengths: dict[int, int], tokens: int, data: st.DataObject
) -> None:
    """Catches a row that is left out, one that has a gap, and a copied prompt that is run as a whole all the same."""
    copied = {row: data.draw(st.integers(0, length - 1)) for row, length in lengths.items() if length > 1 and row % 2}
    done: dict[int, int] = {}
    for run in side_by_side(lengths, tokens, copied):
        assert len(run.positions) < tokens / len(run.rows) + 16
        for row in run.rows:
            if row not in done:
                assert run.positions.start <= copied.get(row, 0) < run.positions.stop
            assert run.positions.start == done.get(row, run.positions.start) < lengths[row]
            done[row] = run.positions.stop
    assert all(done.get(row, 0) >= length for row, length in lengths.items())


def test_rows_whose_prompts_were_copied_run_together() -> None:
    """One run for what is left of three prompts; it was one for each, which on a GPU takes as long as all."""
    found = list(side_by_side({0: 200, 1: 210, 2: 201}, 256, {0: 199, 1: 193, 2: 200}))
    assert found == [PrefillRun(range(3), range(192, 210))]


def test_rows_that_join_late_do_not_cut_a_new_prompt_into_small_runs() -> None:
    """Each run was divided by all rows, the seven that begin at its end included: 56 runs of 16 tokens."""
    found = list(side_by_side(dict.fromkeys(range(8), 1000), 128, dict.fromkeys(range(1, 8), 900)))
    assert found[:7] == [PrefillRun(range(1), range(start, start + 128)) for start in range(0, 896, 128)]
    assert found[7:] == [PrefillRun(range(8), range(start, min(start + 16, 1000))) for start in range(896, 1000, 16)]


def test_rows_drop_out_as_their_prompts_end() -> None:
    """A run that kept every row until the longest prompt ended would compute mostly padding."""
    found = list(side_by_side({0: 40, 1: 100, 2: 10, 3: 100, 5: 20}, 80))
    assert found == [
        PrefillRun(range(4), range(16)),
        PrefillRun(range(5, 6), range(16)),
        PrefillRun(range(2), range(16, 48)),
        PrefillRun(range(3, 4), range(16, 48)),
        PrefillRun(range(5, 6), range(16, 20)),
        PrefillRun(range(1, 2), range(48, 96)),
        PrefillRun(range(3, 4), range(48, 96)),
        PrefillRun(range(1, 2), range(96, 100)),
        PrefillRun(range(3, 4), range(96, 100)),
    ]


@given(LENGTHS, st.integers(1, 64))
def test_row_by_row_has_constant_shapes(lengths: dict[int, int], chunk: int) -> None:
    runs = list(row_by_row(lengths, chunk))
    check_covered(runs, lengths)
    assert all((len(run.rows), len(run.positions)) == (1, chunk) for run in runs)
    assert list(dict.fromkeys(run.rows.start for run in runs)) == [row for row, count in lengths.items() if count]


@given(st.sets(st.integers(0, 40)))
def test_neighbours_are_the_longest_ranges(numbers: set[int]) -> None:
    found = list(neighbours(sorted(numbers)))
    assert [number for part in found for number in part] == sorted(numbers)
    assert all(before.stop < after.start for before, after in zip(found, found[1:], strict=False))
