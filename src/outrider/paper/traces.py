"""Pictures of one text of Leviathan et al. 2023: Figure 1 (which tokens were guesses) and Figure 5 (time lines)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from outrider.drafters import Nothing
from outrider.llm import LLM
from outrider.output import Output
from outrider.paper import published
from outrider.paper.formulas import DRAWN
from outrider.paper.lab import CHATTER, TRANSLATOR, Lab
from outrider.paper.table import Experiment, Found, PaperRow, Unit
from outrider.report.charts import ColouredTrace, TimeLine, TimeLines, TimePart, TracePart
from outrider.trace import PHASES, Record, ratio

PROMPT = "The government announced on Tuesday that the new bridge will be opened next year."
_QUESTION = "Why do leaves change colour in autumn?"
TOKENS = 24  # of Figure 5
TURNS = 5
LETTERS = {"target reads": "E", "draft reads": "e", "guesses": "d", "target run": "T"}
"""Kinds of time: what is read once (encoder or prompt), by each model, and then the runs."""


def figure_1(target: str) -> Unit:
    """A line per run of the target: guesses kept, the first one that was not, and the target's own token."""

    def run(lab: Lab) -> Found:
        llm = lab.engine(target)
        out = llm.generate(_asked(lab, target), max_new_tokens=published.FIGURE_1[0], gamma=7, temperature=0)
        tokens, runs = published.FIGURE_1
        row = PaperRow(
            {"our target": target, "our draft": llm.drafter.name},
            {"tokens": tokens, "runs": runs, "tokens per run": round(tokens / runs, 2)},
            {"tokens": out.stats.tokens, "runs": out.stats.runs, "tokens per run": round(out.stats.tokens_per_run, 2)},
        )
        return Found([row], [coloured(llm, out, target)])

    return Unit(target, run)


def _asked(lab: Lab, target: str) -> Any:
    return PROMPT if target == TRANSLATOR else lab.chat(_QUESTION)


def coloured(llm: LLM, out: Output, title: str) -> ColouredTrace:
    """The runs of a text in the characters that each token added to it: a token by itself has lost its spaces."""
    runs, text = [], list[int]()
    for record in out.trace.records:
        runs.append(tuple(_parts(llm, text, record)))
        text += [*record.drafted[: record.accepted], record.token][: record.emitted]
    return ColouredTrace(title, tuple(runs))


def _parts(llm: LLM, before: Sequence[int], record: Record) -> Iterator[TracePart]:
    """Guesses in order, each behind the ones before it, then the target's own token behind those that were kept."""
    ahead = list(before)
    for place, token in enumerate(record.drafted):
        origin = "accepted" if place < record.accepted else "rejected" if place == record.accepted else "unread"
        if origin != "accepted" or place < record.emitted:
            yield TracePart(origin, added(llm, ahead, token))
        ahead.append(token)
    if record.emitted > record.accepted:
        behind = [*before, *record.drafted[: record.accepted]]
        yield TracePart(record.origins[-1], added(llm, behind, record.token))


def added(llm: LLM, before: Sequence[int], token: int) -> str:
    """What a token adds to a text, line ends as a sign. Half a character is shown where it is completed."""
    old, new = (llm.show(tokens) if tokens else "" for tokens in (before, [*before, token]))
    old, new = old.rstrip("\ufffd"), new.rstrip("\ufffd")
    return new[len(os.path.commonprefix([old, new])) :].replace("\n", "⏎").replace("\t", "⇥")


def figure_5(target: str) -> Unit:
    """Plain, and gamma 3 and 7: what is read once, then each run as long as its time, guesses before it."""

    def run(lab: Lab) -> Found:
        llm, prompt = lab.engine(target), _asked(lab, target)
        plain = llm.with_draft(Nothing())
        ways: dict[str, tuple[LLM, dict[str, int]]] = {
            "plain": (plain, {}), "gamma 3": (llm, {"gamma": 3}), "gamma 7": (llm, {"gamma": 7}),
        }  # fmt: skip
        outs: dict[str, list[Output]] = {name: [] for name in ways}
        for turn in range(TURNS + 1):  # the first is not counted: code is compiled, and pages are touched
            for name in list(ways)[:: 1 if turn % 2 else -1]:
                engine, options = ways[name]
                out = engine.generate(prompt, max_new_tokens=TOKENS, **options)
                outs[name] += [out] if turn else []
        lines = _lines(outs)
        whole = {line.label: line.length for line in lines}
        rows = [
            PaperRow({"our target": target, "way": name}, {},
                {"ms": round(whole[name], 1), "runs": found[0].stats.runs,
                 "over plain": round(ratio(whole["plain"], whole[name]), 2)}, DRAWN)
            for name, found in outs.items()
        ]  # fmt: skip
        return Found(rows, [TimeLines(f"{target}-time-lines", target, "ms", LETTERS, "target run", lines)])

    return Unit(target, run)


def _lines(outs: dict[str, list[Output]]) -> tuple[TimeLine, ...]:
    """Medians of the turns, phase by phase. What is read beyond what plain decoding reads, the draft reads."""
    reads = {name: 1000 * median(o.trace.seconds["prefill"] for o in found) for name, found in outs.items()}
    return tuple(_line(name, found, reads["plain"], reads[name]) for name, found in outs.items())


def _line(name: str, outs: Sequence[Output], target_reads: float, reads: float) -> TimeLine:
    """A run's guesses and its target's part are as long as their means: a trace has sums of phases."""
    records = outs[0].trace.records
    drafted = sum(len(record.drafted) for record in records)
    drafting = 1000 * median(out.trace.seconds["draft"] for out in outs) if drafted else 0.0
    whole = 1000 * median(sum(out.trace.seconds[phase] for phase in PHASES) for out in outs)
    parts = [TimePart("target reads", min(reads, target_reads))]
    parts += [TimePart("draft reads", reads - target_reads)] if drafted and reads > target_reads else []
    for record in records:
        if record.drafted:
            parts.append(TimePart("guesses", drafting * len(record.drafted) / drafted))
        parts.append(TimePart("target run", (whole - drafting) / len(records)))
    return TimeLine(name, tuple(parts))


EXPERIMENTS = (
    Experiment("figure1", published.LEVIATHAN, "Figure 1: a text and the runs it took",
               [figure_1(target) for target in (TRANSLATOR, CHATTER)],
               "Another text and other models: theirs is 97M parameters with a draft of 6M. A line is a run of the "
               "target: guesses kept, the first wrong one in [- -], the target's own token in [ ]. A terminal and "
               "`outrider report` colour them as the paper does."),
    Experiment("figure5", published.LEVIATHAN, "Figure 5: time lines of plain and speculative decoding",
               [figure_5(target) for target in (TRANSLATOR, CHATTER)],
               f"Theirs is a sketch of an encoder-decoder on a TPU; ours are recorded times, medians of {TURNS} turns "
               "with encoder or prompt. E: the target reads the source or prompt, e: the draft does, d: guesses, "
               "T: the target, | the end of a run; every d and T is as long as the mean of its kind."),
)  # fmt: skip
