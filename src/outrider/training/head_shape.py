"""The shape of a head to train: as the options say, or as the draft has it that it goes on from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider.drafters.head import Head, HeadConfig, HeadDrafter
from outrider.drafters.published import is_checkpoint
from outrider.errors import BadOption, require
from outrider.models.hub.loading import Loaded
from outrider.models.transformers.fingerprint import fingerprint
from outrider.training.distill_plan import DistillPlan


def head_shape(target: Loaded, plan: DistillPlan) -> HeadConfig:
    """As the options say, for this target."""
    size = int(target.model.hidden_size or 0)
    return HeadConfig(
        kind=plan.kind,
        hidden_size=size,
        inner_size=_inner(plan.size, 2 * size),
        blocks=plan.depth if plan.kind == "blockwise" else plan.blocks or 1,
        **_parallel(plan),
        **({} if plan.kind == "blockwise" else _looks(target, plan)),
        fingerprint=fingerprint(target.model),
    )


def started(target: Loaded, plan: DistillPlan) -> HeadDrafter:
    """The head to go on from, which must be for this very target and of the shape that was asked for, if one was.

    A block head may go on from a feature head, whose layers it takes over.
    """
    folder = Path(str(plan.start))
    require(
        not is_checkpoint(folder),
        f"the head in {plan.start} is of another architecture than --kind {plan.kind}: EAGLE-3 heads are trained on "
        "with --kind eagle3; give another --from",
    )
    drafter = HeadDrafter.load(folder)
    if plan.kind == "block" and drafter.saved.config.kind == "feature":
        head = Head(replace(drafter.saved.config, kind="block", **_parallel(plan)))
        head.load_state_dict(drafter.head.state_dict(), strict=False)
        drafter = HeadDrafter(head, drafter.tokens)
    has, wished = drafter.head.config, head_shape(target, plan)
    if has.fingerprint != wished.fingerprint:
        raise BadOption(f"the draft in {plan.start} was trained for another target than {target.name}")
    asked = {
        "kind": True, "inner_size": plan.size is not None, "layers": plan.reads is not None,
        "blocks": plan.blocks is not None or plan.kind == "blockwise", "heads": not plan.attention,
        "rank": plan.rank is not None,
    }  # fmt: skip
    for name in (name for name, given in asked.items() if given and getattr(has, name) != getattr(wished, name)):
        raise BadOption(
            f"{name} of the draft in {plan.start} is {getattr(has, name)}, not {getattr(wished, name)}: it goes on "
            "with the shape it has; leave the option out, or --from"
        )
    require(
        has.masks >= wished.masks,
        f"the draft in {plan.start} makes {has.masks + 1} guesses, fewer than --depth {plan.depth}: lower it",
    )
    return drafter


def _parallel(plan: DistillPlan) -> dict[str, Any]:
    """What a block head has more than a feature head."""
    return {"masks": plan.depth - 1, "rank": plan.rank or 128} if plan.kind == "block" else {}


def _looks(target: Loaded, plan: DistillPlan) -> dict[str, Any]:
    """What a feature or block head looks at: layers of the target, and the text before."""
    config = target.model.config
    layers = int(config.num_hidden_layers)
    reads = (layers // 3, 2 * layers // 3, -1) if plan.reads is None else (*plan.reads, -1)
    wrong = [layer for layer in reads if not -1 <= layer < layers]
    require(not wrong, f"reads names layers {wrong}: the target has {layers}, and the last is always read")
    heads = int(config.num_attention_heads)
    shared = int(getattr(config, "num_key_value_heads", None) or heads)
    return {"layers": reads, "heads": (heads, shared) if plan.attention else (0, 0), "window": plan.block}


def _inner(size: str | None, default: int) -> int:
    if size is None:
        return default
    require(size.isdigit() and int(size) > 0, f"size of a head is its inner width, a whole number; got {size!r}")
    return int(size)
