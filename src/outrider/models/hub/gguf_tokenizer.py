"""The tokenizer that a GGUF file describes, built from the file's own metadata."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import ModelError
from outrider.models.hub.gguf_architectures import ARCHITECTURES

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

Metadata = dict[str, Any]

# What follows a turn in the chat formats met in GGUF files; one of these is an end of sequence
# wherever the file's chat template writes it, whatever the file's single eos field says.
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|end_of_text|>")

# The `tokenizer.ggml.pre` names whose rule is GPT-2's pattern, alone or after splitting off every digit, or Llama 3's
# (llama.cpp, src/llama-vocab.cpp); files with any other rule are left to transformers.
PLAIN_PRE = {"gpt-2", "mpt", "olmo", "jais"}
DIGITS_PRE = {"smollm", "starcoder", "refact", "command-r", "codeshell"}
LLAMA_3_PRE = {"llama3", "llama-v3", "llama-bpe"}  # whose words are tokens before any merge, and begin with bos
LIKE_LLAMA_3_PRE = {"dbrx", "smaug-bpe"}  # the same pattern and nothing else: OLMo 2, SmolLM3
CONTROL, USER_DEFINED = 3, 4  # tokenizer.ggml.token_type

_LLAMA_3_WORDS = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
    )
)  # fmt: skip


def read_tokenizer(source: Path, metadata: Metadata) -> Any:
    """A file's tokenizer, with its special tokens."""
    tokenizer = _with_bos(_build(metadata) or _by_transformers(source, metadata), metadata)
    _set_special_tokens(tokenizer, metadata)
    return tokenizer


def _by_transformers(source: Path, metadata: Metadata) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    known = ARCHITECTURES.get(metadata["general.architecture"])
    alone = known is not None and not known.by_transformers
    remedy = "use the model's safetensors files"
    if alone and kind == "gpt2":  # it would split by GPT-2's rule
        raise ModelError(f"{source}: its tokenizer splits text by a rule ({pre}) that is not known here; {remedy}")
    reader: Any = PreTrainedTokenizerFast if alone else AutoTokenizer
    try:
        return reader.from_pretrained(str(source.resolve().parent), gguf_file=source.name)
    except (ValueError, KeyError, NotImplementedError) as error:
        reason = f"its tokenizer ({kind}) is not read by this release of transformers"
        raise ModelError(f"{source}: {reason}; {remedy}") from error


def _build(metadata: Metadata) -> Any | None:
    """The tokenizer a byte-level BPE file describes; None where its splitting rule is not known here."""
    splitter = _splitter(metadata)
    if splitter is None:
        return None
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    whole = metadata["tokenizer.ggml.pre"] in LLAMA_3_PRE
    vocabulary = {word: i for i, word in enumerate(words)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole))
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
    known = PLAIN_PRE | DIGITS_PRE | LLAMA_3_PRE | LIKE_LLAMA_3_PRE
    # A file that wants a token added behind a text is left to transformers.
    if (
        metadata.get("tokenizer.ggml.model") != "gpt2"
        or metadata.get("tokenizer.ggml.add_eos_token")
        or pre not in known
    ):
        return None
    from tokenizers import Regex, pre_tokenizers

    spaced = bool(metadata.get("tokenizer.ggml.add_space_prefix", False))
    if pre in LLAMA_3_PRE | LIKE_LLAMA_3_PRE:
        words = pre_tokenizers.Split(Regex(_LLAMA_3_WORDS), "isolated")
        return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=spaced, use_regex=False)])
    plain = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    if pre in PLAIN_PRE:
        return plain
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])


def _with_bos(tokenizer: Any, metadata: Metadata) -> Any:
    """A tokenizer whose texts begin with bos where the file's do: transformers' reader leaves it out."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    usual = kind == "llama" or (kind == "gpt2" and pre in LLAMA_3_PRE)
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    words: list[str] = metadata.get("tokenizer.ggml.tokens", [])
    if bos is None or bos >= len(words) or not metadata.get("tokenizer.ggml.add_bos_token", usual):
        return tokenizer
    if tokenizer.encode("a")[:1] == [bos]:
        return tokenizer
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    backend, word = tokenizer.backend_tokenizer, words[bos]
    backend.post_processor = processors.TemplateProcessing(
        single=[word, "$A"], pair=[word, "$A", "$B:1"], special_tokens=[(word, int(bos))]
    )
    # Its file says all of it: a class of transformers' would make a post-processor of its own.
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)


def _set_special_tokens(tokenizer: Any, metadata: Metadata) -> None:
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
