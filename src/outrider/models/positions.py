"""How many positions a model is run with, and by which factors its rotary positions are scaled: settled when it is
loaded, so that an angle depends on its position only.

transformers takes longrope's short factors or its long ones by the largest position of a run. That may be a guess, a
row beside or padding, and keys that were stored before keep the angles that they had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.checks import check_whole
from outrider.errors import require
from outrider.models.settings import setting


def rotation_settings(config: Any) -> dict[str, dict[str, Any]]:
    """The settings of rotary positions by the type of layers that have them; "" where all have the same."""
    settings = setting(config, "rope_parameters") or {}
    nested = {kind: each for kind, each in settings.items() if isinstance(each, dict)}
    return nested or {"": settings}


@dataclass(frozen=True)
class Positions:
    """How many there are for a text, prompt included, and whether longrope's long factors are used for all of them."""

    count: int | None  # None: unlimited
    long: bool = False
    most: int | None = None  # that the model may be loaded with

    @staticmethod
    def of(config: Any, max_length: int | None = None) -> Positions:
        """Those of a model that is loaded for texts of up to ``max_length`` tokens; None: as many as the model has, or
        of a longrope model those that have short factors, which are for texts of the length of its first training."""
        most, short = setting(config, "max_position_embeddings"), _short(config)
        if max_length is not None:
            check_whole("max_length", max_length, 1)
            rule = f"max_length must be at most the {most} positions of the model, got {max_length}"
            require(most is None or max_length <= most, f"{rule}; leave it out, or choose a smaller one")
        if short is None or (most is not None and short >= most):
            return Positions(most, most=most)
        long = max_length is not None and max_length > short
        return Positions(most if long else short, long, most)


def _short(config: Any) -> int | None:
    """Up to which position short factors are used, where there are long ones."""
    found = [
        int(each["original_max_position_embeddings"])
        for each in rotation_settings(config).values()
        if each.get("rope_type") == "longrope"
    ]
    return min(found, default=None)
