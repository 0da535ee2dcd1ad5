"""The fields of a checkpoint's config.json, each checked as it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from outrider.errors import BadOption, require


class Fields:
    """The content of a config, or of an object in it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def whole(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.settings.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise BadOption(f"{name} must be a whole number from {least} on, got {value!r}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.settings.get(name)
        value = default if value is None else value
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            raise BadOption(f"{name} must be a finite number above 0, got {value!r}")
        return float(value)

    def switch(self, name: str, default: bool = False) -> bool:
        value = self.settings.get(name)
        require(value is None or isinstance(value, bool), f"{name} must be true or false, got {value!r}")
        return default if value is None else bool(value)

    def part(self, name: str) -> Fields:
        value = self.settings.get(name)
        require(value is None or isinstance(value, dict), f"{name} must be an object, got {value!r}")
        return Fields(value or {})

    def layers(self, name: str) -> tuple[int, ...] | None:
        value = self.settings.get(name)
        if value is None:
            return None
        fits = isinstance(value, list) and value and all(type(layer) is int and layer >= 0 for layer in value)
        require(bool(fits), f"{name} must be a list of layers, got {value!r}")
        return tuple(value)
