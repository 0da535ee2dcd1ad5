"""The tables as a page of Markdown: theirs beside ours in every row, and why they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.paper.table import Experiment
from outrider.report.picture_json import from_json
from outrider.report.result_entry import ResultEntry
from outrider.report.side_by_side import tables
from outrider.report.time_lines import as_text

BUSY = 0.2
"""Cores that others may use before a page says so."""

_PAPERS = {
    "Leviathan et al. 2023": "Fast Inference from Transformers via Speculative Decoding (ICML 2023)",
    "Chen et al. 2023": "Accelerating Large Language Model Decoding with Speculative Sampling",
    "Tulsian et al. 2024": "A report on beam search, varying gamma and a hierarchy of three models",
}
YOURS = """\
## Texts of your own

```sh
outrider paper --data humaneval.jsonl.gz --data summaries.jsonl --data sentences.tsv --prompts 64 --samples 8
```

Files named `.jsonl` or `.tsv`, packed (`.jsonl.gz`, `.tsv.gz`) or not, or directories of such files. A kind that \
no file holds is asked with the package's own texts.

| file | a line | where it is asked |
| --- | --- | --- |
| programs, `.jsonl` | as HumanEval has them: `prompt`, `test`, `entry_point` | Chen et al., Table 1 and Figure 1: \
pass@1, each program in a process that may touch nothing |
| summaries, `.jsonl` | `article` (or `document`) and `summary` (or `highlights`), perhaps `split`: lines with \
`train` are counted for n-gram tables and not asked; without, every other line | rows of `smollm2-135m, summaries`; \
Chen et al., Table 1 and Figure 1: ROUGE; Tulsian et al., CNNDM |
| translations, `.tsv` | English, tab, German | rows of `t5-ende`; Tulsian et al., EnDe: BLEU and exact matches |

`--prompts` is how many of each kind are asked, spread over the file; `--samples` how many texts of each prompt \
where samples are graded. Other files are other results: the digest of each kind is kept with them, its name is not.
"""
Record = Mapping[str, Any]
Figures = Mapping[str, Sequence[tuple[str, str]]]
"""By experiment: titles of figures, and the addresses of their files from the page."""


def page(experiments: Sequence[Experiment], records: Sequence[Record], command: str, figures: Figures) -> str:
    """Everything that was run, paper by paper."""
    first = records[0]
    lines = ["# The papers, regenerated", "", _about(first, command), "", *_disturbed(records)]
    paper = ""
    for experiment in experiments:
        if experiment.paper != paper:
            paper = experiment.paper
            lines += [f"## {paper}", "", f"{_PAPERS[paper]}.", ""]
        own = [r for r in records if r["experiment"] == experiment.name]
        lines += [*section(experiment, own, figures.get(experiment.name, ())), ""]
    return "\n".join([*lines, YOURS]).rstrip() + "\n"


def _about(record: Record, command: str) -> str:
    machine, settings = record["machine"], record["settings"]
    where = machine["gpu"] or f"{machine['cpu']}, {machine['threads']} threads"
    given = "; ".join(f"{kind}: {which}" for kind, which in settings["data"].items())
    own = f"Texts of files: {given}; the others are the package's own." if given else "All texts are the package's own."
    return (
        f"Made by `{command}` on {where}, Outrider {machine['outrider']}, torch {machine['torch']}, transformers "
        f"{machine['transformers']}, seed {settings['seed']}: at most {settings['prompts']} prompts of a task, at most "
        f"{settings['tokens']} tokens of a text, medians of {settings['repeats']}, {settings['samples']} samples where "
        "the quality of samples is measured; how many prompts there were stands in the rows. Plain and speculative "
        f"decoding take turns in one run. {own} *Theirs* is what the paper prints. An empty cell has its reason beside "
        "it."
    )


def _disturbed(records: Sequence[Record]) -> list[str]:
    """Whether the machine was busy with something else: then times say little."""
    busy = [record for record in records if _is_busy(record)]
    if not busy:
        return []
    most = max(record["others_cores"] for record in busy)
    return [
        f"**The machine was busy:** during {len(busy)} of {len(records)} parts other programs, or virtual machines "
        f"beside it, used up to {most:.1f} cores. These parts are named where they stand. Their speed-ups, costs and "
        "milliseconds are off by as much; tokens, acceptance, quality and what is the same do not depend on it.", "",
    ]  # fmt: skip


def busy_parts(records: Sequence[Record]) -> str:
    """Which parts of a section were measured beside others, in a sentence; empty: none."""
    found = [f"{record['unit']} ({record['others_cores']:.1f} cores)" for record in records if _is_busy(record)]
    return f"Other programs were busy meanwhile: {'; '.join(found)}." if found else ""


def _is_busy(record: Record) -> bool:
    return (record["others_cores"] or 0) > BUSY


def section(experiment: Experiment, records: Sequence[Record], figures: Sequence[tuple[str, str]]) -> list[str]:
    """One table or figure."""
    lines = [f"### {experiment.title}", "", f"Why ours differ: {experiment.differs}", ""]
    if busy := busy_parts(records):
        lines += [f"**{busy}**", ""]
    for number, (header, body) in enumerate(tables([row for record in records for row in record["rows"]])):
        lines += [""] if number else []
        lines += [_line(header), _line(["---"] * len(header)), *map(_line, body)]
    for note in dict.fromkeys(note for record in records for note in record["notes"]):
        lines += ["", note]
    for title, address in figures:
        lines += ["", f"![{title}]({address})"]
    for record in records:
        for picture in pictures(record):
            lines += ["", f"{picture.title}:", "", "```text", *as_text(picture), "```"]
    return lines


def pictures(record: Record) -> list[Any]:
    """The traces and time lines of a unit."""
    return [from_json(ResultEntry(picture, "results")) for picture in record["pictures"]]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
