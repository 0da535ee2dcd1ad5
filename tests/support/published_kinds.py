"""One tiny checkpoint of every kind of published head that is read, for tests of what all of them share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

import block_heads
import eagle_heads
from helpers import wrapped
from outrider.drafters.published import PublishedDrafter

KINDS = ("EAGLE-3", "EAGLE-3 of three layers", "P-EAGLE", "DFlash", "DSpark", "DSpark, rnn")


def files(kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A config.json and tensors."""
    if kind.startswith("EAGLE-3"):
        layers = 3 if "three" in kind else 1
        config = eagle_heads.speculators_config({"num_hidden_layers": layers})
        return config, eagle_heads.tensors(embedding=1, layers=layers)
    if kind == "P-EAGLE":
        config = block_heads.peagle_config({"num_hidden_layers": 2})
        return config, eagle_heads.tensors(embedding=1, layers=2) | block_heads.mask_hidden()
    if kind == "DFlash":
        config = block_heads.config("dflash", block_size=6, **block_heads.ALL_TOKENS)
    else:
        config = block_heads.config("dspark", markov_head_type="rnn" if "rnn" in kind else "gated")
    return config, block_heads.tensors(config)


def loaded(folder: Path, kind: str, floor: float = 0.1) -> PublishedDrafter:
    """A head of this kind beside the tiny Llama."""
    read = PublishedDrafter.load(eagle_heads.saved(folder, *files(kind)))
    return PublishedDrafter(read.head, read.tokens, read.name, floor).beside(wrapped("llama").facts)
