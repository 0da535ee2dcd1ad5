"""A model's config from a GGUF file: what transformers reads of it, and what its reader passes over.

Without the latter a model would run, and say other things the longer its text is: files of Llama 3.1 and later have
factors for rotary positions in a tensor, those of Phi-3-128k and Phi-4-mini in two, others name a kind of scaling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.errors import ModelError
from outrider.models.hub.gguf_architectures import ARCHITECTURES, FACTORS, LONG_FACTORS, SHORT_FACTORS
from outrider.models.hub.gguf_families import CONFIGS, Keys
from outrider.models.hub.gguf_keys import require_known_keys
from outrider.models.hub.gguf_tokenizer import Metadata
from outrider.models.settings import setting

Factors = Mapping[str, Sequence[float]]
"""What frequencies of rotary positions are divided by: the numbers of such tensors by name."""

_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The same in every release of Llama 3: files do not say it."""


def read_config(source: Path, metadata: Metadata, shapes: Mapping[str, tuple[int, ...]], factors: Factors) -> Any:
    """The config of a GGUF file. ``shapes``: of its tensors, by name."""
    architecture = metadata["general.architecture"]
    if architecture in ARCHITECTURES:
        require_known_keys(source, metadata)
    config = _first_config(source, metadata, shapes)
    depth = metadata.get(f"{architecture}.attention.key_length")
    if depth is not None and setting(config, "head_dim") is not None:
        config.head_dim = int(depth)
    window = metadata.get(f"{architecture}.attention.sliding_window")
    if window and config.model_type == "phi3":
        config.sliding_window = int(window)
    for option, tensor in (("attention_bias", "blk.0.attn_q.bias"), ("mlp_bias", "blk.0.ffn_gate.bias")):
        if tensor in shapes and setting(config, option) is not None:
            setattr(config, option, True)
    if (setting(config, "pad_token_id") or 0) >= config.vocab_size:  # the default of the family's class
        config.pad_token_id = None
    settings = setting(config, "rope_parameters")
    if settings:
        kinds = [each for name, each in settings.items() if isinstance(each, dict) and name == "full_attention"]
        for each in kinds or [settings]:
            each.update(rotation(source, metadata, float(each["rope_theta"]), factors))
            each.update(_part(source, metadata, config))
    if config.model_type == "phi3" and settings.get("rope_type") == "longrope":
        config.original_max_position_embeddings = settings["original_max_position_embeddings"]
    return config


def _first_config(source: Path, metadata: Metadata, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """Without what is read for all families alike."""
    import transformers

    architecture = str(metadata["general.architecture"])
    if architecture in CONFIGS:
        rows, _ = shapes["token_embd.weight"]
        words: dict[str, Any] = {"tie_word_embeddings": "output.weight" not in shapes, "vocab_size": rows}
        words |= {f"{name}_token_id": metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
        words["pad_token_id"] = metadata.get("tokenizer.ggml.padding_token_id")
        given = CONFIGS[architecture](Keys(source, metadata)) | words
        return transformers.AutoConfig.for_model(ARCHITECTURES[architecture].model_type, **given)
    try:
        return transformers.AutoConfig.from_pretrained(str(source.resolve().parent), gguf_file=source.name)
    except (ValueError, KeyError) as error:
        if architecture in ARCHITECTURES:
            said = str(error).partition("\n")[0]
            raise ModelError(f"{source}: transformers cannot read its config: {said}") from error
        raise ModelError(
            f"{source}: GGUF files of architecture {architecture!r} are not read here; use the model's safetensors "
            f"files, or a model of one of {', '.join(sorted(ARCHITECTURES))}"
        ) from error


def _part(source: Path, metadata: Metadata, config: Any) -> dict[str, Any]:
    """Settings of rotary positions for a part of a head, where a file has such."""
    architecture = metadata["general.architecture"]
    count = metadata.get(f"{architecture}.rope.dimension_count")
    depth = setting(config, "head_dim") or config.hidden_size // config.num_attention_heads
    if count is None or architecture not in ARCHITECTURES or count == depth:
        return {}
    if config.model_type == "phi3":
        return {"partial_rotary_factor": count / depth}
    raise ModelError(
        f"{source}: rotary positions for {count} of {depth} numbers of a head are not read from GGUF files of "
        f"architecture {architecture!r} here; use the model's safetensors files"
    )


def rotation(source: Path, metadata: Metadata, theta: float, factors: Factors) -> dict[str, Any]:
    """Settings of rotary positions that a file has beside their base; ModelError where they are not known here."""
    architecture = metadata["general.architecture"]
    prefix = f"{architecture}.rope.scaling"
    older = metadata.get(f"{architecture}.rope.scale_linear") or 1.0  # as the first files have it
    kind = metadata.get(f"{prefix}.type", "none" if older == 1 else "linear")
    factor = float(metadata.get(f"{prefix}.factor") or older)
    before = metadata.get(f"{prefix}.original_context_length")
    if factors.keys() & {LONG_FACTORS, SHORT_FACTORS}:
        if architecture == "phi3" and kind in ("none", "longrope") and len(factors) == 2 and before:
            return _longrope(factors, int(before), metadata.get(f"{prefix}.attn_factor"))
        kind = "longrope"
    single = factors.get(FACTORS, ())
    if any(each != 1 for each in single):
        highest = float(max(single))
        expected = _llama_3(theta, len(single), highest)
        if kind == "none" and all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(single, expected, strict=True)):
            return {"rope_type": "llama3", "factor": highest, **_LLAMA_3}
        kind = "of its own, in a tensor"
    if kind in ("none", "linear") and metadata.get(f"{prefix}.attn_factor", 1.0) != 1:
        kind += ", with a factor of attention"
    if kind == "none" or (kind == "linear" and factor == 1):
        return {}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and before and not metadata.keys() & {f"{prefix}.attn_factor", f"{prefix}.yarn_log_multiplier"}:
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": int(before)}
    raise ModelError(
        f"{source}: its rotary positions are scaled ({kind}) in a way that is not read from GGUF files here; use the "
        "model's safetensors files"
    )


def _longrope(factors: Factors, before: int, attention: float | None) -> dict[str, Any]:
    """Files of Phi-3-128k and Phi-4-mini do not name the kind: they have its factors."""
    found = {
        "rope_type": "longrope",
        "short_factor": [float(each) for each in factors[SHORT_FACTORS]],
        "long_factor": [float(each) for each in factors[LONG_FACTORS]],
        "original_max_position_embeddings": before,
    }
    return found if attention is None else found | {"attention_factor": float(attention)}


def _llama_3(theta: float, count: int, factor: float) -> list[float]:
    """What Llama 3 divides the frequencies of rotary positions by."""
    low, high, length = _LLAMA_3.values()
    found = []
    for j in range(count):
        turns = length * theta ** (-j / count) / (2 * math.pi)  # of this frequency in the first training's length
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        found.append(1 / ((1 - share) / factor + share))
    return found
