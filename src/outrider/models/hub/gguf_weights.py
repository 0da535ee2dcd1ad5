"""Unpacks the weights of a GGUF file: a checkpoint in bfloat16, with the names, the order and the norms of one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import ModelCorrupt, require
from outrider.models.hub.gguf_tensors import GgufTensors

if TYPE_CHECKING:
    from torch import Tensor

_ROWS = 4096
"""Of a matrix that are unpacked at a time: what that takes stays small."""


def unpack(source: Path, model: Any, out: Path) -> None:
    """Write the weights of a model, which is given without them, into a safetensors file."""
    from safetensors.torch import save_file

    from outrider.models.engine.sizes import Sizes
    from outrider.models.llama_layer import OUTPUT
    from outrider.models.transformers.families import FAMILIES

    tensors, sizes = GgufTensors(source), Sizes.of(model.config)
    design = FAMILIES[model.config.model_type].design
    offset = design.norm_offset if design else 0.0
    found: dict[str, Tensor] = {}
    for name, like in model.state_dict().items():
        if name == OUTPUT and model.config.tie_word_embeddings:
            continue
        found[name] = _tensor(tensors, name, like, sizes.depth)
        if "norm" in name:
            found[name] = (found[name] - offset).to(like.dtype)
    save_file(found, str(out), {"format": "pt"})


def _tensor(tensors: GgufTensors, name: str, like: Tensor, depth: int) -> Tensor:
    """A tensor of a checkpoint: norms in float32, which are not rounded before what files add to them is taken off."""
    import numpy as np
    import torch

    shape = tuple(like.shape)
    if name.endswith(".bias") and name not in tensors:  # some have biases for a part of what reads the same input
        return torch.zeros(shape, dtype=like.dtype)
    require(
        tensors.shape(name) == shape,
        f"{name} is {tensors.shape(name)}, and the metadata of the file say {shape}; get the file again",
        ModelCorrupt,
    )
    if len(shape) == 1:
        vector = torch.from_numpy(tensors.vector(name, depth).copy())
        return vector if "norm" in name else vector.to(like.dtype)
    found = torch.empty(shape, dtype=like.dtype)
    for first in range(0, shape[0], _ROWS):
        rows = np.arange(first, min(first + _ROWS, shape[0]))
        found[rows] = torch.from_numpy(tensors.numbers(name, rows, depth)).to(like.dtype)
    return found
