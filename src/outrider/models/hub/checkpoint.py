"""What can be known of a model without loading its weights: tokens of a prompt, its dtype here, what a run reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from outrider.core.model_facts import dtype_name
from outrider.models.hub import names
from outrider.models.hub.loading import choose_dtype
from outrider.models.settings import has_chat_template, setting


@dataclass(frozen=True)
class Checkpoint:
    """A model as it lies on the disk."""

    place: str
    config: Any
    tokenizer: Any

    @property
    def encoder_decoder(self) -> bool:
        return bool(self.config.is_encoder_decoder)

    def unpacked(self) -> str:
        """Its directory, with weights that transformers reads: those of a GGUF file are unpacked first."""
        names.unpack(Path(self.place))
        return self.place

    @property
    def dtype(self) -> str:
        """What it is computed in on this CPU unless told otherwise."""
        return dtype_name(choose_dtype("auto", self.config, torch.device("cpu")))

    @property
    def longest(self) -> float:
        """Tokens of a prompt and its text together at most; infinity where the model has no limit."""
        return float(setting(self.config, "max_position_embeddings") or math.inf)

    def encode(self, text: str) -> list[int]:
        """A user's words as token ids: by the chat template where there is one."""
        if has_chat_template(self.tokenizer):
            words = [{"role": "user", "content": text}]
            text = self.tokenizer.apply_chat_template(words, tokenize=False, add_generation_prompt=True)
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        return list(self.tokenizer.encode(text))

    def numbers(self) -> int:
        """Weights there are."""
        return sum(parameter.numel() for parameter in self._outline.parameters())

    def numbers_read(self) -> int:
        """Weights that one run reads: all but those of the input embeddings, of which it reads a few rows.

        For an encoder-decoder model the encoder counts too, though it runs once a text.
        """
        table, output = self._outline.get_input_embeddings(), self._outline.get_output_embeddings()
        tied = output is None or output.weight is table.weight
        return self.numbers() - (0 if tied else int(table.weight.numel()))

    @cached_property
    def _outline(self) -> Any:
        """The model's shapes without its weights."""
        kind = AutoModelForSeq2SeqLM if self.encoder_decoder else AutoModelForCausalLM
        with torch.device("meta"):
            return kind.from_config(self.config)


def look(name: str) -> Checkpoint:
    """A checkpoint by short name, directory, .gguf file or hub id; fetched or converted first if need be."""
    place = names.directory(name)
    return Checkpoint(str(place), AutoConfig.from_pretrained(place), AutoTokenizer.from_pretrained(place))
