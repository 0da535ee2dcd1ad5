"""Figures as files, by matplotlib: the only place that imports it, and only when something is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.errors import BadOption, require
from outrider.report.panels import Figure, Panel

_INK, _GRID, _YOURS = "#333333", "#dddddd", "#c8102e"
_SIZE = (5.6, 4.0)  # inches, of one panel
_DPI = 160


def check_available() -> None:
    """Say what to install before any work is done for a picture."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise BadOption("pictures need matplotlib, which is not installed: pip install matplotlib") from None


def save(figures: list[Figure], directory: Path) -> list[Path]:
    """Write NAME.png for every figure into a directory, which is made if need be; the paths."""
    check_available()
    require(not directory.exists() or directory.is_dir(), f"{directory} is a file; name a directory for the pictures")
    directory.mkdir(parents=True, exist_ok=True)
    return [_save(figure, directory / f"{figure.name}.png") for figure in figures]


def _save(figure: Figure, path: Path) -> Path:
    # Not pyplot: it keeps global state and picks a window system.
    from matplotlib.figure import Figure as Sheet

    columns = len(figure.panels)
    sheet = Sheet(figsize=(_SIZE[0] * columns, _SIZE[1]), layout="constrained")
    for panel, axes in zip(figure.panels, sheet.subplots(1, columns, squeeze=False)[0], strict=True):
        _draw(panel, axes, titled=columns > 1)
    sheet.suptitle(figure.caption, fontsize=11, color=_INK)
    sheet.savefig(path, dpi=_DPI)
    return path


def _draw(panel: Panel, axes: Any, titled: bool) -> None:
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    how = "steps-post" if panel.whole else "default"
    shades = colormaps["viridis"]
    plain = [line for line in panel.curves if not line.yours]
    for number, line in enumerate(plain):
        shade = shades(0.85 * number / max(1, len(plain) - 1))
        axes.plot(line.xs, line.ys, color=shade, linewidth=1.4, drawstyle=how, label=line.label)
    for line in panel.curves:
        if line.yours:
            dashes = (0, (4, 1.5))
            axes.plot(line.xs, line.ys, color=_YOURS, linewidth=2.2, linestyle=dashes, drawstyle=how, label=line.label)
    if panel.mark is not None:
        axes.plot(*panel.mark, "o", color=_YOURS, markersize=7, markeredgecolor="white", zorder=5)
    axes.set(xlim=panel.x_limits, ylim=panel.y_limits, xlabel=panel.x_label, ylabel=panel.y_label)
    if titled:
        axes.set_title(panel.title, fontsize=10, color=_INK)
    axes.yaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    axes.grid(color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
