"""Checkpoints of tiny EAGLE-3 heads with random weights, as others publish them, for the tiny Llama of ``tiny.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import tiny

SIZE, INNER, HEADS, KEYS, HEAD_SIZE, TOKENS = 32, 48, 4, 2, 8, 40
LAYERS = [0, 1]

_INNER = {
    "model_type": "llama", "vocab_size": tiny.VOCAB, "hidden_size": SIZE, "intermediate_size": INNER,
    "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KEYS, "head_dim": HEAD_SIZE,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 256,
}  # fmt: skip


def speculators_config(inner: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """A config.json of the speculators format; ``inner``: further settings of its layer."""
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": TOKENS,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": LAYERS,
        "transformer_layer_config": _INNER | (inner or {}),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": "a/target", "architectures": ["LlamaForCausalLM"]},
        },
    } | options


def plain_config(**options: Any) -> dict[str, Any]:
    """A config.json of a plain repository, whose layers are named by their number."""
    return (
        _INNER
        | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": TOKENS,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": LAYERS},
        }
        | options
    )


def tensors(layer: str = "layers.0", **sizes: int) -> dict[str, Tensor]:
    """Random weights by their names. ``sizes``: what it has beside a Llama's layer, as 1; layers; seed."""
    drawn = torch.Generator().manual_seed(sizes.get("seed", 0))

    def some(*shape: int, scale: float = 0.12) -> Tensor:
        return torch.randn(shape, generator=drawn) * scale

    wide, narrow = HEADS * HEAD_SIZE, KEYS * HEAD_SIZE
    found = {
        "fc.weight": some(SIZE, len(LAYERS) * SIZE), "norm.weight": 1 + some(SIZE),
        "lm_head.weight": some(TOKENS, SIZE, scale=0.3),
        f"{layer}.self_attn.q_proj.weight": some(wide, 2 * SIZE), f"{layer}.self_attn.o_proj.weight": some(SIZE, wide),
        f"{layer}.mlp.gate_proj.weight": some(INNER, SIZE), f"{layer}.mlp.up_proj.weight": some(INNER, SIZE),
        f"{layer}.mlp.down_proj.weight": some(SIZE, INNER),
    }  # fmt: skip
    found |= {f"{layer}.self_attn.{name}_proj.weight": some(narrow, 2 * SIZE) for name in "kv"}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    found |= {f"{layer}.{name}.weight": 1 + some(SIZE) for name in norms}
    if sizes.get("qwen3"):
        found |= {f"{layer}.self_attn.{name}_norm.weight": 1 + some(HEAD_SIZE) for name in "qk"}
    if sizes.get("bias"):
        widths = {"q": wide, "k": narrow, "v": narrow, "o": SIZE}
        found |= {f"{layer}.self_attn.{name}_proj.bias": some(width) for name, width in widths.items()}
    for place in range(1, sizes.get("layers", 1)):  # those above the first are a Llama's
        at = f"layers.{place}."
        found |= {
            f"{at}self_attn.q_proj.weight": some(wide, SIZE), f"{at}self_attn.o_proj.weight": some(SIZE, wide),
            f"{at}self_attn.k_proj.weight": some(narrow, SIZE), f"{at}self_attn.v_proj.weight": some(narrow, SIZE),
            f"{at}mlp.gate_proj.weight": some(INNER, SIZE), f"{at}mlp.up_proj.weight": some(INNER, SIZE),
            f"{at}mlp.down_proj.weight": some(SIZE, INNER), f"{at}input_layernorm.weight": 1 + some(SIZE),
            f"{at}post_attention_layernorm.weight": 1 + some(SIZE),
        }  # fmt: skip
    if sizes.get("embedding"):
        found["embed_tokens.weight"] = some(tiny.VOCAB, SIZE, scale=1.0)
    if sizes.get("input_norm"):
        found["input_norm.weight"] = 1 + some(len(LAYERS) * SIZE)
    if sizes.get("fc_norm"):
        found |= {f"fc_norm.{place}.weight": 1 + some(SIZE) for place in range(len(LAYERS))}
    return found | mapping(torch.randperm(tiny.VOCAB, generator=drawn)[:TOKENS].sort().values)


def mapping(tokens: Tensor) -> dict[str, Tensor]:
    """d2t and t2d for the target's token of each of the head's."""
    marked = torch.zeros(tiny.VOCAB, dtype=torch.bool).index_fill_(0, tokens, True)
    return {"d2t": tokens - torch.arange(len(tokens)), "t2d": marked}


def saved(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, str(folder / "model.safetensors"))
    return folder
