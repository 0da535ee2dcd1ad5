"""Heads in formats that other programs read: what ``outrider distill --export`` writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from outrider.drafters.eagle3 import Eagle3Drafter, is_checkpoint
from outrider.drafters.head import CONFIG
from outrider.errors import require
from outrider.models.hub.loading import Loaded

FORMATS = ("speculators",)


def check_export(kind: str, start: Path | None) -> None:
    """Refuse, before anything is loaded, what cannot be written in that format."""
    require(kind in FORMATS, f"--export must be one of {', '.join(FORMATS)}, got {kind!r}; choose one")
    require(
        start is not None and is_checkpoint(start),
        f"--export {kind} writes EAGLE-3 heads, and "
        + ("no --from names one" if start is None else f"--from {start} is {_named(start)}")
        + f": layers of the heads trained here exist in no architecture of {kind}; give the directory of an EAGLE-3 "
        "head with --from, or leave --export out",
    )


def export_head(target: Loaded, start: Path, out: Path) -> Eagle3Drafter:
    """Write the EAGLE-3 head in ``start``, of whatever format, as one for this target. Nothing is trained."""
    drafter = Eagle3Drafter.load(start).beside(target.model.facts)
    kinds = tuple(target.model.config.architectures or ())
    drafter.head.config = replace(drafter.config, target_name=target.name, target_architectures=kinds)
    drafter.save(out)
    return drafter


def _named(start: Path) -> str:
    return "a draft trained by Outrider" if (start / CONFIG).is_file() else "none"
