"""A short name for the weights of a model, by which a trained draft knows its target."""

from __future__ import annotations

import hashlib

import torch

from outrider.models.checkpoint_model import CheckpointModel

_ROWS = 256


def fingerprint(model: CheckpointModel) -> str:
    """A short name for these very weights, whatever directory they lie in: heads fit one target only."""
    sample = model.first_embeddings(_ROWS).detach().to(device="cpu", dtype=torch.bfloat16).contiguous()
    return hashlib.sha256(sample.view(torch.int16).numpy().tobytes()).hexdigest()[:16]
