"""A real GGUF file, four thousand weights small, under the name of the default model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

NAME = "smollm2-135m"
TEMPLATE = "{% for m in messages %}{{'<|im_start|>' + m['content'] + '<|im_end|>'}}{% endfor %}"


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def raw_rows(form: str, rows: int, inputs: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random rows in a packed format, as bytes [rows, n]: weights of about 0.1."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    per, size = GGML_QUANT_SIZES[GGMLQuantizationType[form]]
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (rows, inputs // per, size), np.uint8)
    spread = {"Q8_0": 2e-3, "Q4_K": 3e-4, "Q5_K": 2e-4, "Q6_K": 1e-4}.get(form, 0.02)
    sizes = (spread * random.uniform(0.5, 1.5, (*raw.shape[:2], 2))).astype(np.float16)
    scale = np.ascontiguousarray(sizes[..., :1]).view(np.uint8)
    minimum = sizes[..., 1:] * np.float16({"Q4_1": -7.5, "Q5_1": -15.5, "Q4_K": 7.5, "Q5_K": 15.5}.get(form, 0))
    place = 208 if form == "Q6_K" else 0
    raw[..., place : place + 2] = scale
    if form in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):
        raw[..., 2:4] = minimum.view(np.uint8)
    return raw.reshape(rows, -1)


def write_gguf(
    path: Path,
    formats: Mapping[str, str] | None = None,
    extra: str | None = None,
    architecture: str = "llama",
    factors: Sequence[float] = (),
) -> Path:
    """A random two-layer Llama with a byte-level tokenizer of the smollm kind and tied output.

    ``formats`` of matrices by a part of their name, "" for all others: then the model is larger. ``extra``: a tensor
    that no Llama has. ``architecture``: llama, qwen3, which has norms of queries and keys, phi3, which has joined
    matrices and a window, or gemma2. ``factors`` of rotary positions, as files of Llama 3 have them.
    """
    from gguf import GGMLQuantizationType, GGUFWriter

    hidden, heads, inner = (256, 4, 512) if formats else (8, 2, 16)
    merges = ["Ġ Ġ", "h e", "l l"]
    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), "ĠĠ", "he", "ll"]
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_license("mit")
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_block_count(2)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3] * 3 + [1] * (len(words) - 3))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> None:
        form = next((form for part, form in (formats or {}).items() if part in name), None)
        if form is None or len(shape) == 1:
            writer.add_tensor(name, random.normal(size=shape).astype(np.float32))
        elif form == "F16":
            writer.add_tensor(name, (0.1 * random.normal(size=shape)).astype(np.float16))
        else:
            raw = raw_rows(form, *shape, seed=int(random.integers(2**31)))
            writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType[form])

    if extra:
        tensor(extra, 8)
    if factors:
        writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    tensor("token_embd.weight", len(words), hidden)
    tensor("output_norm.weight", hidden)
    depth = hidden // heads
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "ffn_norm": (hidden,),
        "attn_q": (hidden, hidden),
        "attn_k": (depth, hidden),
        "attn_v": (depth, hidden),
        "attn_output": (hidden, hidden),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    if architecture == "gemma2":
        shapes |= {"post_attention_norm": (hidden,), "post_ffw_norm": (hidden,)}
    if architecture == "qwen3":
        shapes |= {"attn_q_norm": (depth,), "attn_k_norm": (depth,)}
    if architecture in ("qwen3", "gemma2"):
        writer.add_key_length(depth)
        writer.add_value_length(depth)
    if architecture == "phi3":
        single = ("attn_q", "attn_k", "attn_v", "ffn_gate")
        joined = {"attn_qkv": (hidden + 2 * depth, hidden), "ffn_up": (2 * inner, hidden)}
        shapes = {name: shape for name, shape in (shapes | joined).items() if name not in single}
    if architecture in ("phi3", "gemma2"):
        writer.add_sliding_window(6)
    for layer in range(2):
        for name, shape in shapes.items():
            tensor(f"blk.{layer}.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def leftovers(cache: Path) -> list[str]:
    """Whatever is in the cache but lock files and remembered checksums."""
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock" and path.name != "checksums")
