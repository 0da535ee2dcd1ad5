"""Trained heads: small networks that draft from the target's own states, embeddings and output layer."""

from outrider.drafters.head.config import HeadConfig
from outrider.drafters.head.drafter import CONFIG, HeadDrafter
from outrider.drafters.head.layers import Head

__all__ = ["CONFIG", "Head", "HeadConfig", "HeadDrafter"]
