"""The tables as a page of Markdown: theirs beside ours in every row, and why they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.paper.table import Experiment
from outrider.report.side_by_side import side_by_side

BUSY = 0.2
"""Cores that others may use before a page says so."""

_PAPERS = {
    "Leviathan et al. 2023": "Fast Inference from Transformers via Speculative Decoding (ICML 2023)",
    "Chen et al. 2023": "Accelerating Large Language Model Decoding with Speculative Sampling",
    "Tulsian et al. 2024": "A report on beam search, varying gamma and a hierarchy of three models",
}


def page(experiments: Sequence[Experiment], records: Sequence[Mapping[str, Any]], command: str) -> str:
    """Everything that was run, paper by paper."""
    first = records[0]
    lines = ["# The papers, regenerated", "", _about(first, command), "", *_disturbed(records)]
    paper = ""
    for experiment in experiments:
        if experiment.paper != paper:
            paper = experiment.paper
            lines += [f"## {paper}", "", f"{_PAPERS[paper]}.", ""]
        lines += [*section(experiment, [r for r in records if r["experiment"] == experiment.name]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _about(record: Mapping[str, Any], command: str) -> str:
    machine, settings = record["machine"], record["settings"]
    where = machine["gpu"] or f"{machine['cpu']}, {machine['threads']} threads"
    return (
        f"Made by `{command}` on {where}, torch {machine['torch']}, transformers "
        f"{machine['transformers']}, seed {settings['seed']}: {settings['prompts']} prompts of a task, "
        f"{settings['tokens']} tokens of a text, medians of {settings['repeats']}. Plain and speculative decoding take "
        "turns in one run. *Theirs* is what the paper prints. An empty cell has its reason beside it."
    )


def _disturbed(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whether the machine was busy with something else: then times say little."""
    busy = [record["others_cores"] for record in records if (record["others_cores"] or 0) > BUSY]
    if not busy:
        return []
    return [
        f"**The machine was busy:** during {len(busy)} of {len(records)} parts other programs, or virtual machines "
        f"beside it, used up to {max(busy):.1f} cores. Speed-ups, costs and milliseconds of these parts are off by "
        "as much; tokens, acceptance, quality and what is the same do not depend on it.", "",
    ]  # fmt: skip


def section(experiment: Experiment, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """One table or figure."""
    rows = [row for record in records for row in record["rows"]]
    lines = [f"### {experiment.title}", "", f"Why ours differ: {experiment.differs}", ""]
    header, body = side_by_side(rows)
    lines += [_line(header), _line(["---"] * len(header)), *map(_line, body)]
    for record in records:
        if record["lines"]:
            lines += ["", f"{record['unit']}:", "", "```text", *record["lines"], "```"]
    return lines


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
