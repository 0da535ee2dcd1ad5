"""A sorted index of texts: the longest match of any ending in a few binary searches, however long the texts are.

Places are sorted by the tokens that end there, read backwards, as in a suffix array of the reversed text; so all places
that end alike stand side by side, and their number is how often it happened. An automaton finds the same in one step
per token, but needs a table of transitions several times as large as the text, in memory and compiled code to be
quick; this is two arrays of numpy that are mapped from a file, and sorting doubles the tokens compared until LONGEST.
"""

from __future__ import annotations

import json
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from os import getpid
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from outrider.drafters.matching import WALL, Match, Tokens
from outrider.errors import ModelCorrupt, ModelNotFound, TokenizerMismatch, require
from outrider.runtime.files import replace_whole

CONFIG = "outrider_suffix.json"
"""What a directory with an index is known by."""

VERSION = 1

LONGEST = 32
"""Tokens of a match that are looked at: a power of two."""

MOST_PLACES = 256
"""Places of a match that are counted; of more, as many at equal distances."""

_FEW = 64
"""Places that are compared all at once rather than searched by halves."""

_SAMPLE = "Suffix memory: 12,345 tokens (naïve)\n\tdef f(x): return x"


@dataclass(frozen=True)
class SuffixIndex:
    """Texts, and their places in the order of what ends there."""

    tokens: Tokens  # [N]: every text with a wall behind it
    order: Tokens  # [M]: places that a token follows, sorted by the tokens that end there, read backwards

    @staticmethod
    def of(texts: Iterable[Sequence[int]]) -> SuffixIndex:
        """Matches never run across two texts."""
        parts = [np.append(np.asarray(text, dtype=np.int32), np.int32(WALL)) for text in texts if len(text)]
        return SuffixIndex.sorted(np.concatenate(parts) if parts else np.zeros(0, np.int32))

    @staticmethod
    def sorted(tokens: Tokens) -> SuffixIndex:
        """The index of texts that have their walls."""
        rank, reach = tokens.astype(np.int64) + 2, 1  # 0 is before the beginning, 1 a wall
        while reach < LONGEST and len(rank):
            before = np.concatenate([np.zeros(min(reach, len(rank)), np.int64), rank[:-reach]])
            rank = np.unique(rank * (int(rank.max()) + 1) + before, return_inverse=True)[1].reshape(-1) + 1
            reach *= 2
        followed = np.append((tokens[:-1] >= 0) & (tokens[1:] >= 0), np.zeros(min(1, len(tokens)), bool))
        order = np.argsort(rank, kind="stable")
        return SuffixIndex(tokens, order[followed[order]].astype(np.int32 if len(tokens) < 2**31 else np.int64))

    def matches(self, suffix: Sequence[int]) -> Match:
        """The longest match of a text's end, given backwards; of length 0 where even its last token is new."""
        low, high, length = 0, len(self.order), 0
        while length < min(len(suffix), LONGEST) and high - low > _FEW:
            token, at = suffix[length], _Before(self.tokens, length)
            first = bisect_left(self.order, token, low, high, key=at)
            last = bisect_right(self.order, token, first, high, key=at)
            if first == last:
                break
            low, high, length = first, last, length + 1
        places = np.asarray(self.order[low : high : max(1, -((low - high) // MOST_PLACES))])
        if high - low <= _FEW:
            length, places = _narrowed(self.tokens, places, suffix, length)
        return Match(length, ((self.tokens, np.sort(places)),))

    def save(self, folder: Path, tokenizer: Tokenizer, documents: int) -> None:
        """All of it or nothing; an index that is there already is replaced."""
        made, old = (folder.with_name(f".{folder.name}.{getpid()}.{part}") for part in ("new", "old"))
        try:
            made.mkdir(parents=True)
            np.save(made / "tokens.npy", self.tokens)
            np.save(made / "order.npy", self.order)
            about = {
                "version": VERSION,
                "tokenizer": tokenizer_name(tokenizer),
                "tokens": len(self.tokens) - documents,
                "documents": documents,
                "places": len(self.order),
            }
            (made / CONFIG).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
            if (folder / CONFIG).is_file():  # its name is free for a moment, its files are not lost
                folder.rename(old)
            replace_whole(made, folder)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    @staticmethod
    def load(folder: Path, tokenizer: Tokenizer) -> SuffixIndex:
        """Mapped from its files, not read: pages that are searched stay in memory."""
        again = "build it again with `outrider suffix build`"
        require(
            (folder / CONFIG).is_file(), f"no suffix index in {folder}: {CONFIG} is missing; {again}", ModelNotFound
        )
        try:
            about = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            version = about["version"]
            tokens, order = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("tokens", "order"))
            sizes = about["tokens"] + about["documents"], about["places"]
            numbers = (tokens.ndim, order.ndim, tokens.dtype.kind, order.dtype.kind) == (1, 1, "i", "i")
            whole = version != VERSION or (numbers and (len(tokens), len(order)) == sizes)
            made_for = about["tokenizer"]
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise ModelCorrupt(f"the suffix index in {folder} is damaged ({error}); {again}") from error
        require(version == VERSION, f"the suffix index in {folder} has version {version}, not {VERSION}; {again}",
                ModelCorrupt)  # fmt: skip
        require(whole, f"the suffix index in {folder} is damaged (its files have other sizes); {again}", ModelCorrupt)
        require(
            made_for == tokenizer_name(tokenizer),
            f"the suffix index in {folder} was built with another tokenizer than the target's; {again} --target TARGET",
            TokenizerMismatch,
        )
        return SuffixIndex(tokens, order)


class Tokenizer(Protocol):
    """What an index needs of a tokenizer."""

    def get_vocab(self) -> dict[str, int]: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> Any: ...


def tokenizer_name(tokenizer: Tokenizer) -> str:
    """A short name for what text becomes: the same for tokenizers that are alike, wherever they lie."""
    words = sorted(tokenizer.get_vocab().items(), key=lambda entry: (entry[1], entry[0]))
    sample = list(tokenizer.encode(_SAMPLE, add_special_tokens=False))
    return sha256(json.dumps([words, sample]).encode()).hexdigest()[:16]


class _Before:
    """The token so many before a place; -2 before the beginning. A key for searches by halves."""

    def __init__(self, tokens: Tokens, back: int) -> None:
        self.tokens, self.back = tokens, back

    def __call__(self, place: int) -> int:
        return -2 if place < self.back else int(self.tokens[place - self.back])


def _narrowed(tokens: Tokens, places: Tokens, suffix: Sequence[int], length: int) -> tuple[int, Tokens]:
    """Go on from places that agree in ``length`` tokens, for as long as some agree in one more."""
    for back in range(length, min(len(suffix), LONGEST)):
        longer = places[(places >= back) & (tokens[places - back] == suffix[back])]
        if not len(longer):
            break
        places, length = longer, back + 1
    return length, places
