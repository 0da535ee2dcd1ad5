"""Weights of eight bits on a GPU, by torchao: half the memory of bfloat16, for models that would not fit otherwise.

torchao's product turns the weights back into the activations' dtype every time it runs, so this saves memory and costs
time. The embedding and the output layer stay as they are. A quantised model is its own reference: plain and
speculative decoding both use it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outrider.errors import BadOption
from outrider.kernels.attached import attached
from outrider.kernels.packed_linear import Joined
from outrider.models.transformers.model import HuggingFaceModel


def quantise(model: HuggingFaceModel) -> int:
    """Every linear layer but the output layer, fused ones joined as they are -> how many. After ``fuse``."""
    kept = model.model.get_output_embeddings()
    done: set[int] = set()
    for module in model.model.modules():
        if (joined := attached(module, Joined)) is not None:
            done |= _quantise_joined(module, joined)
    for module in model.model.modules():
        if type(module) is nn.Linear and module is not kept and id(module) not in done:
            module.weight = _int8(module.weight)
            done.add(id(module))
    return len(done)


def _quantise_joined(module: nn.Module, joined: Joined) -> set[int]:
    """The single layers stay views of the joined one, as ``fused.py`` made them."""
    parts = [part for part in module.children() if type(part) is nn.Linear and _lies_in(part, joined.weight)]
    joined.weight = _int8(joined.weight).detach()  # no parameter of its own
    start = 0
    for part in parts:
        part.weight = nn.Parameter(joined.weight[start : start + part.out_features], requires_grad=False)
        start += part.out_features
    return {id(part) for part in parts}


def _lies_in(part: nn.Linear, joined: Tensor) -> bool:
    return part.weight.untyped_storage().data_ptr() == joined.untyped_storage().data_ptr()


def _int8(weight: Tensor) -> nn.Parameter:
    try:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    except ImportError:
        raise BadOption("weights='int8' on a GPU needs torchao, which is not installed: pip install torchao") from None
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    quantize_(layer, Int8WeightOnlyConfig())
    return layer.weight
