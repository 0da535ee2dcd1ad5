"""The sorted index and the memory of outputs against a search that looks at every place."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters import OutputMemory, SuffixIndex, suffix_index
from outrider.drafters.matching import Match, longest_matches
from outrider.errors import BadOption, ModelCorrupt, ModelNotFound, OutriderError, TokenizerMismatch

TEXTS = st.lists(st.lists(st.integers(0, 2), max_size=24), max_size=5)
ENDS = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def by_looking(texts: Sequence[Sequence[int]], end: Sequence[int]) -> tuple[int, Counter[int]]:
    """The longest match of a text's end, and what followed how often."""
    for length in range(min(len(end), suffix_index.LONGEST), 0, -1):
        wanted = list(end[-length:])
        places = ((text, at) for text in texts for at in range(length, len(text)))
        followed = Counter(text[at] for text, at in places if list(text[at - length : at]) == wanted)
        if followed:
            return length, followed
    return 0, Counter()


def counted(match: Match) -> Counter[int]:
    return Counter(int(text[place + 1]) for text, places in match.found for place in places)


@given(TEXTS, ENDS)
def test_an_index_finds_what_looking_everywhere_finds(texts: list[list[int]], end: list[int]) -> None:
    """Catches an order that compares too few tokens, matches across two texts, and places nothing follows."""
    length, followed = by_looking(texts, end)
    match = SuffixIndex.of(texts).matches(end[::-1])
    assert match.length == length
    assert length == 0 or counted(match) == followed


@given(st.lists(st.integers(0, 1), min_size=150, max_size=400), st.integers(1, 40))
def test_long_texts_are_searched_by_halves(text: list[int], length: int) -> None:
    """Small texts never leave the part that compares all places: two tokens and hundreds of places do."""
    end = text[:length]
    found, followed = by_looking([text], end)
    match = SuffixIndex.of([text]).matches(end[::-1])
    assert match.length == found
    assert sum(followed.values()) > suffix_index.MOST_PLACES or counted(match) == followed


def test_of_many_places_some_are_counted() -> None:
    """A frequent token of a large corpus must not cost a count of all its places."""
    match = SuffixIndex.of([[1, 2, 1, 3] * 1000]).matches([1])
    seen = counted(match)
    assert 128 <= seen.total() <= suffix_index.MOST_PLACES and set(seen) == {2, 3}


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 9))
def test_a_row_is_searched_as_an_index_is(text: list[int], longest: int) -> None:
    length, places = longest_matches(np.array(text), np.array(text[: -longest - 1 : -1]))
    assert (length, counted(Match(length, ((np.array(text), places),))))[: 1 + (length > 0)] == by_looking(
        [text], text[-longest:]
    )[: 1 + (length > 0)]


def test_what_followed_goes_on_where_it_stood() -> None:
    """Catches guesses that jump from one place of a match to another."""
    match = SuffixIndex.of([[1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 3, 7]]).matches([2, 1])
    tokens, weights = match.next()
    assert (tokens.tolist(), weights.tolist()) == ([3, 5], [2.5, 1.0])
    behind = match.behind(3)
    assert behind is not None and behind.length == 3 and behind.next()[0].tolist() == [4, 7]
    last = behind.behind(4)
    assert last is None and match.behind(9) is None, "nothing follows there"


class Letters:
    """A tokenizer of letters, shifted."""

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift

    def get_vocab(self) -> dict[str, int]:
        return {chr(97 + place): (place + self.shift) % 26 for place in range(26)}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self.get_vocab()[letter] for letter in text.lower() if letter in self.get_vocab()]


def test_saved_and_mapped_again(tmp_path: Path) -> None:
    index = SuffixIndex.of([[1, 2, 3, 1, 2, 4], [1, 2, 3]])
    for _ in range(2):  # the second time it replaces the first
        index.save(tmp_path / "index", Letters(), 2)
    again = SuffixIndex.load(tmp_path / "index", Letters())
    assert counted(again.matches([2, 1])) == {3: 2, 4: 1}
    assert [path.name for path in tmp_path.iterdir()] == ["index"], "nothing half-made is left"


def _cut(folder: Path) -> None:
    data = (folder / "order.npy").read_bytes()
    (folder / "order.npy").write_bytes(data[:-8])


def _changed(folder: Path, **about: object) -> None:
    known = json.loads((folder / suffix_index.CONFIG).read_text())
    (folder / suffix_index.CONFIG).write_text(json.dumps(known | about))


@pytest.mark.parametrize(
    ("spoil", "kind", "says"),
    [
        (lambda folder: (folder / suffix_index.CONFIG).unlink(), ModelNotFound, "no suffix index in .* is missing"),
        (_cut, ModelCorrupt, "is damaged .*; build it again with `outrider suffix build`"),
        (lambda folder: (folder / "tokens.npy").write_bytes(b""), ModelCorrupt, "is damaged"),
        (lambda folder: (folder / "tokens.npy").unlink(), ModelCorrupt, "is damaged"),
        (lambda folder: np.save(folder / "order.npy", np.arange(3)), ModelCorrupt, "its files have other sizes"),
        (lambda folder: (folder / suffix_index.CONFIG).write_text("{"), ModelCorrupt, "is damaged"),
        (lambda folder: (folder / suffix_index.CONFIG).write_text("[]"), ModelCorrupt, "is damaged"),
        (lambda folder: _changed(folder, version=99), ModelCorrupt, "has version 99, not 1"),
        (lambda folder: _changed(folder, tokenizer="x"), TokenizerMismatch, "built with another tokenizer"),
    ],
)  # fmt: skip
def test_damaged_indexes(tmp_path: Path, spoil: object, kind: type[OutriderError], says: str) -> None:
    folder = tmp_path / "index"
    SuffixIndex.of([[1, 2, 3, 1, 2, 4]]).save(folder, Letters(), 1)
    spoil(folder)  # type: ignore[operator]
    with pytest.raises(kind, match=says) as caught:
        SuffixIndex.load(folder, Letters())
    assert "\n" not in str(caught.value)


def test_tokenizers_are_told_apart(tmp_path: Path) -> None:
    """Catches a name made of the size of a vocabulary alone."""
    SuffixIndex.of([[1, 2, 3]]).save(tmp_path / "index", Letters(), 1)
    with pytest.raises(TokenizerMismatch):
        SuffixIndex.load(tmp_path / "index", Letters(1))


@given(st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 2), min_size=1, max_size=12))), ENDS)
def test_a_memory_finds_the_outputs_of_its_owner(outputs: list[tuple[str, list[int]]], end: list[int]) -> None:
    """Whatever was joined on the way. Catches parts that are lost, counted twice, or shown to somebody else."""
    memory = OutputMemory()
    for owner, output in outputs:
        memory.add(owner, [1], output)
    for owner in "abc":
        length, followed = by_looking([[1, *output] for by, output in outputs if by == owner], end)
        match = memory.matches(owner, end[::-1])
        assert (0 if match is None else match.length) == length
        assert match is None or counted(match) == followed


def test_the_oldest_is_forgotten_first() -> None:
    """Catches a memory without bounds, one that forgets everything at once, and one that forgets the newest."""
    memory = OutputMemory(most=1000)
    for number in range(200):
        memory.add("a" if number % 2 else "b", [500], [number] * 20)
        assert len(memory) <= 1000
    left = [[number for number in range(of == "a", 200, 2) if memory.matches(of, [number])] for of in "ab"]
    assert all(known == list(range(known[0], 200, 2)) for known in left)
    assert sum(map(len, left)) * 22 > 700, "most of what it may hold"


def test_bounds_of_a_memory() -> None:
    for wrong in (0, 100.5):
        with pytest.raises(BadOption, match=f"most must be a whole number of tokens from 1 on, got {wrong}"):
            OutputMemory(wrong)  # type: ignore[arg-type]
    small = OutputMemory(4)
    small.add("a", [1, 2, 3], [4, 5, 6, 7])
    small.add("a", [1], [])
    assert len(small) <= 4
