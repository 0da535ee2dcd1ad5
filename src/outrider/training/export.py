"""Heads in formats that other programs read: what ``outrider distill --export`` writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from outrider.drafters.head import CONFIG
from outrider.drafters.made_for import check_target
from outrider.drafters.published import PublishedDrafter, is_checkpoint
from outrider.errors import require
from outrider.models.hub.loading import Loaded

FORMATS = ("speculators",)


def check_export(form: str, kind: str, start: Path | None) -> None:
    """Refuse, before anything is loaded, what cannot be written in that format. ``kind``: of a head to be trained."""
    require(form in FORMATS, f"--export must be one of {', '.join(FORMATS)}, got {form!r}; choose one")
    if start is None:
        require(
            kind == "eagle3",
            f"--export {form} cannot hold a draft of --kind {kind}: its layers exist in no architecture of {form}; "
            "train with --kind eagle3, or name a head in --from",
        )
        return
    require(
        is_checkpoint(start),
        f"--export {form} writes heads that others have trained and those of --kind eagle3, and --from {start} is "
        + (f"a draft with layers that no architecture of {form} has" if (start / CONFIG).is_file() else "no head")
        + "; name another --from, or leave --export out",
    )


def export_head(target: Loaded, start: Path, out: Path) -> PublishedDrafter:
    """Write the published head in ``start``, of whatever format, as one for this target. Nothing is trained."""
    drafter = PublishedDrafter.load(start).beside(target.model.facts)
    check_target(str(start), drafter.config, target)
    kinds = tuple(target.model.config.architectures or ())
    drafter.head.config = replace(drafter.config, target_name=target.name, target_architectures=kinds)
    drafter.save(out)
    return drafter
