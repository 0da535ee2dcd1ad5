"""Checkpoints of tiny heads that guess a block at once, with random weights, for the tiny Llama of ``tiny.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import eagle_heads
import tiny
from eagle_heads import HEAD_SIZE, HEADS, INNER, KEYS, LAYERS, SIZE, TOKENS

BLOCK, MASK, RANK = 5, 7, 6


def config(kind: str, inner: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """A config.json of a DFlash or DSpark head of two layers; ``inner``: further settings of its layers."""
    settings = eagle_heads.speculators_config({"model_type": "qwen3", "num_hidden_layers": 2} | (inner or {}))
    for name in ("norm_before_residual", "eagle_aux_hidden_state_layer_ids"):
        del settings[name]
    settings["speculators_config"]["algorithm"] = kind
    markov = {
        "markov_rank": RANK, "markov_head_type": "vanilla", "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }  # fmt: skip
    return (
        settings
        | {
            "architectures": ["DSparkDraftModel" if kind == "dspark" else "DFlashDraftModel"],
            "speculators_model_type": kind,
            "aux_hidden_state_layer_ids": LAYERS,
            "block_size": BLOCK,
            "mask_token_id": MASK,
            "sample_from_anchor": kind == "dspark",
        }
        | (markov if kind == "dspark" else {})
        | options
    )


def tensors(settings: dict[str, Any], seed: int = 0, rows: int = tiny.VOCAB) -> dict[str, Tensor]:
    """Random weights by their names, as a head of these settings has them. ``rows``: tokens of the target."""
    drawn = torch.Generator().manual_seed(seed)

    def some(*shape: int, scale: float = 0.2) -> Tensor:
        return torch.randn(shape, generator=drawn) * scale

    inner, count = settings["transformer_layer_config"], settings["draft_vocab_size"]
    wide, narrow = HEADS * HEAD_SIZE, KEYS * HEAD_SIZE
    found = {"fc.weight": some(SIZE, len(LAYERS) * SIZE)}
    found |= {f"{name}.weight": 1 + some(SIZE) for name in ("hidden_norm", "norm")}
    for layer in range(inner["num_hidden_layers"]):
        at = f"layers.{layer}."
        shapes = {"q": (wide, SIZE), "k": (narrow, SIZE), "v": (narrow, SIZE), "o": (SIZE, wide)}
        for name, shape in shapes.items():
            found[f"{at}self_attn.{name}_proj.weight"] = some(*shape)
            if inner.get("attention_bias"):
                found[f"{at}self_attn.{name}_proj.bias"] = some(shape[0])
        found |= {f"{at}self_attn.{name}_norm.weight": 1 + some(HEAD_SIZE) for name in "qk"}
        found |= {f"{at}mlp.{name}_proj.weight": some(INNER, SIZE) for name in ("gate", "up")}
        found[f"{at}mlp.down_proj.weight"] = some(SIZE, INNER)
        found |= {f"{at}{name}.weight": 1 + some(SIZE) for name in ("input_layernorm", "post_attention_layernorm")}
    if count != rows:
        found["lm_head.weight"] = some(count, SIZE, scale=0.3)
        found |= eagle_heads.mapping(torch.randperm(tiny.VOCAB, generator=drawn)[:count].sort().values)
    rank = settings.get("markov_rank", 0)
    if rank:
        found["markov_head.markov_w1.weight"] = some(rows, rank, scale=1.0)
        found["markov_head.markov_w2.weight"] = some(count, rank, scale=0.6)
        outputs, inputs = {"gated": (rank, SIZE + rank), "rnn": (3 * rank, SIZE + 2 * rank)}.get(
            settings["markov_head_type"], (0, 0)
        )
        name = {"gated": "gate_proj", "rnn": "joint_proj"}.get(settings["markov_head_type"])
        if name is not None:
            found[f"markov_head.{name}.weight"] = some(outputs, inputs)
            found[f"markov_head.{name}.bias"] = some(outputs)
    if settings.get("enable_confidence_head"):
        inputs = SIZE + (rank if settings["confidence_head_with_markov"] else 0)
        found |= {"confidence_head.proj.weight": some(1, inputs), "confidence_head.proj.bias": some(1)}
    return found


def peagle_config(inner: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """A config.json of a P-EAGLE head."""
    settings = eagle_heads.speculators_config(inner, speculators_model_type="peagle", mask_token_id=MASK, **options)
    settings["architectures"] = ["PEagleDraftModel"]
    settings["speculators_config"]["algorithm"] = "peagle"
    return settings


def mask_hidden(seed: int = 1) -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return {"mask_hidden": torch.randn((1, 1, len(LAYERS) * SIZE), generator=drawn)}


ALL_TOKENS = {"draft_vocab_size": tiny.VOCAB}
"""Options of a head that drafts every token of the target, whose output layer it has no copy of."""

assert TOKENS < tiny.VOCAB
