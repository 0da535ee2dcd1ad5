"""Small model directories made on the fly: a tiny Llama or T5 with a byte-level tokenizer, saved as a user would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from outrider.models.engine.backends import BACKENDS
from outrider.models.engine.prepared import Prepared, prepare

LETTERS = "abcdefghijklmnopqrstuvwxyz .\n"
SPECIAL = ["<pad>", "<s>", "</s>"]
ROWS = 320
"""Rows of the output layer: more than there are tokens, as in many real models."""


def prepared(folder: Path, config: Any, engine: str, weights: str) -> Prepared:
    """An engine's files for a model's directory, with weights in the given format."""
    return prepare(folder, config, BACKENDS[engine].layout(weights))


def tokenizer(*, turned: bool = False, **options: Any) -> tf.PreTrainedTokenizerFast:
    """Bytes and two merges. ``turned``: the same tokens with other numbers."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=turned)
    words = [*SPECIAL, *alphabet, "th", "the"]
    bpe = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [("t", "h"), ("th", "e")]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", bos_token="<s>", eos_token="</s>", **options
    )


def _make_likely(head: torch.nn.Module, words: tf.PreTrainedTokenizerBase) -> None:
    """Greedy text is letters; at temperature 1 stray bytes come in between, and the end token now and then."""
    likely = words.encode(LETTERS)
    weight = torch.zeros_like(head.weight)
    weight[likely] = torch.randn((len(likely), weight.shape[1])) * 0.45
    weight[words.eos_token_id] = torch.randn(weight.shape[1]) * 0.3
    head.weight = torch.nn.Parameter(weight)


def _save(folder: Path, build: Callable[[], tf.PreTrainedModel], words: tf.PreTrainedTokenizerFast, seed: int) -> Path:
    """A model made with this seed, with a likely output layer, beside its tokenizer."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build()
        _make_likely(model.lm_head, words)
        if "final_logits_bias" in dict(model.named_buffers()):
            model.final_logits_bias.copy_(torch.randn(ROWS) * 0.3)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def save_llama(
    folder: Path,
    seed: int = 0,
    *,
    rows: int = ROWS,
    turned: bool = False,
    words: tf.PreTrainedTokenizerFast | None = None,
    **options: Any,
) -> Path:
    config = tf.LlamaConfig(
        vocab_size=rows, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.4, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    words = tokenizer(turned=turned, **options) if words is None else words
    return _save(folder, lambda: tf.LlamaForCausalLM(config), words, seed)


def save_t5(folder: Path, seed: int = 0) -> Path:
    config = tf.T5Config(
        vocab_size=ROWS, d_model=32, d_ff=64, num_layers=2, num_heads=4, d_kv=8, tie_word_embeddings=False,
        decoder_start_token_id=0, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return _save(folder, lambda: tf.T5ForConditionalGeneration(config), tokenizer(), seed)


def save_bart(folder: Path, seed: int = 0, *, marian: bool = False) -> Path:
    """A BART, or a Marian with its fixed positions, an output bias and padding as the start of the output."""
    sizes = {
        "vocab_size": ROWS, "d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_layers": 2,
        "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "init_std": 0.12,
        "max_position_embeddings": 128, "forced_eos_token_id": None, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0, "decoder_start_token_id": 0 if marian else 2,
    }  # fmt: skip

    def build() -> tf.PreTrainedModel:
        if marian:
            return tf.MarianMTModel(tf.MarianConfig(**sizes))
        return tf.BartForConditionalGeneration(tf.BartConfig(**sizes))

    return _save(folder, build, tokenizer(), seed)
