"""The card of a draft: what it is, what it was trained on, the command that made it, and what training found."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from outrider.training.distill_plan import DistillPlan
from outrider.training.loop import TrainingReport

KINDS = {
    "model": "A small model of its own",
    "feature": "A feature head on the states of the target's layers",
    "block": "A block head on the states of the target's layers, which makes all guesses in one run",
    "blockwise": "Blockwise heads on the target's last hidden state",
    "eagle3": "An EAGLE-3 head in the speculators format, on the states of the target's layers,",
}


def describe(target: str, out: Path, plan: DistillPlan, last: TrainingReport, command: str) -> str:
    """Everything about a draft that the machine it runs on does not decide, as Markdown."""
    size = (out / "model.safetensors").stat().st_size
    known = "every token" if plan.vocab == 0 else f"the {plan.vocab or 8192} most frequent tokens"
    if plan.start is not None:
        known = "the tokens of the draft it goes on from" if plan.vocab is None else known
    lines = [
        f"# Draft for {target}",
        "",
        f"{KINDS[plan.kind]} for speculative decoding with {target}: {size:,} bytes of weights in bfloat16. "
        f"It can write {known}; exactness does not depend on it.",
        "",
        "Made by:",
        "",
        "```sh",
        command,
        "```",
        "",
        f"With torch {version('torch')} and transformers {version('transformers')}, in {last.steps} steps of "
        f"{plan.budget.batch} examples, objective {plan.budget.objective}.",
        *([] if plan.start is None else ["", f"Training went on from the draft in `{plan.start}`."]),
        "",
        "## Data",
        "",
        *_data(plan),
    ]
    if last.measured is not None:
        lines += ["", "## Held-out text", ""]
        where = "over all of it" if plan.data else "over what the target wrote of it"
        lines += [f"Acceptance on text kept back from training, {where}, by place of the guess:", ""]
        lines += ["| guess | alpha at t=1 | alpha at t=0 |", "| --- | --- | --- |"]
        both = zip(last.measured.overlap, last.measured.agreement, strict=True)
        lines += [f"| {k} | {one:.3f} | {zero:.3f} |" for k, (one, zero) in enumerate(both, 1)]
    return "\n".join(lines) + "\n"


def _data(plan: DistillPlan) -> list[str]:
    if plan.text is not None:
        return [f"- `{plan.text}`: text gathered by another run"]
    lines = [f"- `{Path(name).name}`" for name in plan.data]
    lines += [f"- answers of the target to `{Path(name).name}`" for name in plan.prompts]
    return lines or ["- text the target wrote itself, to prompts of its own"]
