"""Tokens by their bytes: what tokenizers of different conventions have in common, and what cannot be compared."""

from __future__ import annotations

from typing import Any

import pytest
import transformers as tf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

import library
from outrider.errors import TokenizerMismatch
from outrider.models.hub.shared_tokens import SharedTokens, shared_tokens
from outrider.models.hub.token_bytes import TokenBytes, complete, token_bytes
from two_tokenizers import byte_level, of_five, of_twelve, sentencepiece, shared

TEXTS = ("the man in a  hat", "", "naïve 日本 🙂\n\tx", " lead and tail ", "1+1\r\n")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", [library.tokenizer, sentencepiece])
def test_tokens_write_the_text_they_were_made_of(make: Any, text: str) -> None:
    """Catches a wrong table of bytes, a space too many, and a byte that is read as its name."""
    found = token_bytes(make(), "x")
    assert found.written(found.encode(text)).removeprefix(b" " * found.adds_space) == text.encode()
    assert found.keeps(text)


def test_every_byte_has_a_letter() -> None:
    """Catches a letter of byte-level BPE that stands for another byte."""
    found = token_bytes(library.tokenizer(), "x")
    own = found.ids
    assert {bytes([byte]) for byte in range(256)} <= set(own)
    for byte in range(0xC2, 0xF4):  # each in a character that the tokenizer itself has encoded
        character = bytes([byte]).ljust(2 + (byte >= 0xE0) + (byte >= 0xF0), b"\xa1")
        text = character.decode("utf-8", "ignore")
        if text:
            assert found.written(found.encode(text)) == text.encode()


def test_conventions_of_spaces() -> None:
    """Catches the two ways to write a space taken for different tokens, and a start that is lost."""
    byte, piece = token_bytes(library.tokenizer(), "x"), token_bytes(sentencepiece(), "y")
    assert (byte.adds_space, piece.adds_space) == (False, True)
    assert (byte.start, piece.start) == ((), (1,))
    assert piece.pieces[piece.encode("the")[0]] == b" the"
    both = SharedTokens.of(byte, piece)
    words = {byte.pieces[ours]: piece.pieces[theirs] for ours, theirs in pairs(both) if ours in byte.pieces}
    assert all(ours == theirs for ours, theirs in words.items())
    assert {b"the", b"th", b" ", b"a", b"\xe2"} <= set(words) and b" the" not in words


def test_the_usual_token_of_two() -> None:
    """Catches a letter mapped to the byte that stands in for letters without a token."""
    piece = token_bytes(sentencepiece(), "y")
    assert piece.ids[b"a"] == piece.encode("ba")[-1] != piece.encode("\x00")[-1]
    assert piece.pieces[3 + ord("a")] == b"a" and piece.ids[b"a"] > 3 + 256


def pairs(found: SharedTokens) -> list[tuple[int, int]]:
    return list(zip(found.target_ids, found.draft_ids, strict=True))


@pytest.mark.parametrize("make", [of_five, of_twelve, lambda: shared(library.tokenizer(), sentencepiece())])
def test_the_map_is_one_to_one(make: Any) -> None:
    """Catches two tokens of one side that mean one of the other: q would count its mass twice."""
    found = make()
    assert list(found.target_ids) == sorted(set(found.target_ids))
    assert len(set(found.draft_ids)) == len(found.draft_ids)


def test_few_tokens_by_hand() -> None:
    """Catches a map by number, or by place."""
    assert pairs(of_five()) == [(0, 2), (1, 4), (2, 1), (3, 5)]
    assert (10, 1) in pairs(of_twelve())  # </s> and <end> both end a text


def test_special_and_added_tokens() -> None:
    """Catches a special token taken for text, and an added word taken for a special token."""
    added = token_bytes(sentencepiece(added=["\n\n"]), "y")
    assert added.ids[b"\n\n"] == added.encode("a\n\nb")[1]
    both = shared(library.tokenizer(), sentencepiece())
    assert both.special == {1: 1, 2: 2}  # <s> and </s>; <pad> and <unk> have no partner
    assert b"</s>" not in both.target.ids and b"</s>" not in both.draft.ids


@pytest.mark.parametrize(
    ("text", "wanted"), [(b" the man", ["▁the", "▁", "m", "a", "n"]), (b"man", ["m", "a", "n"]), (b"", [])]
)
def test_a_text_that_goes_on(text: bytes, wanted: list[str]) -> None:
    """Catches a space put into the middle of a word, or two where there is one."""
    tokenizer = sentencepiece()
    assert tokenizer.convert_ids_to_tokens(token_bytes(tokenizer, "y").encode_behind(text)) == wanted


@pytest.mark.parametrize(("given", "end"), [("aé", 3), ("🙂", 4), ("日", 3)])
def test_unfinished_characters(given: str, end: int) -> None:
    """Catches a character that is cut in the middle and read as another one."""
    data = given.encode()
    assert complete(data) == end
    begins = len(given[:-1].encode())
    assert [complete(data[:cut]) for cut in range(begins, end)] == [begins] * (end - begins)


def test_what_a_draft_wrote_for_the_target() -> None:
    """Catches guesses that are not the target's tokens of the draft's text, and an end that is lost or too early."""
    both = shared(library.tokenizer(), sentencepiece())
    written = both.draft.encode("the cat")
    assert both.target.written(both.for_target(written)) == b" the cat"
    assert both.for_target([*written, 2, *written]) == [*both.for_target(written), 2]
    assert both.for_target([*written, 0, *written]) == both.for_target(written)  # <unk> has no partner
    half = [both.draft.ids[bytes([byte])] for byte in "日".encode()[:2]]
    assert both.for_target([*written, *half, 2]) == both.for_target(written)


def word_piece() -> tf.PreTrainedTokenizerFast:
    made = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    made.decoder = decoders.WordPiece()
    return tf.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")


def uncased() -> tf.PreTrainedTokenizerFast:
    words = library.tokenizer()
    words.backend_tokenizer.normalizer = normalizers.Lowercase()
    return words


def of_words() -> tf.PreTrainedTokenizerFast:
    """Every byte, and so many words of its own that bytes are a tiny share of them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return byte_level([*alphabet, *(f"{a}{b}{c}" for a in alphabet[:20] for b in alphabet[:20] for c in alphabet[:20])])


def of_other_words() -> tf.PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return byte_level([*alphabet, *(f"{a}{b}zz" for a in alphabet[:80] for b in alphabet[:80])])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (word_piece, "'small' joins its tokens in a way .WordPiece. that loses spaces"),
        (uncased, "'small' does not give a text back as it was"),
        (of_other_words, "only 256 tokens of vocabularies of 6656 and 8256 are common"),
        (object, "'small' is no tokenizer.json"),
    ],
)
def test_what_cannot_be_compared(make: Any, says: str) -> None:
    """Catches a tokenizer that loses text, or shares next to nothing, used all the same."""
    with pytest.raises(TokenizerMismatch, match=says) as caught:
        shared_tokens(("big", of_words()), ("small", make()))
    said = str(caught.value)
    assert "\n" not in said and "'big'" in said and "choose a draft of the same family" in said


def test_truncation_is_nobody_elses() -> None:
    """Catches a context cut short because the caller's tokenizer was once told to."""
    words = library.tokenizer()
    words("a long text", truncation=True, max_length=2)
    found: TokenBytes = token_bytes(words, "x")
    assert found.keeps("a long text")
