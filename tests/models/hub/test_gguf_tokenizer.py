"""Tokenizers of GGUF files: the rule that a file names splits text, and texts begin as the file says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers as tf

from outrider.errors import ModelError
from outrider.models.hub.gguf_tokenizer import read_tokenizer
from tiny_gguf import byte_alphabet

FILE = Path("model.gguf")
WORDS = ["<bos>", "<eos>", *byte_alphabet(), "12", "123", "Ġ1", "he", "ll", "hell"]
BYTES: dict[str, Any] = {
    "general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": WORDS,
    "tokenizer.ggml.merges": ["Ġ 1", "1 2", "12 3", "h e", "l l"], "tokenizer.ggml.token_type": [3, 3] + [1] * 262,
    "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1,
}  # fmt: skip


def read(pre: str, text: str, **more: Any) -> list[str]:
    metadata = BYTES | {"tokenizer.ggml.pre": pre} | {f"tokenizer.ggml.{name}": value for name, value in more.items()}
    tokenizer = read_tokenizer(FILE, metadata)
    found = tokenizer.encode(text)
    assert tokenizer.decode(found, skip_special_tokens=True) == text
    return list(tokenizer.convert_ids_to_tokens(found))


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("llama-bpe", ["<bos>", "123", "4", "Ġ", "12", "he", "ll", "o"]),
        ("dbrx", ["123", "4", "Ġ", "12", "he", "ll", "o"]),  # OLMo 2
        ("smaug-bpe", ["123", "4", "Ġ", "12", "he", "ll", "o"]),  # SmolLM3
        ("refact", ["1", "2", "3", "4", "Ġ", "1", "2", "he", "ll", "o"]),  # Granite
        ("gpt-2", ["123", "4", "Ġ1", "2", "he", "ll", "o"]),
    ],
)
def test_rules_that_are_known(pre: str, expected: list[str]) -> None:
    """Digits in threes and apart from spaces, one by one, or with the space before them."""
    assert read(pre, "1234 12hello") == expected


def test_whole_words_first() -> None:
    """Llama 3 does not merge a word that is a token; what uses its pattern only does."""
    assert read("llama-bpe", "hell", add_bos_token=False) == ["hell"] and read("dbrx", "hell") == ["he", "ll"]


def test_texts_begin_with_bos_where_the_file_says_so() -> None:
    """transformers' reader of such files leaves it out, of every kind: Llama and Gemma write another text without."""
    assert read("dbrx", "he", add_bos_token=True) == ["<bos>", "he"]
    assert read("llama-bpe", "he", add_bos_token=False) == ["he"]
    assert read("smollm", "he", add_bos_token=True)[0] == "<bos>"


def test_a_rule_that_is_not_known() -> None:
    """transformers knows no model of this kind, and would split by GPT-2's rule without a word."""
    given = BYTES | {"general.architecture": "olmo2", "tokenizer.ggml.pre": "superbpe"}
    with pytest.raises(
        ModelError, match=r"splits text by a rule \(superbpe\) that is not known here; use .* safetensors"
    ):
        read_tokenizer(FILE, given)


@pytest.mark.parametrize("architecture", ["gemma", "gemma3", "llama"])
def test_sentencepiece(architecture: str, tmp_path: Path) -> None:
    """Gemma 1 is no model of transformers' reader; its tokenizer is, and bos comes first, after a round trip, too."""
    from gguf import GGUFWriter

    words = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = ["▁", "h", "e", "l", "o", "he", "ll", "▁he", "hell", "hello", "▁hello"]
    file = tmp_path / "file.gguf"
    writer = GGUFWriter(file, architecture)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(words + pieces)
    writer.add_token_scores([0.0] * len(words) + [-float(place) for place in range(len(pieces))])
    writer.add_token_types([3, 3, 3, 2] + [6] * 256 + [1] * len(pieces))
    for name, place in (("bos", 2), ("eos", 1), ("unk", 3), ("pad", 0)):
        getattr(writer, f"add_{name}_token_id")(place)
    for name in ("context_length", "embedding_length", "block_count", "feed_forward_length", "head_count"):
        getattr(writer, f"add_{name}")(8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    from gguf import GGUFReader

    metadata = {key: field.contents() for key, field in GGUFReader(file).fields.items()}
    tokenizer = read_tokenizer(file, metadata)
    first = ["hello"] if architecture.startswith("gemma") else ["▁he", "ll", "o"]  # by order of tokens, or by scores
    tokenizer.save_pretrained(tmp_path)
    again = tf.AutoTokenizer.from_pretrained(tmp_path)
    for each in (tokenizer, again):
        assert each.convert_ids_to_tokens(each.encode("hello he")) == ["<bos>", *first, "▁he"]
        assert each.decode(each.encode("hello he"), skip_special_tokens=True) == "hello he"
