"""Tiny random models of transformers written as GGUF files, as llama.cpp's converter writes the large ones.

Names, orders and keys are written down here once more, so that those of the package are not tested with themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as tf
from torch import Tensor

from tiny_gguf import TEMPLATE, byte_alphabet

WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), "ĠĠ", "he", "ll"]

SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS), "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2, "pad_token_id": 2,
    "bos_token_id": 1, "eos_token_id": 0,
}  # fmt: skip
TWO = SIZES | {"num_hidden_layers": 2}
WIDE = TWO | {"head_dim": 32, "tie_word_embeddings": True}
LONGROPE = {
    "rope_type": "longrope", "partial_rotary_factor": 0.75, "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
}  # fmt: skip
LOCAL = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}

MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**TWO, attention_bias=True, tie_word_embeddings=True)),
    "qwen2": lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**TWO)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**TWO, head_dim=32)),
    "phi3": lambda: tf.Phi3ForCausalLM(
        tf.Phi3Config(**TWO, rope_parameters=dict(LONGROPE), original_max_position_embeddings=64)
    ),
    "granite": lambda: tf.GraniteForCausalLM(
        tf.GraniteConfig(
            **TWO, embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.2, logits_scaling=4.0
        )
    ),
    "smollm3": lambda: tf.SmolLM3ForCausalLM(tf.SmolLM3Config(**SIZES, num_hidden_layers=4)),
    "olmo2": lambda: tf.Olmo2ForCausalLM(tf.Olmo2Config(**TWO)),
    "gemma": lambda: tf.GemmaForCausalLM(tf.GemmaConfig(**WIDE)),
    "gemma2": lambda: tf.Gemma2ForCausalLM(
        tf.Gemma2Config(
            **WIDE, sliding_window=6, query_pre_attn_scalar=32, attn_logit_softcapping=20.0, final_logit_softcapping=9.0
        )
    ),
    "gemma3": lambda: tf.Gemma3ForCausalLM(
        tf.Gemma3TextConfig(
            **WIDE | {"num_hidden_layers": 6}, sliding_window=6, query_pre_attn_scalar=32, rope_parameters=LOCAL
        )
    ),
}  # fmt: skip
"""By the architecture of their files."""

TURNED = ("llama", "granite", "smollm3")

_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip


def built(architecture: str) -> Any:
    """A model with weights of bfloat16, in float32, with norms and biases that are not all ones and zeros."""
    torch.manual_seed(0)
    model = MODELS[architecture]()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data += 0.4 * torch.randn(parameter.shape)
        parameter.data = parameter.data.to(torch.bfloat16).to(torch.float32)
    return model.eval()


def write(path: Path, model: Any, architecture: str, form: str = "F32", **more: Any) -> Path:
    """Write the model, and give it the weights that the file then has. ``more``: keys beside those of its converter."""
    from gguf import GGUFWriter

    config, writer = model.config, GGUFWriter(path, architecture)
    writer.add_name("tiny")
    _words(writer)
    for name, value in (_keys(architecture, config) | more).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
        add.get(type(value), writer.add_string)(f"{architecture}.{name}", value)
    scaled = config.rope_parameters
    if scaled.get("rope_type") == "longrope":
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(scaled[f"{kind}_factor"], np.float32))
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        *_, part, kind = name.split(".")
        shared = architecture in TURNED and part in heads
        turned = _turned(weight, heads[part]) if shared else weight
        given, kept = _given(turned, "F32" if weight.dim() == 1 else form)
        offset = 1.0 if architecture.startswith("gemma") and name.endswith("norm.weight") else 0.0
        given = given + np.float32(offset) if offset else given
        writer.add_tensor(_name(name, architecture), given, **_raw(form, given))
        weight.copy_(_straight(kept, heads[part]) if shared else kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _words(writer: Any) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(WORDS)
    writer.add_token_types([3] * 3 + [1] * (len(WORDS) - 3))
    writer.add_token_merges(["Ġ Ġ", "h e", "l l"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def _keys(architecture: str, config: Any) -> dict[str, Any]:
    """Without the architecture's prefix."""
    found = {
        "block_count": config.num_hidden_layers, "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads, "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }  # fmt: skip
    scaled = config.rope_parameters.get("full_attention", config.rope_parameters)
    depth = config.hidden_size // config.num_attention_heads
    if architecture not in ("gemma", "gemma2"):
        found["rope.freq_base"] = float(scaled["rope_theta"])
    if architecture.startswith("gemma") or architecture == "qwen3":
        found |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    if architecture in TURNED:
        found |= {"vocab_size": config.vocab_size, "rope.dimension_count": depth}
    if architecture == "phi3":
        found |= {
            "rope.scaling.original_context_length": config.original_max_position_embeddings,
            "rope.dimension_count": int(depth * scaled["partial_rotary_factor"]),
            "attention.sliding_window": config.sliding_window or 0,
        }
    if scaled["rope_type"] == "longrope":
        length = config.original_max_position_embeddings
        factor = (1 + np.log(config.max_position_embeddings / length) / np.log(length)) ** 0.5
        found["rope.scaling.attn_factor"] = float(factor)
    if architecture == "granite":
        found |= {
            "attention.scale": config.attention_multiplier, "embedding_scale": config.embedding_multiplier,
            "residual_scale": config.residual_multiplier, "logit_scale": config.logits_scaling,
        }  # fmt: skip
    if architecture in ("gemma2", "gemma3"):
        found["attention.sliding_window"] = config.sliding_window
    if architecture == "gemma2":
        found |= {
            "attn_logit_softcapping": config.attn_logit_softcapping,
            "final_logit_softcapping": config.final_logit_softcapping,
        }
    if architecture == "gemma3":
        local = config.rope_parameters["sliding_attention"]["rope_theta"]
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "rope.freq_base_swa": float(local)}
    return found


def _name(name: str, architecture: str) -> str:
    *inside, kind = name.split(".")
    if inside[:2] != ["model", "layers"]:
        return f"{_NAMES['.'.join(inside)]}.{kind}"
    behind = "ffn_norm" if architecture not in ("olmo2", "gemma2", "gemma3") else "post_attention_norm"
    part = ".".join(inside[3:])
    return f"blk.{inside[2]}.{(_NAMES | {'post_attention_layernorm': behind})[part]}.{kind}"


def _turned(weight: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys as the converter of a Llama turns them."""
    split = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


def _straight(weight: Tensor, heads: int) -> Tensor:
    split = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


def _given(weight: Tensor, form: str) -> tuple[np.ndarray[Any, Any], Tensor]:
    """What the file gets, and the numbers that this stands for."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    numbers = weight.contiguous().numpy()
    if form == "F32":
        return numbers, weight
    raw = quantize(numbers, GGMLQuantizationType[form])
    return raw, torch.from_numpy(dequantize(raw, GGMLQuantizationType[form]))


def _raw(form: str, given: np.ndarray[Any, Any]) -> Mapping[str, Any]:
    """How a tensor is written that is no array of floats."""
    from gguf import GGMLQuantizationType

    return {"raw_dtype": GGMLQuantizationType[form]} if given.dtype == np.uint8 else {}
