"""What suffix memory gains over copying where texts are written again: edits of code, and a session of them.

python recipes/suffix_gain.py smollm2-135m --max-new-tokens 200

Two sets of prompts, made here. "edits": a file stands in the prompt, and the answer is that file with a change.
"session": the same piece of work is asked for again and again with another wish each time, and the answer before is
not in the prompt, as where an agent starts anew; only a memory of earlier outputs knows it. Target runs are counted at
temperature 0 with a fixed number of guesses, which is the same on every machine: all ways write the same text.
--seconds adds times, with gamma "auto" unless --gamma is given.

--inflated pads the target to eight billion weights that compute the same function (outrider.bench.inflate).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

import outrider  # isort: skip  # before torch: its threads then sleep while they wait, as in every command of outrider
import torch
from mistakes import check_least, guarded

from outrider.bench.pair import inflated
from outrider.errors import require
from outrider.models.hub.loading import choose_device
from outrider.models.settings import has_chat_template
from outrider.runtime import timer

FILE = '''class Stock:
    """Goods in a warehouse, by name."""

    def __init__(self):
        self.amounts = {}
        self.prices = {}

    def add(self, name, amount, price):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.amounts[name] = self.amounts.get(name, 0) + amount
        self.prices[name] = price

    def remove(self, name, amount):
        if self.amounts.get(name, 0) < amount:
            raise ValueError("not enough in stock")
        self.amounts[name] -= amount

    def value(self):
        total = 0
        for name, amount in self.amounts.items():
            total += amount * self.prices[name]
        return total
'''

CHANGES = (
    "Rename the class Stock to Inventory.",
    "Rename the method value to total_value.",
    "Rename the method remove to take.",
    "Change the error message 'not enough in stock' to 'sold out'.",
    "Add a method count that returns the number of names.",
    "Use the word quantity instead of amount everywhere.",
)

WISHES = (
    "Keep it simple.",
    "Use clear names.",
    "Handle an empty list.",
    "Add a docstring to every function.",
    "Raise ValueError where an input is wrong.",
    "Add a short example of its use at the end.",
)

WORK = "Write a Python module with functions mean, median and mode for a list of numbers. {} Answer with code only."

EDIT = "Here is a Python file:\n\n{}\n{} Write the whole file again with this change and nothing else."

REMEMBERING = "suffix + memory"

WAYS = ("none", "copy", "suffix", REMEMBERING)


def prompts() -> dict[str, list[str]]:
    return {
        "edits": [EDIT.format(FILE, change) for change in CHANGES],
        "session": [WORK.format(wish) for wish in WISHES],
    }


@dataclass(frozen=True)
class Gain:
    """What a way took for all prompts of a set."""

    tokens: int
    runs: int
    drafted: int
    accepted: int
    seconds: float


def run(first: outrider.LLM, way: str, asked: list[str], options: dict[str, Any]) -> tuple[Gain, list[list[int]]]:
    """One prompt after another, as in a session; a memory begins empty."""
    memory = outrider.OutputMemory() if way == REMEMBERING else None
    drafter = first.with_draft(way).drafter if memory is None else outrider.Suffix(memory=memory)
    llm = outrider.LLM(first.target, drafter, width=first.width, memory=memory)
    began = timer.now()
    outputs = [llm.generate(_prompt(llm, text), **options) for text in asked]
    seconds = timer.now() - began
    total = {name: sum(vars(out.stats)[name] for out in outputs) for name in ("tokens", "runs", "drafted", "accepted")}
    return Gain(**total, seconds=seconds), [list(out.tokens) for out in outputs]


def _prompt(llm: outrider.LLM, text: str) -> str | list[int]:
    return llm.chat_prompt([{"role": "user", "content": text}]) if has_chat_template(llm.tokenizer) else text


def measured(llm: outrider.LLM, gamma: int | str, tokens: int) -> dict[str, dict[str, Gain]]:
    """Every way for every set of prompts."""
    found: dict[str, dict[str, Gain]] = {}
    for task, asked in prompts().items():
        found[task], texts = {}, []
        for way in WAYS:
            found[task][way], text = run(llm, way, asked, {"gamma": gamma, "max_new_tokens": tokens})
            texts.append(text)
        require(all(text == texts[0] for text in texts), f"{task}: the texts differ, which is a bug")
    return found


def table(found: dict[str, dict[str, Gain]], timed: bool) -> str:
    lines = ["| task | draft | tokens | target runs | tokens per run | drafted | kept |" + " seconds |" * timed]
    lines.append("| --- " * (7 + timed) + "|")
    for task, ways in found.items():
        for way, gain in ways.items():
            kept = f"{gain.accepted / gain.drafted:.0%}" if gain.drafted else "-"
            counts = f"{gain.tokens} | {gain.runs} | {gain.tokens / gain.runs:.2f} | {gain.drafted} | {kept} |"
            lines.append(f"| {task} | {way} | {counts}" + f" {gain.seconds:.2f} |" * timed)
    return "\n".join(lines)


def loaded(asked: argparse.Namespace, width: int) -> outrider.LLM:
    if not asked.inflated:
        return outrider.load(asked.target, "none", device=asked.device, width=width)
    made = inflated(asked.target, None, torch.device(choose_device(asked.device)), "auto")
    return outrider.LLM(made.loaded, outrider.Nothing(), width=width)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="smollm2-135m")
    parser.add_argument("--gamma", type=int, help="guesses per run (default: 7, with --seconds auto)")
    parser.add_argument("--max-new-tokens", type=int, default=200)
    parser.add_argument("--seconds", action="store_true", help="times, too")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--inflated", action="store_true", help="pad the target to 8B weights")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(words)
    check_least(asked, gamma=1, max_new_tokens=1)
    llm = loaded(asked, (asked.gamma or 7) + 1)
    gamma = asked.gamma or ("auto" if asked.seconds else 7)
    if asked.seconds:
        measured(llm, gamma, 16)  # compiled, and costs of runs learnt
    found = measured(llm, gamma, asked.max_new_tokens)
    as_numbers = {task: {way: asdict(gain) for way, gain in ways.items()} for task, ways in found.items()}
    sys.stdout.write((json.dumps(as_numbers) if asked.json else table(found, asked.seconds)) + "\n")


if __name__ == "__main__":
    guarded(main)
