"""Small models to train as drafts: from scratch, or made of slices of the target. One more token than they can write.

The extra token, the last, stands for every token of the target that the draft does not know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from outrider.errors import BadOption, require
from outrider.models.transformers.model import HuggingFaceModel

SPECIAL = ("pad_token_id", "decoder_start_token_id", "bos_token_id", "eos_token_id")


@dataclass(frozen=True)
class Size:
    """The size of a small model: the paper's 6M draft is Size(256, 1024, 2, 4)."""

    dim: int = 256
    inner: int = 1024
    layers: int = 2  # of the decoder
    heads: int = 4
    encoder: int | None = None  # layers of the encoder; None: as many as the decoder has

    @staticmethod
    def parse(text: str) -> Size:
        """From "256x1024x2x4" (width, inner width, layers, heads); "2+1" layers are an encoder's and a decoder's."""
        found = re.fullmatch(r"(\d+)x(\d+)x(?:(\d+)\+)?(\d+)x(\d+)", text.lower())
        numbers = [] if found is None else [int(n) for n in found.groups() if n is not None]
        if found is None or 0 in numbers:
            raise BadOption(
                "size must look like 256x1024x2x4 (width, inner width, layers, heads), or 256x512x5+4x4 with "
                f"encoder+decoder layers; got {text!r}"
            )
        dim, inner, *layers, heads = numbers
        require(dim % heads == 0, f"size: width {dim} must be a multiple of {heads} heads")
        return Size(dim, inner, layers[-1], heads, layers[0] if len(layers) == 2 else None)


def layer_lists(text: str, target: HuggingFaceModel) -> tuple[tuple[int, ...], ...]:
    """From "0,15,29" to the layers to take; "0,3+0" takes an encoder's and a decoder's of an encoder-decoder."""
    depths = _depths(target.model.config)
    lists = [part.split(",") for part in text.split("+")]
    good = all(n.strip().isdigit() for part in lists for n in part) and len(lists) in (1, len(depths))
    shape = "0,3+0 (encoder+decoder)" if target.encoder_decoder else "0,15,29"
    require(good, f"layers must look like {shape}, got {text!r}")
    chosen = tuple(tuple(int(n) for n in part) for part in lists) * (len(depths) if len(lists) == 1 else 1)
    for numbers, (name, depth) in zip(chosen, depths.items(), strict=True):
        outside = [n for n in numbers if n >= depth]
        require(not outside, f"layers: the target has {depth} ({name}), there is no layer {outside[:1]}")
        require(len(set(numbers)) == len(numbers), f"layers: each can be taken once, got {text!r}")
    return chosen


def _depths(config: Any) -> dict[str, int]:
    """The attributes that hold numbers of layers, encoder's first."""
    paired = [("encoder_layers", "decoder_layers"), ("num_layers", "num_decoder_layers")]
    for names in paired if config.is_encoder_decoder else [("num_hidden_layers",)]:
        found: dict[str, Any] = {name: getattr(config, name, None) for name in names}
        if all(isinstance(depth, int) for depth in found.values()):
            return found
    raise BadOption(f"slices cannot be taken of a {config.model_type}; leave out --layers to start from scratch")


def special_tokens(target: HuggingFaceModel) -> list[int]:
    """Tokens a draft must know to begin and end a text."""
    found: set[int] = set()
    for config in (target.model.config, target.model.generation_config):
        for name in SPECIAL:
            value = getattr(config, name, None)
            found |= {value} if isinstance(value, int) else set(value or ())
    return sorted(t for t in found if 0 <= t < target.vocab_size)


def _own_ids(tokens: Tensor, target: HuggingFaceModel) -> dict[str, int | None]:
    """The target's special tokens by the draft's numbers."""
    place = {token: i for i, token in enumerate(tokens.tolist())}
    ids = {name: getattr(target.model.config, name, None) for name in SPECIAL}
    return {name: place.get(token) if isinstance(token, int) else None for name, token in ids.items()}


def build(size: Size, tokens: Tensor, target: HuggingFaceModel) -> Any:
    """A fresh small model of the target's kind: a Llama decoder, or a T5 for an encoder-decoder target."""
    if target.encoder_decoder:
        return T5ForConditionalGeneration(
            T5Config(
                vocab_size=len(tokens) + 1, d_model=size.dim, d_ff=size.inner, num_heads=size.heads,
                num_layers=size.encoder or size.layers, num_decoder_layers=size.layers, d_kv=size.dim // size.heads,
                feed_forward_proj="gated-gelu", dropout_rate=0.0, **_own_ids(tokens, target),
            )
        )  # fmt: skip
    require(
        size.encoder is None, "size: encoder+decoder layers are for encoder-decoder targets; this one has a decoder"
    )
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokens) + 1, hidden_size=size.dim, intermediate_size=size.inner,
            num_hidden_layers=size.layers, num_attention_heads=size.heads, num_key_value_heads=size.heads,
            tie_word_embeddings=True, max_position_embeddings=target.max_length or 4096, bos_token_id=None,
            eos_token_id=None, pad_token_id=None,
        )
    )  # fmt: skip


def sliced(target: HuggingFaceModel, tokens: Tensor, layers: tuple[tuple[int, ...], ...]) -> Any:
    """A draft made of the target's own weights: chosen layers, and embeddings of the chosen tokens."""
    config = type(target.model.config).from_dict(target.model.config.to_dict())
    for name, numbers in zip(_depths(config), layers, strict=True):
        setattr(config, name, len(numbers))
    for name in ("vocab_size", "decoder_vocab_size"):
        if getattr(config, name, None) is not None:
            setattr(config, name, len(tokens) + 1)
    for name, value in _own_ids(tokens, target).items():
        setattr(config, name, value)
    model = type(target.model)(config)
    if target.embedding is not target.unembedding:  # whatever the config says
        head = model.get_output_embeddings()
        head.weight = nn.Parameter(head.weight.detach().clone())
    tables = _tables(target)
    state = target.model.state_dict()
    state |= {name: _of_tokens(value, tokens) for name, value in state.items() if name in tables}
    model.load_state_dict({name: state[_origin(name, layers, state)].float() for name in model.state_dict()})
    return model.float()


def _origin(name: str, layers: tuple[tuple[int, ...], ...], state: dict[str, Tensor]) -> str:
    """Where a slice's tensor comes from in the target: its layer's number is the only one that changes."""
    parts = name.split(".")
    place = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    if place is None:
        return name
    numbers = layers[-1 if "decoder" in parts else 0]
    parts[place] = str(numbers[int(parts[place])])
    moved = ".".join(parts)
    return moved if moved in state else name  # T5 keeps the positions of all layers in the first


def _tables(target: HuggingFaceModel) -> set[str]:
    """Names of what has a row for every token: embeddings (not those of positions), output layer, its biases."""
    head = target.model.get_output_embeddings()
    found = {"final_logits_bias"}
    for name, module in target.model.named_modules():
        words = isinstance(module, nn.Embedding) and module.num_embeddings == len(target.embedding)
        if module is head or (words and not re.search("pos|wpe", name)):
            found |= {f"{name}.weight", f"{name}.bias"}
    return found


def _of_tokens(value: Tensor, tokens: Tensor) -> Tensor:
    """The entries of the chosen tokens, and the mean of them for all others; a bias [1, V] lies across."""
    across = 1 if value.dim() == 2 and value.shape[0] == 1 else 0
    chosen = value.index_select(across, tokens)
    return torch.cat([chosen, chosen.float().mean(across, keepdim=True).to(value.dtype)], across)
