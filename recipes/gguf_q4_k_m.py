"""A model of about a billion weights as a Q4_K_M file, to compare engines on packed weights of a size people run.

python recipes/gguf_q4_k_m.py SmolLM2-135M-Instruct.Q4_1.gguf smollm2-1b.Q4_K_M.gguf

The source, a GGUF file of a Llama or the name of a model that was pulled as one, is padded to a larger size without
changing what it computes (outrider.bench.inflate), so that texts are real and a run costs what a model of that size
costs. Matrices are then quantised by rounding: Q4_K, and Q6_K where llama.cpp's Q4_K_M has it (the output matrix, and
values and the second product of the MLP in half of the layers).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf_float16 import copy_settings
from k_formats import BLOCK, Array, q4_k, q5_k, q6_k
from mistakes import guarded
from transformers import AutoModelForCausalLM

from outrider.bench.inflate import Larger, inflate
from outrider.bench.llamacpp import gguf_file
from outrider.errors import ModelError, require
from outrider.models.hub import names

Q4_K_M = 15  # gguf's number for such files
ROWS = 4096  # quantised at a time


Choose = Callable[[str, int], gguf.GGMLQuantizationType]
"""The format of a matrix, by GGUF's name for it and the model's number of layers."""


def q4_k_m(name: str, layers: int) -> gguf.GGMLQuantizationType:
    """As Q4_K_M files have it."""
    return gguf.GGMLQuantizationType.Q6_K if _in_six(name, layers) else gguf.GGMLQuantizationType.Q4_K


def packed(weight: torch.Tensor, kind: gguf.GGMLQuantizationType) -> Array:
    """A matrix in a format, by rounding; the package gguf has those that are no K formats."""
    own = {"Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k}.get(kind.name)
    pieces = (piece.to(torch.float32).numpy() for piece in weight.split(ROWS))
    return np.concatenate([gguf.quants.quantize(piece, kind) if own is None else own(piece) for piece in pieces])


def _in_six(name: str, layers: int) -> bool:
    if name == "output.weight":
        return True
    if not name.endswith(("attn_v.weight", "ffn_down.weight")):
        return False
    layer = int(name.split(".")[1])
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """By GGUF's names, with the rows of queries and keys in llama.cpp's order."""
    config, depth = model.config, model.config.head_dim
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = tensor.view(-1, 2, depth // 2, tensor.shape[1]).transpose(1, 2).flatten(0, 2)
        yield known.get_name(name, try_suffixes=(".weight",)), tensor


def write(model: Any, source: Path, target: Path, choose: Choose = q4_k_m, file_type: int = Q4_K_M) -> None:
    """With the source's tokenizer and settings, but for its sizes."""
    config = model.config
    sizes = {
        "llama.block_count": config.num_hidden_layers, "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }  # fmt: skip
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    copy_settings(reader, writer, sizes | {"general.file_type": None, "general.size_label": None})
    writer.add_file_type(file_type)
    for name, tensor in tensors(model):
        if tensor.ndim < 2:
            writer.add_tensor(name, tensor.to(torch.float32).numpy())
        else:
            kind = choose(name, config.num_hidden_layers)
            writer.add_tensor(name, packed(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=sys.stderr.isatty())
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a .gguf file, or the name of a model that was pulled as one")
    parser.add_argument("target", type=Path, help="a new file")
    for name, size in {"hidden": 1536, "inner": 4096, "layers": 32, "heads": 24, "kv-heads": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    options = parser.parse_args()
    if options.target.exists():
        sys.exit(f"{options.target} exists; name a new file")
    size = Larger(options.hidden, options.inner, options.layers, options.heads, options.kv_heads)
    rule = f"hidden and inner must be multiples of {BLOCK}, got {size.hidden} and {size.inner}"
    require(size.hidden % BLOCK == size.inner % BLOCK == 0, rule, ModelError)
    place = names.directory(options.source)
    source = gguf_file(options.source, str(place))
    if source is None:
        sys.exit(f"{options.source} was not made from a GGUF file; name one")
    names.unpack(place)
    torch.manual_seed(0)
    model = inflate(AutoModelForCausalLM.from_pretrained(place, dtype=torch.bfloat16), size)
    write(model, Path(source), options.target)
    count, bytes_ = sum(p.numel() for p in model.parameters()), options.target.stat().st_size
    sys.stdout.write(f"{options.target}: {count / 1e6:.0f} million weights, {bytes_ / 1e6:.0f} MB\n")


if __name__ == "__main__":
    guarded(main)
