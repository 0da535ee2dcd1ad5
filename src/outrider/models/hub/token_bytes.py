"""A tokenizer by the bytes that its tokens stand for: what two tokenizers can be compared by.

Byte-level BPE writes every byte as a letter of its own; SentencePiece writes spaces as ``▁``, puts one before a text,
and may write single bytes as ``<0xE2>``. As bytes they are alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from outrider.errors import TokenizerMismatch
from outrider.models.settings import setting

SAMPLE = "Speculation, on or off: 12,345 tokens (naïve)\n\tdef f(x): return x"
"""A tokenizer that cannot give this text back loses something of other texts, too."""

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class TokenBytes:
    """What each token of a tokenizer writes, and how it encodes a text."""

    pieces: Mapping[int, bytes]  # tokens that write text, by id; of two that write the same, the usual one first
    special: Mapping[int, str]  # tokens that write none, by id: their names
    encode: Callable[[str], list[int]]  # without special tokens
    end: int | None = None  # the end-of-sequence token
    start: tuple[int, ...] = ()  # special tokens before every text

    @cached_property
    def adds_space(self) -> bool:
        """Whether the first token of a text writes a space that the text does not have, as SentencePiece's does."""
        return self.written(self.encode("a")).startswith(b" ")

    @cached_property
    def ids(self) -> Mapping[bytes, int]:
        """The token that writes these bytes; of several the usual one."""
        found: dict[bytes, int] = {}
        for token, piece in self.pieces.items():
            found.setdefault(piece, token)
        return found

    def written(self, tokens: list[int]) -> bytes:
        """The bytes of tokens; special ones write nothing."""
        return b"".join(self.pieces.get(token, b"") for token in tokens)

    def encode_behind(self, text: bytes, first: bool = False) -> list[int]:
        """Encode whole characters that stand behind others, so that no space is added, or ``first`` of all."""
        if not text:
            return []
        shown = text.decode("utf-8", "replace")
        if first or not self.adds_space:
            return self.encode(shown)
        if shown.startswith(" "):
            return self.encode(shown[1:])
        anchored, before = self.encode("\n" + shown), b""
        for place, token in enumerate(anchored, 1):
            before += self.pieces.get(token, b"")
            if before == b" \n":
                return anchored[place:]
        return self.encode(shown)

    def keeps(self, text: str) -> bool:
        """Whether a text can be read off its tokens again."""
        return self.written(self.encode(text)).removeprefix(b" " if self.adds_space else b"") == text.encode()


def token_bytes(tokenizer: Any, name: str) -> TokenBytes:
    """Of the tokenizer of the model ``name``."""
    own: Tokenizer | None = setting(tokenizer, "backend_tokenizer")
    if own is None:
        raise TokenizerMismatch(f"the tokenizer of {name!r} is no tokenizer.json, so its tokens cannot be compared")
    written = own.to_str()
    backend, described = Tokenizer.from_str(written), json.loads(written)  # nobody else's truncation or padding
    backend.no_truncation()
    backend.no_padding()
    added = {entry["id"]: entry for entry in described["added_tokens"]}
    read = _reader(described, name)
    pieces, single = dict[int, bytes](), dict[int, bytes]()
    for word, token in sorted(backend.get_vocab(with_added_tokens=False).items(), key=lambda pair: pair[1]):
        if token not in added and (piece := read(word)):
            (single if _BYTE.fullmatch(word) else pieces)[token] = piece
    pieces |= {token: entry["content"].encode() for token, entry in added.items() if not entry["special"]}
    return TokenBytes(
        pieces=pieces | single,
        special={token: entry["content"] for token, entry in added.items() if entry["special"]},
        encode=lambda text: list(backend.encode(text, add_special_tokens=False).ids),
        end=setting(tokenizer, "eos_token_id"),
        start=_start(tokenizer),
    )


def _start(tokenizer: Any) -> tuple[int, ...]:
    """The special tokens before a text."""
    bare, whole = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
    places = range(len(whole) - len(bare) + 1)
    return tuple(next((whole[:place] for place in places if whole[place : place + len(bare)] == bare), ()))


def _reader(described: Mapping[str, Any], name: str) -> Callable[[str], bytes | None]:
    """From a word of the vocabulary to its bytes, as the tokenizer's own decoder has it."""
    decoder = described["decoder"] or {"type": "none"}
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _of_letters
    spaces = [step["replacement"] for step in steps if step["type"] == "Metaspace"]
    replaced = (step["pattern"].get("String") for step in steps if step["type"] == "Replace" and step["content"] == " ")
    spaces += filter(None, replaced)  # not those that match by a rule
    if not spaces:
        kind = decoder["type"]
        raise TokenizerMismatch(f"the tokenizer of {name!r} joins its tokens in a way ({kind}) that loses spaces")

    def read(word: str) -> bytes | None:
        byte = _BYTE.fullmatch(word) if "ByteFallback" in kinds else None
        return bytes.fromhex(byte[1]) if byte else word.replace(spaces[0], " ").encode()

    return read


def _letters() -> dict[str, int]:
    """The letters of byte-level BPE: bytes that can be printed stand for themselves, others for letters from 256 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


_LETTERS = _letters()


def _of_letters(word: str) -> bytes | None:
    """None: not written in those letters."""
    found = [_LETTERS.get(letter) for letter in word]
    return None if None in found else bytes(byte for byte in found if byte is not None)


def complete(text: bytes) -> int:
    """Where the last whole character of UTF-8 ends."""
    for back in range(1, min(3, len(text)) + 1):
        byte = text[-back]
        if byte >= 0xC0:  # the first byte of a character of two, three or four
            size = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return len(text) - back if back < size else len(text)
        if byte < 0x80:
            break
    return len(text)
