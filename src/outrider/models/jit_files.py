"""A Llama-like model's weights as ``tiles.py`` reads them: panels of sixteen columns, in bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.errors import ModelCorrupt, ModelError, require
from outrider.jit.tiles import PANEL
from outrider.models.sizes import Sizes
from outrider.models.weight_files import REMEDY, WEIGHTS, Tensors, WeightFile

FORMAT = 3
"""Raised whenever the layout changes: what was prepared before is then prepared again."""

PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The products of a layer, and what the checkpoint calls their parts."""


def write(folder: Path, source: Path, config: Any) -> dict[str, tuple[int, list[int]]]:
    """Weights into a file -> where in it each of them is."""
    file = WeightFile(folder / WEIGHTS)
    try:
        tensors, sizes = Tensors(source), Sizes.of(config)
        for layer in range(sizes.layers):
            for name, parts in PARTS.items():
                _write_product(file, tensors, f"model.layers.{layer}", name, parts, sizes)
        norms = [
            f"model.layers.{n}.{name}_layernorm" for n in range(sizes.layers) for name in ("input", "post_attention")
        ]
        file.write(
            "norms", torch.stack([tensors.joined([f"{name}.weight"]) for name in [*norms, "model.norm"]]).numpy()
        )
        tied = config.tie_word_embeddings or "lm_head.weight" not in tensors
        output = "model.embed_tokens.weight" if tied else "lm_head.weight"
        file.write("output", panels(_exact(tensors, output, (config.vocab_size, sizes.hidden))))
        if not tied:
            name = "model.embed_tokens.weight"
            file.write("embedding", panels(_exact(tensors, name, (config.vocab_size, sizes.hidden))))
        tensors.require_all_used(except_for={"lm_head.weight"} if tied else set())
    finally:
        file.close()
    return {"embedding": file.places["output"]} | file.places  # tied: tokens are looked up in the output layer


def _write_product(
    file: WeightFile, tensors: Tensors, prefix: str, name: str, parts: tuple[str, ...], sizes: Sizes
) -> None:
    shapes = sizes.shapes()
    weights = [_exact(tensors, f"{prefix}.{part}.weight", shapes[part.rpartition(".")[2]]) for part in parts]
    biased = [part for part in parts if f"{prefix}.{part}.bias" in tensors]
    require(len(biased) in (0, len(parts)), f"only {biased} of {prefix} have biases; {REMEDY}", ModelError)
    biases = [tensors.joined([f"{prefix}.{part}.bias"])[:, None] for part in biased]
    for kind, given in (("", weights), (".bias", biases)):
        if not given:
            continue
        if name == "qkv":  # heads one behind the other, each filled up to whole panels
            split = torch.cat(given).view(-1, sizes.depth, given[0].shape[1])
            whole = torch.nn.functional.pad(split, (0, 0, 0, -sizes.depth % PANEL)).flatten(0, 1)
        elif name == "gate_up":  # a panel of the one, the same panel of the other
            whole = torch.stack([part.view(-1, PANEL, part.shape[1]) for part in given], 1).flatten(0, 2)
        else:
            whole = given[0]
        file.write(f"{prefix}.{name}{kind}", whole[:, 0].contiguous().numpy() if kind else panels(whole))


def _exact(tensors: Tensors, name: str, shape: tuple[int, int]) -> Tensor:
    """A matrix in bfloat16, as which it was saved."""
    given = tensors.tensor(name)
    found = tuple(given.shape)
    require(found == shape, f"{name} is {found}, and the config says {shape}; the checkpoint is damaged", ModelCorrupt)
    narrow = given.to(torch.bfloat16)
    same = given.dtype == torch.bfloat16 or torch.equal(narrow.to(given.dtype), given)
    require(
        same,
        f"{name} has weights that are no bfloat16; load the model with engine='onnxruntime' or 'torch'",
        ModelError,
    )
    return narrow


def panels(weight: Tensor) -> np.ndarray[Any, Any]:
    """A weight [out, in] -> [out / 16, in, 8, 2] bits: columns j and j + 8 of a panel are the halves of one word."""
    outputs, inputs = weight.shape
    bits = torch.nn.functional.pad(weight, (0, 0, 0, -outputs % PANEL)).view(torch.int16)
    found: np.ndarray[Any, Any] = bits.view(-1, 2, PANEL // 2, inputs).permute(0, 3, 2, 1).contiguous().numpy()
    return found
