"""The tokenizer that a GGUF file describes, built from the file's own metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

Metadata = dict[str, Any]

# What follows a turn in the chat formats met in GGUF files; one of these is an end of sequence
# wherever the file's chat template writes it, whatever the file's single eos field says.
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|end_of_text|>")

# The `tokenizer.ggml.pre` names whose rule is GPT-2's pattern, alone or after splitting off every digit
# (llama.cpp, src/llama-vocab.cpp); files with any other rule are left to transformers.
PLAIN_PRE = {"gpt-2", "mpt", "olmo", "jais"}
DIGITS_PRE = {"smollm", "starcoder", "refact", "command-r", "codeshell"}
CONTROL, USER_DEFINED = 3, 4  # tokenizer.ggml.token_type


def build_tokenizer(metadata: Metadata) -> Any | None:
    """The tokenizer a byte-level BPE file describes; None where its splitting rule is not known here."""
    splitter = _splitter(metadata)
    if splitter is None:
        return None
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    kinds = dict(zip(words, metadata.get("tokenizer.ggml.token_type", []), strict=False))
    special = [AddedToken(word, normalized=False, special=True) for word in words if kinds.get(word) == CONTROL]
    extra = [AddedToken(word, normalized=False) for word in words if kinds.get(word) == USER_DEFINED]
    backend.add_special_tokens(special)
    backend.add_tokens(extra)
    # Clean-up would turn " ." into "." on decoding: text would no longer survive a round trip.
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)


def _splitter(metadata: Metadata) -> PreTokenizer | None:
    """The pre-tokenizer that ``tokenizer.ggml.pre`` names, for the names known here."""
    pre = metadata.get("tokenizer.ggml.pre")
    # A file that wants a token added by itself needs a post-processor: transformers knows those.
    wants_bos = metadata.get("tokenizer.ggml.add_bos_token") or metadata.get("tokenizer.ggml.add_eos_token")
    known = pre in PLAIN_PRE or pre in DIGITS_PRE
    if metadata.get("tokenizer.ggml.model") != "gpt2" or wants_bos or not known:
        return None
    from tokenizers import pre_tokenizers

    spaced = bool(metadata.get("tokenizer.ggml.add_space_prefix", False))
    plain = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    if pre in PLAIN_PRE:
        return plain
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])


def set_special_tokens(tokenizer: Any, metadata: Metadata) -> None:
    """Name the special tokens, the chat template and the longest input as the file does."""
    words: list[str] = metadata.get("tokenizer.ggml.tokens", [])
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    for attribute, key in names.items():
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None and index < len(words):
            setattr(tokenizer, attribute, words[index])
    if template := metadata.get("tokenizer.chat_template"):
        tokenizer.chat_template = template
    if limit := metadata.get(f"{metadata.get('general.architecture')}.context_length"):
        tokenizer.model_max_length = int(limit)


def end_tokens(metadata: Metadata) -> list[int]:
    """The token ids that end a text: the file's eos and eot, and its chat template's end of a turn."""
    found = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    template = metadata.get("tokenizer.chat_template", "")
    words: list[str] = metadata.get("tokenizer.ggml.tokens", [])
    found += [words.index(mark) for mark in END_OF_TURN if mark in template and mark in words]
    return sorted({int(index) for index in found if index is not None})
