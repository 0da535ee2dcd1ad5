"""Pictures of one text of Leviathan et al. 2023: Figure 1 (which tokens were guesses) and Figure 5 (time lines)."""

from __future__ import annotations

from outrider.drafters import Nothing
from outrider.llm import LLM
from outrider.output import Output
from outrider.paper import published
from outrider.paper.formulas import DRAWN
from outrider.paper.lab import CHATTER, TRANSLATOR, Lab
from outrider.paper.table import Experiment, Found, PaperRow, Unit

_PROMPT = "The government announced on Tuesday that the new bridge will be opened next year."
_QUESTION = "Why do leaves change colour in autumn?"
_WIDE = 72  # characters of the longest time line


def figure_1(target: str) -> Unit:
    """A line per run of the target: guesses kept, the first one that was not, and the target's own token."""

    def run(lab: Lab) -> Found:
        llm = lab.engine(target)
        prompt = _PROMPT if target == TRANSLATOR else lab.chat(_QUESTION)
        out = llm.generate(prompt, max_new_tokens=published.FIGURE_1[0], gamma=7, temperature=0)
        tokens, runs = published.FIGURE_1
        row = PaperRow(
            {"our target": target, "our draft": llm.drafter.name},
            {"tokens": tokens, "runs": runs, "tokens per run": round(tokens / runs, 2)},
            {"tokens": out.stats.tokens, "runs": out.stats.runs, "tokens per run": round(out.stats.tokens_per_run, 2)},
        )
        return Found([row], [_line(llm, out, number) for number in range(len(out.trace.records))])

    return Unit(target, run)


def _line(llm: LLM, out: Output, number: int) -> str:
    record = out.trace.records[number]
    kept = [llm.show([token]) for token in record.drafted[: record.accepted]]
    wrong = [llm.show([token]) for token in record.drafted[record.accepted : record.accepted + 1]]
    parts = [*kept[: record.emitted], *(f"[-{token.strip()}-]" for token in wrong)]
    if record.emitted > record.accepted:
        parts.append(f"[{llm.show([record.token]).strip()}]")
    return f"{number + 1:2d} " + "".join(parts).replace("\n", "\\n")


def figure_5(target: str) -> Unit:
    """Plain, and gamma 3 and 7: each run as long as its time, a drafter's guesses before it."""

    def run(lab: Lab) -> Found:
        llm = lab.engine(target)
        prompt = _PROMPT if target == TRANSLATOR else lab.chat(_QUESTION)
        plain = llm.with_draft(Nothing())
        ways = {"plain": (plain, {}), "gamma 3": (llm, {"gamma": 3}), "gamma 7": (llm, {"gamma": 7})}
        outs: dict[str, Output] = {}
        for name, (engine, options) in ways.items():
            engine.generate(prompt, max_new_tokens=24, **options)  # compiled, and pages touched
            outs[name] = engine.generate(prompt, max_new_tokens=24, **options)
        seconds = {name: _decoding(out) for name, out in outs.items()}
        rows = [
            PaperRow({"our target": target, "way": name}, {},
                {"ms": round(1000 * seconds[name], 1), "runs": out.stats.runs,
                 "over plain": round(seconds["plain"] / seconds[name], 2)}, DRAWN)
            for name, out in outs.items()
        ]  # fmt: skip
        longest = max(seconds.values())
        return Found(rows, [f"{name:8}|{_bar(out, longest)}" for name, out in outs.items()])

    return Unit(target, run)


def _decoding(out: Output) -> float:
    return sum(seconds for phase, seconds in out.trace.seconds.items() if phase != "prefill")


def _bar(out: Output, longest: float) -> str:
    """d: a guess, T: a run of the target, as wide as their mean times; the sum of a text's times is what it took."""
    records = out.trace.records
    drafted = sum(len(r.drafted) for r in records)
    scale = _WIDE / longest
    guess = out.trace.seconds["draft"] / drafted * scale if drafted else 0.0
    target = (_decoding(out) - out.trace.seconds["draft"]) / len(records) * scale
    line, at = "", 0.0
    for record in records:
        for letter, length in (("d", guess * len(record.drafted)), ("T", target)):
            at += length
            line += letter * max(0, round(at) - len(line))
        line = line[:-1] + "|" if line else line
    return line


EXPERIMENTS = (
    Experiment("figure1", published.LEVIATHAN, "Figure 1: a text and the runs it took",
               [figure_1(target) for target in (TRANSLATOR, CHATTER)],
               "Another text and other models: theirs is 97M parameters with a draft of 6M. A line is a run of the "
               "target: guesses kept, the first wrong one in [- -], the target's own token in [ ]."),
    Experiment("figure5", published.LEVIATHAN, "Figure 5: time lines of plain and speculative decoding",
               [figure_5(target) for target in (TRANSLATOR, CHATTER)],
               "Theirs is a sketch of an encoder-decoder on a TPU; ours are recorded times. d: the drafter, T: the "
               "target, | the end of a run."),
)  # fmt: skip
