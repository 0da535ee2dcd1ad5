"""A text in the draft's tokens: as its tokenizer encodes it, whatever pieces it came in."""

from __future__ import annotations

import random

import pytest

import library
from outrider.drafters.draft_text import BLOCK, DraftText, common_prefix
from outrider.models.hub.shared_tokens import SharedTokens
from two_tokenizers import byte_level, sentencepiece, shared

LONG = "On the other hand an ant in the thin air  went on and on, then\nin the end it rained there again. " * 9
TEXTS = ("the man", " the man in a hat", "naïve 日本語 🙂 in the end", "\n\n  indented", "a", LONG)


def pair(target: str, draft: str) -> SharedTokens:
    made = {"bytes": library.tokenizer, "pieces": sentencepiece, "turned": lambda: library.tokenizer(turned=True)}
    return shared(made[target](), made[draft]())


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("target", "draft"), [("bytes", "pieces"), ("pieces", "bytes"), ("bytes", "turned")])
def test_the_encoding_of_the_whole_text(target: str, draft: str, text: str) -> None:
    """Catches a space lost or added at the start or where a long text is cut, and a tail that is encoded by itself."""
    both = pair(target, draft)
    row = DraftText(both, [*both.target.start, *both.target.encode(text)])
    assert row.ids() == [*both.draft.start, *both.draft.encode(text)]
    assert (row.settled > len(both.draft.start)) == (len(text) > 2 * BLOCK)


@pytest.mark.parametrize(("target", "draft"), [("bytes", "pieces"), ("pieces", "bytes")])
def test_a_text_in_pieces(target: str, draft: str) -> None:
    """Catches an encoding that depends on how many tokens came at once, and settled tokens that change after all."""
    both, chosen = pair(target, draft), random.Random(1)
    tokens = both.target.encode(LONG)
    row, place, before = DraftText(both), 0, list[int]()
    while place < len(tokens):
        count = chosen.randrange(1, 9)
        row.append(tokens[place : place + count])
        place += count
        ids = row.ids()
        assert ids is not None and ids[: len(before)] == before
        before = ids[: row.settled]
    assert ids == DraftText(both, tokens).ids()


def test_special_tokens() -> None:
    """Catches a special token that is spelled out, a start that is there twice, and words joined across one."""
    both = pair("pieces", "bytes")
    words, end = both.target.encode("the"), 2
    row = DraftText(both, [1, *words, end, *words])
    assert row.ids() == [*both.draft.encode("the"), 2, *both.draft.encode(" the")]
    assert DraftText(both, [0, *words, 0]).ids() == both.draft.encode("the")  # <unk>, which the draft has not


def test_a_copy_goes_on_by_itself() -> None:
    """Catches rows that share lists."""
    both = pair("bytes", "pieces")
    row = DraftText(both, both.target.encode("the"))
    twin = row.copy()
    twin.append([2, *both.target.encode(" man")])
    assert row.ids() == DraftText(both, both.target.encode("the")).ids() != twin.ids()


def test_unfinished_characters() -> None:
    """Catches half a character that is shown to the draft as another one, or left out as if it were not there."""
    tokens = library.tokenizer().encode("a日")[:-1]  # two of three bytes
    by_bytes = pair("bytes", "turned")
    assert DraftText(by_bytes, tokens).ids() == [by_bytes.draft.ids[by_bytes.target.pieces[t]] for t in tokens]
    no_bytes = shared(library.tokenizer(), byte_level(["a", "b"]))
    assert DraftText(no_bytes, tokens).ids() is None
    assert DraftText(no_bytes, [tokens[0]]).ids() == [0]
    assert DraftText(no_bytes).ids() is None  # a model cannot go on behind nothing


def test_common_prefix() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert common_prefix([1, 2], [1, 2, 4], 1) == 2
    assert common_prefix([], [1]) == 0
