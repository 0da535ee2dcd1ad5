"""Chen et al. 2023: Table 1 (quality and speed by way of sampling) and Figure 1 (time, acceptance and loop against K).

They call p the draft and q the target, and gamma K; here as everywhere p is the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from outrider.bench.measure import PLAIN, Cell, Way, timed_text
from outrider.drafters import Nothing
from outrider.paper import published, quality, texts
from outrider.paper.lab import CHATTER, TRANSLATOR, Lab
from outrider.paper.table import Experiment, Found, PaperRow, Unit
from outrider.trace import merge, summarise

OURS = "speculative"
Grade = Callable[[Sequence[str]], float]


def table_1(task: str, sampling: str, options: Mapping[str, Any]) -> Unit:
    """Quality and speed, plain and speculative, of the same prompts in one run."""

    def run(lab: Lab) -> Found:
        llm = lab.engine(CHATTER)
        prompts, grade = _task(lab, task)
        cells = _timed_cells(lab, CHATTER, prompts, published.CHEN_GAMMA, options)
        outs = {way: [c[way] for c in cells] for way in (PLAIN, OURS)}
        graded = {way: round(grade([llm.decode(c.tokens) for c in found]), 3) for way, found in outs.items()}
        ms = {way: 1000 * sum(c.seconds for c in found) / sum(len(c.tokens) for c in found)
              for way, found in outs.items()}  # fmt: skip
        same = sum(a.tokens == b.tokens for a, b in zip(outs[PLAIN], outs[OURS], strict=True))
        plain, speculative, slow, fast, speedup = published.CHEN_TABLE[task, sampling]
        return Found([
            PaperRow({"task": task, "sampling": sampling},
                {"plain": plain, "speculative": speculative, "ms/token plain": slow, "ms/token": fast,
                 "speed-up": speedup},
                {"plain": graded[PLAIN], "speculative": graded[OURS], "ms/token plain": round(ms[PLAIN], 2),
                 "ms/token": round(ms[OURS], 2), "speed-up": round(ms[PLAIN] / ms[OURS], 2),
                 "same text": f"{same} of {len(cells)}"})
        ])  # fmt: skip

    return Unit(f"{task}, {sampling}", run)


def _task(lab: Lab, task: str) -> tuple[list[Any], Grade]:
    most = max(2, lab.amount.prompts // 2)
    if task.startswith("HumanEval"):
        programs = texts.PROGRAMS[:most]

        def passed(answers: Sequence[str]) -> float:
            return mean(quality.passes(program, text) for program, text in zip(programs, answers, strict=True))

        return [program.prompt for program in programs], passed
    articles = texts.SUMMARIES[:most]

    def rouge(answers: Sequence[str]) -> float:
        return mean(quality.rouge_2(text, wanted) for text, (_, wanted) in zip(answers, articles, strict=True))

    return [lab.chat(f"Summarize in one sentence.\n\n{article}") for article, _ in articles], rouge


def _timed_cells(
    lab: Lab, target: str, prompts: Sequence[Any], gamma: int, options: Mapping[str, Any]
) -> list[dict[str, Cell]]:
    """Gumbel coupling: with a seed the text is plain decoding's at any temperature."""
    llm = lab.engine(target)
    ways = {PLAIN: Way(llm.with_draft(Nothing())), OURS: Way(llm, "draft", gamma)}
    asked = {"max_new_tokens": lab.amount.tokens, "seed": lab.amount.seed, "coupling": "gumbel", **options}
    timed_text(ways, prompts[0], asked, 1, 0)  # not counted
    return [timed_text(ways, prompt, asked, lab.amount.repeats, turn) for turn, prompt in enumerate(prompts)]


def figure_1(target: str) -> Unit:
    """By number of guesses: time of 128 tokens with its spread, tokens kept over K + 1, time of a loop."""

    def run(lab: Lab) -> Found:
        rows = []
        for gamma in range(8):
            cells = [c[OURS if gamma else PLAIN] for c in _timed_cells(lab, target, lab.prompts(target), max(1, gamma),
                                                                {"temperature": 0})]  # fmt: skip
            times = [128000 * c.seconds / len(c.tokens) for c in cells]
            stats = summarise(merge(c.outputs[0].trace for c in cells))
            rows.append(
                PaperRow({"our target": target, "K": gamma}, {},
                    {"ms for 128 tokens": round(mean(times)), "deviation": round(stdev(times)),
                     "tokens kept over K + 1": round(stats.tokens_per_run / (gamma + 1), 3),
                     "ms of a loop": round(1000 * sum(c.seconds for c in cells) / stats.runs, 2)},
                    "the paper draws this figure and prints no numbers")
            )  # fmt: skip
        return Found(rows)

    return Unit(target, run)


_NUCLEUS = {"temperature": 1.0, "top_p": 0.8}
EXPERIMENTS = (
    Experiment(
        "chen-table1", published.CHEN, "Table 1: quality and speed by way of sampling, K = 4",
        [table_1("XSum, ROUGE-2", "nucleus 0.8", _NUCLEUS), table_1("XSum, ROUGE-2", "greedy", {"temperature": 0}),
         table_1("HumanEval, pass@1", "nucleus 0.95, temperature 0.8", {"temperature": 0.8, "top_p": 0.95})],
        "Theirs is Chinchilla (70B) on XSum and HumanEval; ours is SmolLM2-135M on a few articles and programs of the "
        "package's own, with its shipped head. Our texts are the same with and without speculation, so quality is "
        "equal and not merely close.",
    ),
    Experiment(
        "chen-figure1", published.CHEN, "Figure 1: time, acceptance and loop time against K",
        [figure_1(target) for target in (TRANSLATOR, CHATTER)],
        "Theirs are XSum and HumanEval with nucleus sampling on 16 TPUs; ours are greedy texts on this machine.",
    ),
)  # fmt: skip
