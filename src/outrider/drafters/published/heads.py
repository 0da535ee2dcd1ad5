"""The modules of a published head, by its kind."""

from __future__ import annotations

from outrider.drafters.published.config import PublishedConfig
from outrider.drafters.published.dflash_config import DFlashConfig
from outrider.drafters.published.dflash_layers import DFlashHead
from outrider.drafters.published.eagle3_config import Eagle3Config
from outrider.drafters.published.eagle3_layers import Eagle3Head
from outrider.drafters.published.head import PublishedHead
from outrider.drafters.published.peagle_layers import PEagleHead


def made(config: PublishedConfig) -> PublishedHead:
    """The modules that a config describes."""
    if isinstance(config, DFlashConfig):
        return DFlashHead(config)
    assert isinstance(config, Eagle3Config)
    return PEagleHead(config) if config.parallel else Eagle3Head(config)
