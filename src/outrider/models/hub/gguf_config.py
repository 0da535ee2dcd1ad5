"""A model's config from a GGUF file: what transformers reads of it, and what its reader passes over.

Without the latter a model would run, and say other things the longer its text is: files of Llama 3.1 and later have
factors for rotary positions in a tensor, others name a kind of scaling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.errors import ModelError
from outrider.models.hub.gguf_tokenizer import Metadata
from outrider.models.settings import setting

FACTORS = "rope_freqs.weight"
"""The tensor that has what the frequencies of rotary positions are divided by."""

_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The same in every release of Llama 3: files do not say it."""


def read_config(source: Path, metadata: Metadata, factors: Sequence[float]) -> Any:
    """The config of a GGUF file. ``factors``: the numbers of ``FACTORS``; none where it has no such tensor."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(str(source.resolve().parent), gguf_file=source.name)
    architecture = metadata["general.architecture"]
    depth = metadata.get(f"{architecture}.attention.key_length")
    if depth is not None and setting(config, "head_dim") is not None:
        config.head_dim = int(depth)
    window = metadata.get(f"{architecture}.attention.sliding_window")
    if window and config.model_type == "phi3":
        config.sliding_window = int(window)
    if (setting(config, "pad_token_id") or 0) >= config.vocab_size:  # the default of the family's class
        config.pad_token_id = None
    settings = setting(config, "rope_parameters")
    if settings:
        kinds = [each for name, each in settings.items() if isinstance(each, dict) and name == "full_attention"]
        for each in kinds or [settings]:
            each.update(rotation(source, metadata, float(each["rope_theta"]), factors))
    return config


def rotation(source: Path, metadata: Metadata, theta: float, factors: Sequence[float]) -> dict[str, Any]:
    """Settings of rotary positions that a file has beside their base; ModelError where they are not known here."""
    rope = f"{metadata['general.architecture']}.rope"
    prefix, older = f"{rope}.scaling", metadata.get(f"{rope}.scale_linear") or 1.0  # as the first files have it
    kind = metadata.get(f"{prefix}.type", "none" if older == 1 else "linear")
    factor = float(metadata.get(f"{prefix}.factor") or older)
    if any(each != 1 for each in factors):
        highest = float(max(factors))
        expected = _llama_3(theta, len(factors), highest)
        if kind == "none" and all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(factors, expected, strict=True)):
            return {"rope_type": "llama3", "factor": highest, **_LLAMA_3}
        kind = "of its own, in a tensor"
    if kind == "none" or (kind == "linear" and factor == 1):
        return {}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    before = metadata.get(f"{prefix}.original_context_length")
    if kind == "yarn" and before and not metadata.keys() & {f"{prefix}.attn_factor", f"{prefix}.yarn_log_multiplier"}:
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": int(before)}
    raise ModelError(
        f"{source}: its rotary positions are scaled ({kind}) in a way that is not read from GGUF files here; use the "
        "model's safetensors files"
    )


def _llama_3(theta: float, count: int, factor: float) -> list[float]:
    """What Llama 3 divides the frequencies of rotary positions by."""
    low, high, length = _LLAMA_3.values()
    found = []
    for j in range(count):
        turns = length * theta ** (-j / count) / (2 * math.pi)  # of this frequency in the first training's length
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        found.append(1 / ((1 - share) / factor + share))
    return found
