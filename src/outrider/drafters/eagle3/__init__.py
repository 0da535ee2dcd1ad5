"""EAGLE-3 heads that others have trained: read from their checkpoints, run, and written in the speculators format."""

from outrider.drafters.eagle3.checkpoint import is_checkpoint
from outrider.drafters.eagle3.config import Eagle3Config
from outrider.drafters.eagle3.drafter import Eagle3Drafter
from outrider.drafters.eagle3.layers import Eagle3Head

__all__ = ["Eagle3Config", "Eagle3Drafter", "Eagle3Head", "is_checkpoint"]
