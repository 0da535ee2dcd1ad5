"""Heads that others have trained: read from their checkpoints, run, and written in the speculators format."""

from outrider.drafters.published.checkpoint import is_checkpoint
from outrider.drafters.published.config import PublishedConfig
from outrider.drafters.published.dflash_layers import DFlashHead
from outrider.drafters.published.drafter import PublishedDrafter
from outrider.drafters.published.eagle3_config import Eagle3Config
from outrider.drafters.published.eagle3_layers import Eagle3Head
from outrider.drafters.published.peagle_layers import PEagleHead

__all__ = [
    "DFlashHead",
    "Eagle3Config",
    "Eagle3Head",
    "PEagleHead",
    "PublishedConfig",
    "PublishedDrafter",
    "is_checkpoint",
]
