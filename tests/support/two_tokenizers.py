"""Small tokenizers that differ, of both conventions, and what toys of a few tokens share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import transformers as tf
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from outrider.models.hub.shared_tokens import SharedTokens
from outrider.models.hub.token_bytes import token_bytes

Merges = Sequence[tuple[str, str]]

TEXT_MERGES = [("t", "h"), ("th", "e"), ("i", "n"), ("o", "n"), ("▁", "the"), ("▁", "a"), ("e", "r"), ("▁a", "n")]


def byte_level(words: Sequence[str], merges: Merges = (), end: str | None = None) -> tf.PreTrainedTokenizerFast:
    """Byte-level BPE of these words, numbered in this order; a space is written Ġ. ``end`` is special."""
    bpe = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, list(merges)))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    options = {} if end is None else {"eos_token": end}
    return tf.PreTrainedTokenizerFast(tokenizer_object=bpe, **options)


def sentencepiece(*, letters: str = "abcdefghijklmnopqrstuvwxyz", added: Sequence[str] = (), **options: Any) -> Any:
    """BPE as SentencePiece has it: ▁ for a space, one before the text, bytes for the rest, <s> at the start."""
    parts = [f"<0x{byte:02X}>" for byte in range(256)]
    made = [first + second for first, second in TEXT_MERGES]
    words = ["<unk>", "<s>", "</s>", *parts, "▁", *letters, *made]
    bpe = Tokenizer(
        models.BPE({word: i for i, word in enumerate(words)}, TEXT_MERGES, byte_fallback=True, unk_token="<unk>")
    )
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bpe.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    bpe.add_tokens([AddedToken(word, normalized=False) for word in added])
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", unk_token="<unk>", **options
    )


def shared(target: Any, draft: Any) -> SharedTokens:
    return SharedTokens.of(token_bytes(target, "target"), token_bytes(draft, "draft"))


def of_five() -> SharedTokens:
    """Five tokens of a target and six of a draft; four of them are the same text, with other numbers."""
    target = byte_level(["a", "b", "c", "ab", "ca"], [("a", "b"), ("c", "a")])
    draft = byte_level(["</s>", "c", "a", "bc", "b", "ab"], [("b", "c"), ("a", "b")], end="</s>")
    return shared(target, draft)


def of_twelve() -> SharedTokens:
    """Twelve tokens of a target and eleven of a draft, nine of them shared, the end among them by its meaning."""
    merges = [("a", "b"), ("c", "d"), ("ab", "c"), ("Ġ", "a"), ("b", "a")]
    target = byte_level(["a", "b", "c", "d", "Ġ", "ab", "cd", "abc", "Ġa", "ba", "</s>", "e"], merges, end="</s>")
    words = ["Ġ", "<end>", "d", "c", "b", "a", "ab", "bc", "Ġa", "e", "da"]
    return shared(target, byte_level(words, [("b", "c"), ("a", "b"), ("Ġ", "a"), ("d", "a")], end="<end>"))


def of_ninety() -> SharedTokens:
    """For the models of ``tiny``: letters and pairs of them, 40 pairs shared and 26 of each side's own."""
    letters = [*"abcdefghijklmnopqrstuvwxyz.", "Ġ"]
    pairs = [(vowel, other) for vowel in "aeiou" for other in "bcdfghklmnprst"][:66]
    turned = [*pairs[:40][::-1], *((other, vowel) for vowel, other in pairs[40:])]
    target = byte_level(["</s>", *letters, *map("".join, pairs)], pairs, end="</s>")
    return shared(target, byte_level([*map("".join, turned), *letters[::-1], "<e>"], turned, end="<e>"))


def of_letters(size: int) -> tuple[SharedTokens, list[int]]:
    """Single letters, which can be encoded in one way only; the draft's token i is the target's token order[i]."""
    words = ["Ġ", *map(chr, range(0x21, 0x7F)), "¡"][:size]
    order = [(place * 29 + 7) % size for place in range(size)]
    assert len(words) == size == len(set(order))
    return shared(byte_level(words), byte_level([words[place] for place in order])), order
