"""Does a cascade pay? Plain decoding, both pairs it is made of, and the cascade, prompt by prompt in turn.

    python recipes/cascade_cost.py smollm2-135m my-draft

``my-draft`` is a model (``outrider distill --kind model``), the lower drafter copies.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import chain

from mistakes import guarded

import outrider
from outrider.bench.prompts import read
from outrider.trace import PHASES, Level, Stats, merge, summarise


def line(name: str, stats: Stats) -> str:
    levels = [f"{lv.tokens_per_run:.2f} tokens and {seconds_per_run(lv):.1f} ms per run below" for lv in stats.levels]
    phases = ", ".join(f"{phase} {1000 * stats.seconds[phase] / stats.runs:.0f}" for phase in PHASES)
    return (
        f"{name:8} {stats.tokens_per_second:6.1f} tokens/s, {stats.tokens_per_run:.2f} tokens per run, "
        f"alpha {stats.alpha:.2f}, ms per run: {phases}; {'; '.join(levels)}\n"
    )


def seconds_per_run(level: Level) -> float:
    return 1000 * sum(level.seconds.values()) / max(1, level.runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--lower", default="copy")
    parser.add_argument("--gamma", type=int, default=3, help="guesses of the model and of the cascade")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="no new prompt after this time")
    asked = parser.parse_args()
    first = outrider.load(asked.target, f"{asked.lower}>{asked.draft}", slots=1)
    cascade = first.drafter
    assert isinstance(cascade, outrider.Cascade)
    arms = {
        "plain": (outrider.Nothing(), 0),
        "lower": (cascade.lower, None),
        "model": (cascade.middle, asked.gamma),
        "cascade": (cascade, asked.gamma),
    }
    engines = {name: outrider.LLM(first.target, drafter, slots=1) for name, (drafter, _) in arms.items()}
    traces: dict[str, list[outrider.Trace]] = {name: [] for name in arms}
    begin = time.monotonic()
    prompts = list(chain.from_iterable(zip(*read(None).values(), strict=True)))  # one of each task, then the next
    for number, prompt in enumerate([prompts[0], *prompts]):  # the first is asked twice: once to warm up
        if number > 1 and time.monotonic() - begin > asked.seconds:
            break
        order = list(arms)[number % 4 :] + list(arms)[: number % 4]
        for name in order:
            tokens = engines[name].chat_prompt([{"role": "user", "content": prompt}])
            options = {"max_new_tokens": asked.tokens, "temperature": asked.temperature, "seed": 0}
            output = engines[name].generate(tokens, gamma=arms[name][1], **options)
            if number:
                traces[name].append(output.trace)
    sys.stdout.write(f"{len(traces['plain'])} prompts of {asked.tokens} tokens\n")
    sys.stdout.writelines(line(name, summarise(merge(t))) for name, t in traces.items())


if __name__ == "__main__":
    guarded(main)
