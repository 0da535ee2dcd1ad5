"""A picture before it is drawn: curves with labels, for a terminal or for matplotlib alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """Points to be joined, in order of x."""

    label: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    yours: bool = False  # the reader's own numbers, drawn to stand out


@dataclass(frozen=True)
class Panel:
    """One pair of axes. What leaves the limits is cut off there."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    x_limits: tuple[float, float]
    y_limits: tuple[float, float]
    mark: tuple[float, float] | None = None  # the reader's own point
    whole: bool = False  # y counts something: curves go up in steps


@dataclass(frozen=True)
class Figure:
    """Panels side by side; ``name`` is the file's name without its ending."""

    name: str
    caption: str
    panels: tuple[Panel, ...]


def curve(label: str, xs: Sequence[float], function: Callable[[float], float], yours: bool = False) -> Curve:
    """A function at the given places."""
    return Curve(label, tuple(xs), tuple(map(function, xs)), yours)
