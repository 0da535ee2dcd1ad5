"""A converted model's settings and tokenizer, read as they lie on the disk, without transformers.

transformers' own ways to them import its table of all models and, for a Llama, the compiler and distributed tensors:
more than two seconds, and one for transformers itself. A directory that was converted here says everything itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from outrider.models.hub.manifest import MANIFEST

LLAMA = frozenset(
    {
        "attention_bias", "head_dim", "hidden_act", "hidden_size", "max_position_embeddings", "mlp_bias",
        "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "rope_parameters",
        "tie_word_embeddings", "vocab_size",
    }
)  # fmt: skip
"""What is asked of a Llama's config. Where all of it is written down, no default of transformers' class counts."""

_TOKENIZER_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""What transformers calls a tokenizer that is nothing but its file, in one release and the next."""


class Settings:
    """A file of settings. What it does not mention is None, as transformers has it for those that are asked for."""

    is_encoder_decoder = False

    def __init__(self, file: Path) -> None:
        self.__dict__.update(json.loads(file.read_text(encoding="utf-8")))
        if isinstance(kind := self.__dict__.get("dtype"), str):
            self.dtype = getattr(torch, kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and pickling ask for methods
            raise AttributeError(name)
        return None

    def get_text_config(self, decoder: bool = False) -> Settings:
        return self


class PlainTokenizer:
    """What decoding needs of a tokenizer; for everything else transformers' tokenizer is loaded, once."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
        self._tokenizer.no_truncation()  # a file may have been saved with either
        self._tokenizer.no_padding()

    def encode(self, text: str, add_special_tokens: bool = True, **options: Any) -> list[int]:
        if options:
            return list(self.transformers_tokenizer.encode(text, add_special_tokens=add_special_tokens, **options))
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False, **options: Any) -> str:
        if any(options.values()):
            return str(self.transformers_tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens, **options))
        return str(self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens))

    def get_vocab(self) -> dict[str, int]:
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))

    @property
    def backend_tokenizer(self) -> Tokenizer:
        """As transformers' tokenizers call it."""
        return self._tokenizer

    @cached_property
    def transformers_tokenizer(self) -> Any:
        """The same tokenizer as transformers has it, for libraries that take no other."""
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(self._place)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.transformers_tokenizer, name)

    def __call__(self, *given: Any, **options: Any) -> Any:
        return self.transformers_tokenizer(*given, **options)

    def __len__(self) -> int:
        return len(self.transformers_tokenizer)


def has_encoder(place: Path) -> bool | None:
    """Whether a model is an encoder-decoder, by the file of its config alone; None where that says nothing."""
    try:
        said = json.loads((place / "config.json").read_text(encoding="utf-8"))["is_encoder_decoder"]
    except (OSError, ValueError, LookupError, TypeError):  # whoever loads it says what is wrong
        return None
    return said if isinstance(said, bool) else None


def description(place: Path) -> tuple[Settings, PlainTokenizer] | None:
    """A model's config and tokenizer; None where they leave something to transformers' classes."""
    files = (MANIFEST, "generation_config.json", "tokenizer_config.json", "tokenizer.json")
    if not all((place / name).is_file() for name in files):
        return None
    config, words = Settings(place / "config.json"), Settings(place / "tokenizer_config.json")
    if (config.rope_parameters or {}).get("rope_type") != "default":  # others are computed by transformers
        return None
    if config.model_type != "llama" or not vars(config).keys() >= LLAMA:
        return None
    if words.tokenizer_class not in _TOKENIZER_CLASSES or words.clean_up_tokenization_spaces is not False:
        return None
    return config, PlainTokenizer(place)
