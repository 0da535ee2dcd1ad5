"""Which kinds of published heads are read, by the content of their config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from outrider.drafters.published import dflash_config, eagle3_config
from outrider.drafters.published.config import SPECULATORS, PublishedConfig
from outrider.drafters.published.fields import Fields
from outrider.errors import BadOption

READ: Mapping[str, Callable[[Fields, str], PublishedConfig]] = {
    "eagle3": eagle3_config.of_speculators,
    "peagle": eagle3_config.of_speculators,
    "dflash": dflash_config.of_speculators,
    "dspark": dflash_config.of_speculators,
}
"""By ``speculators_model_type``."""


def names_a_head(settings: object) -> bool:
    """Whether the content of a config.json is of the speculators format, or of a plain EAGLE-3 head."""
    if not isinstance(settings, dict):
        return False
    kinds = settings.get("architectures")
    return SPECULATORS in settings or (isinstance(kinds, list) and any(kind in eagle3_config.PLAIN for kind in kinds))


def parse(settings: Mapping[str, Any]) -> PublishedConfig:
    """From the content of a config.json; BadOption where it is of no head that can be run here."""
    config = Fields(settings)
    if SPECULATORS not in settings:
        return eagle3_config.of_plain(config)
    kind = settings[SPECULATORS]
    if kind not in READ:
        raise BadOption(f"{SPECULATORS} is {kind!r}; read are {', '.join(READ)}")
    return READ[kind](config, kind)
