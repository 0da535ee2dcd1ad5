"""Draw docs/assets/package-layers.svg: the folders and modules of the package, as pyproject.toml layers their imports.

    python .ci/package_layers.py

A test compares the picture with the layers and with the folders; it says when to run this again.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "assets" / "package-layers.svg"
PACKAGE = ROOT / "src" / "outrider"

JOBS = {
    "cli": "the command line",
    "serve": "outrider serve: an engine, an HTTP API, a page",
    "cluster": "batches of prompts, here or on Ray; replicas of the server",
    "certificate": "outrider verify",
    "bench": "measuring",
    "training": "outrider distill",
    "report": "tables and pictures",
    "paper": "the tables and figures of the papers",
    "llm": "load, generate, stream, chat",
    "call": "one call, compiled once",
    "hf": "inside transformers' generate",
    "output": "what a call returns",
    "prompts": "texts and messages to token ids",
    "testing": "checks for your own drafters, sessions and rules",
    "beam": "beam search, plain and speculative",
    "decoding": "the loop: requests join and leave rows; CUDA graphs in",
    "planning": "how many guesses: gamma, from acceptance and cost",
    "drafters": "everything that guesses ahead",
    "models": "sessions (KV cache, rollback)",
    "options": "the options of a call, checked",
    "core": "Algorithm 1, protocols, sampling, noise",
    "speculation": "speculate() on functions",
    "kernels": "matrix products, attention, top-p:",
    "trace": "records and statistics",
    "theory": "the papers' formulas",
    "runtime": "facts about the CPU, threads, cache directory",
    "checks": "checks of arguments that several entry points share",
    "errors": "every error",
}
"""What each folder or module is for."""

GROUPS = {
    "#dbe9fb": "cli serve cluster certificate bench training report paper",
    "#cfe8d5": "llm call hf",
    "#fbe3c4": "beam decoding planning drafters",
    "#f6d5d5": "models kernels",
    "#fff3b0": "core",
}
COLOURS = {part: colour for colour, parts in GROUPS.items() for part in parts.split()}
"""Tools, the public API, the decoding loop, what runs a model, the algorithm; everything else is grey."""

WIDTH, LEFT, HIGH, GAP = 960, 70, 54, 10


def layers() -> list[list[str]]:
    """Folders and modules from top to bottom, those of one layer together."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    return [re.findall(r"[\w.]+", line) for line in contracts[0]["layers"]]


def inner(part: str) -> list[str]:
    """The folders within a folder."""
    return sorted(p.parent.name for p in (PACKAGE / part).glob("*/__init__.py"))


def drawn() -> str:
    rows = layers()
    height = len(rows) * (HIGH + GAP) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" role="img">',
        "<title>The layers of the package: imports run down only</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="4" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>',
        f'<line x1="28" y1="16" x2="28" y2="{height - 22}" stroke="#555" stroke-width="2" marker-end="url(#tip)"/>',
        f'<text x="18" y="{height // 2}" font-size="13" fill="#555" text-anchor="middle" '
        f'transform="rotate(-90 18 {height // 2})">imports run down only</text>',
    ]
    for number, layer in enumerate(rows):
        wide = (WIDTH - LEFT - 20 - GAP * (len(layer) - 1)) / len(layer)
        for place, part in enumerate(layer):
            parts += _box(part, LEFT + place * (wide + GAP), 15 + number * (HIGH + GAP), wide)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(part: str, x: float, y: float, wide: float) -> list[str]:
    middle = x + wide / 2
    job = JOBS.get(part, "") + "".join(f"  {folder}/" for folder in inner(part))
    return [
        f'<rect x="{x:.0f}" y="{y}" width="{wide:.0f}" height="{HIGH}" rx="6" '
        f'fill="{COLOURS.get(part, "#eeeeee")}" stroke="#999"/>',
        f'<text class="part" x="{middle:.0f}" y="{y + 22}" font-size="16" font-weight="bold" text-anchor="middle" '
        f'fill="#111">{escape(part)}</text>',
        f'<text x="{middle:.0f}" y="{y + 42}" font-size="12.5" text-anchor="middle" fill="#333" xml:space="preserve">'
        f"{escape(job)}</text>",
    ]


if __name__ == "__main__":
    missing = [part for layer in layers() for part in layer if part not in JOBS]
    if missing:
        sys.exit(f"say in JOBS of {Path(__file__).name} what {', '.join(missing)} is for")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(drawn(), encoding="utf-8")
