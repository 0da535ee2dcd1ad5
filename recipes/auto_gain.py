"""What ``draft="auto"`` gains beside each of its drafters alone, by counts, at costs that are given.

python recipes/auto_gain.py smollm2-135m --prompts questions.jsonl --per-task 4 --max-new-tokens 96

Every way decodes every prompt. Runs by their width, times a drafter was asked and guesses that took time are counted,
and the time they would take is computed from --widths, --asking and --guess, in plain runs: the same on every machine,
busy or not. "over the best" is the speed over that of the best single drafter of the task. At temperature 0 all ways
must write the same text, or the recipe fails.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mistakes import guarded

import outrider
from outrider.bench import prompts
from outrider.errors import require
from outrider.models.settings import has_chat_template
from outrider.planning.adaptive import Adaptive
from outrider.planning.policies import Planner, Setting
from outrider.planning.step_clock import Timing
from outrider.theory import Costs

WAYS = ("head", "copy", "suffix", "auto")


@dataclass
class Counts:
    """What a way took for the prompts of a task."""

    tokens: int = 0
    widths: Counter[int] = field(default_factory=Counter)  # runs by their width
    asked: int = 0  # runs before which the drafter was asked
    guesses: int = 0  # that took time

    def time(self, costs: argparse.Namespace, free: bool) -> float:
        """In plain runs; ``free``: guesses take no time but that of asking."""
        runs = sum(costs.widths[width - 1] * number for width, number in self.widths.items())
        return float(runs + costs.asking * self.asked + (0.0 if free else costs.guess * self.guesses))


class Counting:
    """A policy with given costs that counts what was done at them."""

    def __init__(self, costs: Costs) -> None:
        self.costs, self.counts = costs, Counts()

    def start(self, setting: Setting) -> Planner:
        return _CountingPlanner(setting, self.costs, self.counts)


class _CountingPlanner(Adaptive):
    def __init__(self, setting: Setting, costs: Costs, counts: Counts) -> None:
        super().__init__(setting, costs)
        self.counts = counts

    def timed(self, step: Timing) -> None:
        self.counts.widths[step.width] += 1
        self.counts.asked += step.drafting is not None
        self.counts.guesses += step.guesses
        super().timed(step)


def decode(llm: Any, free: bool, texts: list[Any], asked: argparse.Namespace) -> tuple[Counts, list[list[int]]]:
    costs = Costs(lambda width: asked.widths[width - 1], 0.0 if free else asked.guess, asked.asking)
    policy = Counting(costs)
    written = []
    for number, text in enumerate(texts):
        seed = asked.seed + number
        output = llm.generate(
            text, gamma=policy, temperature=asked.temperature, max_new_tokens=asked.max_new_tokens, seed=seed
        )
        policy.counts.tokens += len(output.tokens)
        written.append(list(output.tokens))
    return policy.counts, written


def numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="smollm2-135m")
    parser.add_argument("--prompts", type=Path, help="a .jsonl file; without, a sample of six tasks")
    parser.add_argument("--per-task", type=int, default=2)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guess", type=float, default=0.07, help="what a guess of the head takes, in plain runs")
    parser.add_argument("--asking", type=float, default=0.005, help="what it takes to look for a copy")
    parser.add_argument(
        "--widths",
        type=numbers,
        default=numbers("1,1.05,1.12,1.25,1.4,1.55,1.7,1.85,2"),
        help="what runs take by width",
    )
    asked = parser.parse_args()
    auto = outrider.load(asked.target)
    require(isinstance(auto.drafter, outrider.Mixture), f"target {asked.target!r} has no mixture as its draft 'auto'")
    ways = {name: auto if name == "auto" else auto.with_draft(name) for name in WAYS if name != "head"}
    ways = {"head": auto.with_draft(auto.drafter.second), **ways}
    sys.stdout.write("| task | draft | tokens per run | guesses that took time | speed | over the best |\n")
    sys.stdout.write("| --- " * 6 + "|\n")
    for task, group in prompts.read(asked.prompts, asked.per_task, spec_bench=True).items():
        chats = has_chat_template(auto.tokenizer)
        texts = [auto.chat_prompt([{"role": "user", "content": text}]) if chats else text for text in group]
        found = {name: decode(llm, name in ("copy", "suffix"), texts, asked) for name, llm in ways.items()}
        same = asked.temperature > 0 or all(text == found["auto"][1] for _, text in found.values())
        require(same, f"{task}: the texts differ, which is a bug")
        speeds = {
            name: counts.tokens / counts.time(asked, name in ("copy", "suffix")) for name, (counts, _) in found.items()
        }
        best = max(speed for name, speed in speeds.items() if name != "auto")
        for name, (counts, _) in found.items():
            per_run = counts.tokens / counts.widths.total()
            figures = f"{per_run:.2f} | {counts.guesses} | {speeds[name]:.2f} | {speeds[name] / best:.2f}"
            sys.stdout.write(f"| {task} | {name} | {figures} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    guarded(main)
