"""Pairs: a directory with a ``target`` and the ``draft`` that was trained for it, as the recipes write them.

Two small ones come with the package under short names. Nothing here imports torch or transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ModelNotFound


@dataclass(frozen=True)
class Shipped:
    """A pair inside the package, and the recipe that makes it again."""

    title: str
    licence: str
    recipe: str


SHIPPED = {
    "t5-ende": Shipped("English-German, T5's architecture", "research only (WMT news data)", "recipes/ende_pair.py"),
    "gpt-small": Shipped("English prose, GPT-2's architecture", "none stated", "recipes/gpt_pair.py --small"),
}


def home() -> Path:
    """Where the package keeps its pairs."""
    return Path(__file__).parents[2] / "data" / "pairs"


def is_pair(folder: Path) -> bool:
    """Whether a directory holds a model called target and a model called draft, and is no model itself."""
    own = (folder / "config.json").is_file()
    return not own and all((folder / part / "config.json").is_file() for part in ("target", "draft"))


def find(name: str) -> Path | None:
    """The directory of a pair, by short name or path; None where the name means something else."""
    if name not in SHIPPED:
        folder = Path(name).expanduser()
        return folder if is_pair(folder) else None
    folder = home() / name
    if not is_pair(folder):
        recipe = SHIPPED[name].recipe
        raise ModelNotFound(
            f"model {name} comes with the package, and {folder} is not whole; install outrider again, or train it "
            f"with `python {recipe} --out DIR ...` (see recipes/README.md) and name DIR instead of {name}"
        )
    return folder


def draft_of(name: str) -> Path | None:
    """The directory of the draft that belongs to a target named so, if the name is a pair's."""
    pair = find(name)
    return None if pair is None else pair / "draft"


def size(folder: Path) -> int:
    """Bytes of everything in a pair."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
