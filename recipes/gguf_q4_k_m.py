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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf_float16 import copy_settings
from mistakes import guarded
from transformers import AutoModelForCausalLM

from outrider.bench.inflate import Larger, inflate
from outrider.bench.llamacpp import gguf_file
from outrider.errors import ModelError, require
from outrider.models.hub import names

Array = np.ndarray[Any, Any]

Q4_K_M = 15  # gguf's number for such files
BLOCK = 256  # inputs with one scale of scales
ROWS = 4096  # quantised at a time


def q4_k(weight: Array) -> Array:
    """Rows [R, I] -> bytes: groups of 32 with a scale and a minimum of six bits each, times two numbers a block."""
    x = weight.reshape(-1, 8, 32).astype(np.float32)  # [blocks, groups, 32]
    low = np.minimum(x.min(-1), 0)
    scales, minima = (x.max(-1).clip(0) - low) / 15, -low
    d, scales = _in_steps(scales, 63)
    dmin, minima = _in_steps(minima, 63)
    step, least = d * scales, dmin * minima
    whole = np.rint((x + least[..., None]) / np.where(step, step, 1)[..., None]).clip(0, 15).astype(np.uint8)
    whole[step == 0] = 0
    s, m = scales.astype(np.uint8), minima.astype(np.uint8)
    packed = np.concatenate(
        [s[:, :4] | (s[:, 4:] >> 4 << 6), m[:, :4] | (m[:, 4:] >> 4 << 6), (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4], 1
    )
    halves = whole.reshape(-1, 4, 2, 32)
    nibbles = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(len(x), -1)
    return _rows(weight, [_half(d), _half(dmin), packed, nibbles])


def q6_k(weight: Array) -> Array:
    """Rows [R, I] -> bytes: groups of 16 with a scale of eight bits each, times a number a block."""
    x = weight.reshape(-1, 16, 16).astype(np.float32)
    d, scales = _in_steps(np.abs(x).max(-1) / 31, 127)
    step = (d * scales)[..., None]
    whole = (np.rint(x / np.where(step, step, 1)).clip(-32, 31) + 32).astype(np.uint8)
    whole[step[..., 0] == 0] = 32
    quarters = whole.reshape(-1, 2, 4, 32)  # two halves of a block, each in four quarters
    low = (quarters[:, :, :2] & 15) | (quarters[:, :, 2:] & 15) << 4
    high = sum(quarters[:, :, k] >> 4 << 2 * k for k in range(4))
    parts = [low.reshape(len(x), -1), high.reshape(len(x), -1), scales.astype(np.int8).view(np.uint8), _half(d)]
    return _rows(weight, parts)


def _in_steps(values: Array, most: int) -> tuple[Array, Array]:
    """Values [blocks, groups] as a float16 for each block times whole numbers up to ``most``."""
    unit = (values.max(-1, keepdims=True) / most).astype(np.float16).astype(np.float32)
    return unit, np.rint(values / np.where(unit, unit, 1)).clip(0, most) * (unit > 0)


def _half(numbers: Array) -> Array:
    return numbers.astype(np.float16).view(np.uint8)


def _rows(weight: Array, parts: list[Array]) -> Array:
    return np.concatenate(parts, 1).reshape(len(weight), -1)


def packed(name: str, weight: torch.Tensor, layers: int) -> tuple[Array, gguf.GGMLQuantizationType]:
    """A matrix as Q4_K_M has it under GGUF's name for it."""
    kinds = gguf.GGMLQuantizationType
    kind, quantise = (kinds.Q6_K, q6_k) if _in_six(name, layers) else (kinds.Q4_K, q4_k)
    pieces = (piece.to(torch.float32).numpy() for piece in weight.split(ROWS))
    return np.concatenate([quantise(piece) for piece in pieces]), kind


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


def write(model: Any, source: Path, target: Path) -> None:
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
    writer.add_file_type(Q4_K_M)
    for name, tensor in tensors(model):
        if tensor.ndim < 2:
            writer.add_tensor(name, tensor.to(torch.float32).numpy())
        else:
            data, kind = packed(name, tensor, config.num_hidden_layers)
            writer.add_tensor(name, data, raw_dtype=kind)
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
