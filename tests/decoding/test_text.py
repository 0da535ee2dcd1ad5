"""Text that is decoded a few tokens at a time is the text of all tokens, and stops end where they would."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from outrider.decoding.stopping import Stopping
from outrider.decoding.text import Decode, GrowingText

WORDS = ["a", "b", "ab", " ", "  ", ".", "'", "s", "n't", "do", "not", ",", "é", "€", "x y", "\n", "the"]


def _tokenizer(vocabulary: list[str], decoder: object) -> Decode:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(dict.fromkeys(vocabulary))}, unk_token="a"))
    made.decoder = decoder
    made.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return lambda tokens: made.decode(list(tokens), skip_special_tokens=True)


def _byte_level() -> Decode:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return _tokenizer([*alphabet, "âĤ", "ðŁĺ", "Ġthe", "Ãī"], decoders.ByteLevel())


def _pieces() -> list[str]:
    return [*(w.replace(" ", "▁") for w in WORDS), "▁a", "▁the", "▁▁", "▁"]


def _llama() -> Decode:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    octets = [f"<0x{octet:02X}>" for octet in (0x41, 0x80, 0x82, 0x98, 0x9F, 0xAC, 0xC3, 0xE2, 0xF0, 0xFF)]
    return _tokenizer([*_pieces(), *octets], decoders.Sequence(steps))


def _cleaned_up(tokens: Sequence[int]) -> str:
    """As transformers cleans up spaces: a token can take back a space before it."""
    text = "".join(WORDS[token % len(WORDS)] for token in tokens)
    for wrong, right in ((" .", "."), (" 's", "'s"), (" n't", "n't"), (" ,", ",")):
        text = text.replace(wrong, right)
    return text


DECODERS = {
    "byte-level": (_byte_level(), 262),
    "sentencepiece": (_tokenizer(_pieces(), decoders.Metaspace()), 22),
    "byte fallback": (_llama(), 32),
    "wordpiece": (_tokenizer([*WORDS, "##s", "##ing", "##'"], decoders.WordPiece()), 22),
    "bpe with suffix": (_tokenizer(["a</w>", "b", "the</w>", "c"], decoders.BPEDecoder()), 6),
    "cleaned up": (_cleaned_up, len(WORDS)),
}


def slowly(decode: Decode, tokens: Sequence[int], stops: Sequence[str]) -> tuple[int, int | None]:
    """The rule itself, token by token on the whole text -> tokens taken, and where the text is cut."""
    for count in range(1, len(tokens) + 1):
        text = decode(tokens[:count])
        places = [place for stop in stops if (place := text.find(stop)) >= 0]
        if places:
            return count, min(places)
    return len(tokens), None


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
def test_a_stop_is_where_the_whole_text_has_it(name: str, data: st.DataObject) -> None:
    """Every token, every place: the same as decoding everything for each token, which took quadratic time."""
    decode, size = DECODERS[name]
    tokens = data.draw(st.lists(st.integers(0, size - 1), max_size=40))
    whole = decode(tokens)
    spans = [whole[i : i + n] for i in range(len(whole)) for n in (1, 2, 5)]
    stops = data.draw(st.lists(st.sampled_from([*spans, "\ufffd", "a b", " ", "€", "never"]), max_size=3))
    row = Stopping(1000, stop=tuple(stops), decode=decode).start([0])
    taken = row.push(tokens)
    assert (len(taken), row.cut) == slowly(decode, tokens, stops)
    assert row.stop_reason is None or row.stop_reason in stops


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
def test_the_growing_text_is_the_text(name: str, data: st.DataObject) -> None:
    """After any number of tokens at once, and from every place on."""
    decode, size = DECODERS[name]
    tokens = data.draw(st.lists(st.integers(0, size - 1), max_size=60))
    growing, end = GrowingText(decode), 0
    while end < len(tokens):
        end += data.draw(st.integers(1, 5))
        growing.read(tokens[:end])
        text = decode(tokens[:end])
        assert growing.after(0) == text
        place = data.draw(st.integers(0, len(text) + 2))
        assert growing.after(place) == text[place:]


@pytest.mark.parametrize("name", ["byte-level", "sentencepiece", "wordpiece"])
@given(data=st.data())
def test_what_is_streamed_is_the_text(name: str, data: st.DataObject) -> None:
    """The parts of a stream are the text without its stop string, and none is taken back."""
    decode, size = DECODERS[name]
    tokens = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=40))
    whole = decode(tokens)
    stops = data.draw(st.lists(st.sampled_from([*(whole[i : i + 3] for i in range(len(whole))), "a b"]), max_size=2))
    row, shown = Stopping(len(tokens), stop=tuple(filter(None, stops)), decode=decode).start([0]), ""
    for token in tokens:
        if row.finish_reason is None:
            row.push([token])
            shown += row.printable(decode, len(shown))
    assert shown == row.text(decode)


def test_reading_again_without_new_tokens_changes_nothing() -> None:
    """Every stream chunk without new text settled again, until the window's places were copies of one."""
    decode, _ = DECODERS["byte-level"]
    growing, tokens = GrowingText(decode), list(range(40, 60))
    for end in range(1, 21):
        growing.read(tokens[:end])
    before = list(growing.pieces)
    for _ in range(9):
        assert growing.read(tokens) == growing.length
    assert growing.pieces == before


def test_a_token_is_decoded_a_few_times_however_long_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 tokens with a stop string and a stream decoded 16 million; now a small number for each."""
    decode, _ = DECODERS["byte-level"]
    decoded = 0

    def counted(tokens: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(tokens)
        return decode(tokens)

    row, shown = Stopping(5000, stop=("never",), decode=counted).start([0]), 0
    for token in range(4000):
        row.push([token % 90])
        shown += len(row.printable(counted, shown))
    assert shown > 3000 and decoded < 4000 * 40
