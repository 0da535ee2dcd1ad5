"""Chen et al. 2023: Table 1 (quality and speed by way of sampling) and Figure 1 (time, acceptance and loop against K).

They call p the draft and q the target, and gamma K; here as everywhere p is the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from outrider.bench.cells import PLAIN, Cell
from outrider.bench.measure import Way, timed_text
from outrider.drafters import Nothing
from outrider.paper import published
from outrider.paper.lab import CHATTER, SUMMARISER, TRANSLATOR, Lab, Timed
from outrider.paper.quality import Rouge, passes
from outrider.paper.table import Experiment, Found, PaperRow, Unit
from outrider.trace import merge, ratio, summarise

OURS = "speculative"
SUMMARIES, PROGRAMS = "XSum", "HumanEval"
GREEDY: Mapping[str, Any] = {"temperature": 0}
NUCLEUS: Mapping[str, Any] = {"temperature": 1.0, "top_p": 0.8}
WARM: Mapping[str, Any] = {"temperature": 0.8, "top_p": 0.95}
GAMMAS = tuple(range(1, 8))


@dataclass(frozen=True)
class GradedPrompts:
    """Prompts, and what is measured of all texts of one way: by measure, for each prompt in turn."""

    prompts: Sequence[Any]
    measures: Mapping[str, Callable[[int, str], float]]


def task_of(lab: Lab, name: str) -> GradedPrompts:
    if name == PROGRAMS:
        programs = lab.programs
        return GradedPrompts(
            [p.prompt for p in programs], {"pass@1": lambda at, text: float(passes(programs[at], text))}
        )
    wanted = [summary for _, summary in lab.summaries]
    return GradedPrompts(lab.prompts(SUMMARISER), {
        "ROUGE-2": lambda at, text: Rouge.of(text, wanted[at]).two,
        "ROUGE-1": lambda at, text: Rouge.of(text, wanted[at]).one,
        "ROUGE-L": lambda at, text: Rouge.of(text, wanted[at]).longest,
    })  # fmt: skip


def table_1(task: str, sampling: str, options: Mapping[str, Any]) -> Unit:
    """Quality and speed, plain and speculative, of the same prompts in one run."""

    def run(lab: Lab) -> Found:
        work = task_of(lab, task)
        cells = list(texts_of(lab, work.prompts, options))
        ms = {way: ratio(1000 * sum(c[way].seconds for _, c in cells), sum(len(c[way].tokens) for _, c in cells))
              for way in (PLAIN, OURS)}  # fmt: skip
        return Found(
            [_row(lab, (task, measure, sampling), grade, cells, ms) for measure, grade in work.measures.items()]
        )

    return Unit(f"{task}, {sampling}", run)


def texts_of(lab: Lab, prompts: Sequence[Any], options: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Cell]]]:
    """Every prompt in both ways: one text if it is greedy, timed often, else samples of other seeds, timed once.

    Gumbel coupling: with a seed the text is plain decoding's at any temperature.
    """
    llm, amount = lab.engine(CHATTER), lab.amount
    ways = {PLAIN: Way(llm.with_draft(Nothing())), OURS: Way(llm, "draft", published.CHEN_GAMMA)}
    asked = {"max_new_tokens": amount.tokens, "coupling": "gumbel", **options}
    greedy = options["temperature"] == 0
    samples, repeats = (1, amount.repeats) if greedy else (amount.samples, 1)
    timed_text(ways, prompts[0], {**asked, "seed": amount.seed}, 1, 0)  # not counted
    for turn, prompt in enumerate(prompts):
        for sample in range(samples):
            yield turn, timed_text(ways, prompt, {**asked, "seed": amount.seed + sample}, repeats, turn + sample)


def _row(
    lab: Lab, about: tuple[str, str, str], grade: Callable[[int, str], float],
    cells: Sequence[tuple[int, Mapping[str, Cell]]], ms: Mapping[str, float],
) -> PaperRow:  # fmt: skip
    task, measure, sampling = about
    llm = lab.engine(CHATTER)
    graded = {way: mean(grade(at, llm.decode(c[way].tokens)) for at, c in cells) for way in (PLAIN, OURS)}
    same = sum(c[PLAIN].tokens == c[OURS].tokens for _, c in cells)
    known = published.CHEN_TABLE.get((f"{task}, {measure}", sampling))
    names = ("plain", "speculative", "ms/token plain", "ms/token", "speed-up")
    return PaperRow(
        {"task": task, "measure": measure, "sampling": sampling},
        {} if known is None else dict(zip(names, known, strict=True)),
        {"plain": round(graded[PLAIN], 3), "speculative": round(graded[OURS], 3),
         "ms/token plain": round(ms[PLAIN], 2), "ms/token": round(ms[OURS], 2),
         "speed-up": round(ratio(ms[PLAIN], ms[OURS]), 2), "prompts": len({at for at, _ in cells}),
         "same text": f"{same} of {len(cells)}"},
        "" if known else "the paper has no such row",
    )  # fmt: skip


@dataclass(frozen=True)
class Lookahead:
    """What Figure 1 is about for one task: target, options, prompts and its curve in the paper, if it has one."""

    task: str
    target: str
    options: Mapping[str, Any]
    theirs: str | None = None


LOOKAHEADS = (
    Lookahead("translations", TRANSLATOR, GREEDY),
    Lookahead("summaries", SUMMARISER, NUCLEUS, "XSum"),
    Lookahead("programs", CHATTER, WARM, "HumanEval"),
)


def figure_1(asked: Lookahead) -> Unit:
    """By number of guesses: time of 128 tokens with its spread, tokens kept over K + 1, time of a loop."""

    def run(lab: Lab) -> Found:
        prompts = [p.prompt for p in lab.programs] if asked.task == "programs" else lab.prompts(asked.target)
        options = {name: value for name, value in asked.options.items() if name != "temperature"}
        draft = {"draft": lab.engine(asked.target).drafter}
        timed = lab.timed(asked.target, draft, GAMMAS, float(asked.options["temperature"]), prompts, **options)
        rows = [_lookahead(asked, 0, timed[0].plain), *(_lookahead(asked, int(t.row.gamma), t.ours) for t in timed)]
        return Found([*rows, _fastest(asked, timed)])

    return Unit(asked.task, run)


def _lookahead(asked: Lookahead, gamma: int, cells: Sequence[Cell]) -> PaperRow:
    times = [128000 * ratio(c.seconds, len(c.tokens)) for c in cells]
    stats = summarise(merge(c.outputs[0].trace for c in cells))
    return PaperRow(
        {"task": asked.task, "our target": asked.target, "K": gamma}, {},
        {"ms for 128 tokens": round(mean(times), 1), "deviation": round(stdev(times) if len(times) > 1 else 0.0, 1),
         "tokens kept over K + 1": round(stats.tokens_per_run / (gamma + 1), 3),
         "ms of a loop": round(1000 * ratio(sum(c.seconds for c in cells), stats.runs), 2), "texts": len(cells)},
        "the paper draws this figure and prints no numbers",
    )  # fmt: skip


def _fastest(asked: Lookahead, timed: Sequence[Timed]) -> PaperRow:
    """Where more guesses no longer pay: of one curve the paper says it in words."""
    best = max(timed, key=lambda one: one.row.speedup)
    known = asked.theirs == "XSum"
    return PaperRow(
        {"task": asked.task, "our target": asked.target, "their curve": asked.theirs},
        {"fastest K": published.CHEN_FASTEST} if known else {},
        {"fastest K": int(best.row.gamma), "speed-up there": round(best.row.speedup, 2)},
        "" if known else "the paper says it of XSum alone",
    )


EXPERIMENTS = (
    Experiment(
        "chen-table1", published.CHEN, "Table 1: quality and speed by way of sampling, K = 4",
        [table_1(SUMMARIES, "nucleus 0.8", NUCLEUS), table_1(SUMMARIES, "greedy", GREEDY),
         table_1(PROGRAMS, "nucleus 0.95, temperature 0.8", WARM), table_1(PROGRAMS, "greedy", GREEDY)],
        "Theirs is Chinchilla (70B) with one example in the prompt of XSum (11,305 texts of up to 128 tokens) and a "
        "hundred in that of HumanEval (16,400 of up to 512); ours is SmolLM2-135M with its shipped head and no example "
        "in the prompt, on the package's own articles and programs or on files of yours (--data). Our texts are the "
        "same with and without speculation, so quality is equal and not merely close. Our times leave prefill out; "
        "sampled texts are timed once each, as many of a prompt as --samples says.",
    ),
    Experiment(
        "chen-figure1", published.CHEN, "Figure 1: time, acceptance and loop time against K",
        [figure_1(asked) for asked in LOOKAHEADS],
        "Theirs are XSum and HumanEval on 16 TPUs, with the sampling of Table 1; summaries and programs here are "
        "sampled alike, translations are greedy. Our ms for 128 tokens is the time of a token times 128, of texts that "
        "may be shorter; the deviation is over texts.",
    ),
)  # fmt: skip
