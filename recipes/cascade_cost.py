"""Does a hierarchy pay? Plain decoding, the pairs it is made of, and the hierarchy, prompt by prompt in turn.

    python recipes/cascade_cost.py smollm2-135m my-draft
    python recipes/cascade_cost.py large.gguf smollm2-135m --lower auto --gamma 8 --guesses 3

The draft is a model that runs by itself (a checkpoint, or ``outrider distill --kind model``); what drafts for it
copies, or is ``auto``, its own head. A head reads the states of the model it was trained for, so it does not draft for
the target here. The last line is what the theory makes of the parts that were measured: acceptance, and what runs took.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from itertools import chain

from mistakes import check_least, guarded

import outrider
from outrider.bench.prompts import read
from outrider.drafters import Copying
from outrider.runtime import timer
from outrider.theory import Hierarchy, expected_tokens
from outrider.trace import PHASES, Level, Stats, Trace, merge, summarise


def line(name: str, stats: Stats, gains: list[float]) -> str:
    levels = [f"{lv.tokens_per_run:.2f} tokens and {ms_per_run(lv):.1f} ms per run below" for lv in stats.levels]
    phases = ", ".join(f"{phase} {1000 * stats.seconds[phase] / stats.runs:.1f}" for phase in PHASES)
    spread = f"{statistics.median(gains):.2f} ({min(gains):.2f} to {max(gains):.2f}) times plain decoding"
    return (
        f"{name:8} {spread}, {stats.tokens_per_run:.2f} tokens per run, alpha {stats.alpha_counted:.3f}, "
        f"ms per run: {phases}; {'; '.join(levels)}\n"
    )


def ms_per_run(level: Level) -> float:
    return 1000 * sum(level.seconds.values()) / max(1, level.runs)


def alpha_for(tokens: float, guesses: int) -> float:
    """The alpha with which so many guesses give so many tokens a run: lower where the drafter declines now and then."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, guesses) < tokens else (low, middle)
    return low


def predicted(plain: Stats, model: Stats, cascade: Stats, guesses: int, gamma: int) -> str:
    """Theorem 3.8 by what was measured: acceptance at both levels, a run of each model by its width, a guess below."""
    run, level = 1 / plain.tokens_per_second, cascade.levels[0]
    middle = model.seconds["draft"] / max(1, model.drafted)
    checked = (level.seconds["target"] + level.seconds["accept"]) / level.runs
    rest = model.seconds["target"] + model.seconds["accept"] + model.seconds["host"]
    levels = Hierarchy(
        model.alpha_counted, middle / run, alpha_for(level.tokens_per_run, guesses),
        level.seconds["draft"] / (level.runs * guesses) / run,
        target_widths=lambda width: 1.0 if width == 1 else rest / model.runs / run,
        middle_widths=lambda width: 1.0 if width == 1 else checked / middle,
    )  # fmt: skip
    return (
        f"theory   model {levels.speedup(0, gamma):.2f}, cascade {levels.speedup(guesses, gamma):.2f} times plain: "
        f"alpha {levels.alpha:.3f}, c {levels.c:.3f}, below alpha {levels.lower_alpha:.3f}, c {levels.lower_c:.4f}, "
        f"runs that check {rest / model.runs / run:.2f} and below {checked / middle:.2f} plain ones\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--lower", default="copy", help="what drafts for the draft: copy, or auto for its own head")
    parser.add_argument("--gamma", type=int, default=3, help="guesses of the model and of the cascade")
    parser.add_argument("--guesses", type=int, help="of the lower drafter, for each run of the draft")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="no new prompt after this time")
    asked = parser.parse_args()
    check_least(asked, gamma=1, guesses=1, tokens=2)
    if ">" in asked.lower:
        sys.exit(f"--lower must be one drafter, got {asked.lower!r}: the theory here is of three levels")
    first = outrider.load(asked.target, f"{asked.lower}>{asked.draft}", slots=1)
    assert isinstance(first.drafter, outrider.Cascade)
    cascade = outrider.Cascade(first.drafter.lower, first.drafter.middle, guesses=asked.guesses, gamma=asked.gamma)
    arms = {
        "plain": (outrider.Nothing(), 0),
        "copy": (Copying(), None),
        "model": (cascade.middle, asked.gamma),
        "cascade": (cascade, asked.gamma),
    }
    engines = {name: outrider.LLM(first.target, drafter, slots=1) for name, (drafter, _) in arms.items()}
    traces: dict[str, list[Trace]] = {name: [] for name in arms}
    begin = timer.now()
    prompts = list(chain.from_iterable(zip(*read(None).values(), strict=True)))  # one of each task, then the next
    for number, prompt in enumerate([prompts[0], *prompts]):  # the first is asked twice: once to warm up
        if number > 1 and timer.now() - begin > asked.seconds:
            break
        order = list(arms)[number % 4 :] + list(arms)[: number % 4]
        for name in order:
            tokens = engines[name].chat_prompt([{"role": "user", "content": prompt}])
            options = {"max_new_tokens": asked.tokens, "temperature": asked.temperature, "seed": 0}
            output = engines[name].generate(tokens, gamma=arms[name][1], **options)
            if number:
                traces[name].append(output.trace)
    sys.stdout.write(f"{len(traces['plain'])} prompts of {asked.tokens} tokens, medians with the least and the most\n")
    rates = {name: [summarise(one).tokens_per_second for one in each] for name, each in traces.items()}
    stats = {name: summarise(merge(each)) for name, each in traces.items()}
    for name, every in rates.items():
        gains = [rate / plain for rate, plain in zip(every, rates["plain"], strict=True)]
        sys.stdout.write(line(name, stats[name], gains))
    sys.stdout.write(predicted(stats["plain"], stats["model"], stats["cascade"], cascade.guesses, asked.gamma))


if __name__ == "__main__":
    guarded(main)
