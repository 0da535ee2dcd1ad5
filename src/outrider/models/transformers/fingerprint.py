"""A short name for the weights of a model, by which a trained draft knows its target."""

from __future__ import annotations

import hashlib

import torch

from outrider.models.transformers.model import HuggingFaceModel


def fingerprint(model: HuggingFaceModel) -> str:
    """A short name for these very weights, whatever directory they lie in: heads fit one target only."""
    rows = model.embedding[:256] if model.sample is None else model.sample
    sample = rows.detach().to(device="cpu", dtype=torch.bfloat16).contiguous()
    return hashlib.sha256(sample.view(torch.int16).numpy().tobytes()).hexdigest()[:16]
