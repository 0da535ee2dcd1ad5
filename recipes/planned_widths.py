"""What the planner chooses on a machine: tokens per run, runs by the number of guesses in them, and what it gains.

python recipes/planned_widths.py smollm2-135m --tokens 64

Plain and speculative decoding take turns, prompt by prompt, after one prompt of each that warms up. At temperature 0
the texts must be the same, or the recipe fails. The last lines are what steps cost by the planner's own clock.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from mistakes import guarded

import outrider
from outrider.bench import prompts
from outrider.trace import PHASES, Trace, merge, summarise

Traces = dict[str, list[Trace]]


def asked(llm: Any, text: str) -> Any:
    """As a question, where the model knows questions: a bare text may be taken for one that has ended."""
    chats = getattr(llm.tokenizer, "chat_template", None)
    return llm.chat_prompt([{"role": "user", "content": text}]) if chats else text


def decode(ways: dict[str, tuple[Any, Any]], texts: list[Any], how: dict[str, Any]) -> Traces:
    """``ways``: model and gamma by name."""
    traces: Traces = {name: [] for name in ways}
    for llm, gamma in ways.values():
        llm.generate(texts[0], gamma=gamma, **how)
    for number, text in enumerate(texts):
        turns = list(ways.items())[:: 1 if number % 2 else -1]
        found = {name: llm.generate(text, gamma=gamma, **how) for name, (llm, gamma) in turns}
        if how["temperature"] == 0 and found["plain"].tokens != found["speculative"].tokens:
            sys.exit(f"prompt {number}: the texts differ")
        for name, output in found.items():
            traces[name].append(output.trace)
    return traces


def report(traces: Traces) -> dict[str, Any]:
    """Totals over totals, and by prompt what speculation gains."""
    stats = {name: summarise(merge(several)) for name, several in traces.items()}
    pairs = zip(traces["plain"], traces["speculative"], strict=True)
    seconds = merge(traces["speculative"]).seconds
    guesses = Counter(len(record.drafted) for trace in traces["speculative"] for record in trace.records)
    return {
        "tokens_per_second": {name: found.tokens_per_second for name, found in stats.items()},
        "speedup": stats["speculative"].tokens_per_second / stats["plain"].tokens_per_second,
        "by_prompt": [summarise(two).tokens_per_second / summarise(one).tokens_per_second for one, two in pairs],
        "tokens_per_run": stats["speculative"].tokens_per_run,
        "alpha": stats["speculative"].alpha_counted,
        "runs_by_guesses": dict(sorted(guesses.items())),
        "shares": {phase: seconds[phase] / sum(seconds[p] for p in PHASES) for phase in PHASES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--gamma", default="auto", help="auto, gradient or a number")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=Path, help="a .jsonl file; without, a sample of six tasks")
    parser.add_argument("--per-task", type=int, default=1)
    parser.add_argument("--out", type=Path, help="also write the figures here, as JSON")
    options = parser.parse_args()
    texts = [text for task in prompts.read(options.prompts, options.per_task).values() for text in task]
    gamma = int(options.gamma) if options.gamma.isdigit() else options.gamma
    policy = outrider.Auto() if gamma == "auto" else gamma
    speculative = outrider.load(options.target, draft=options.draft, engine=options.engine)
    plain = outrider.load(options.target, draft=None, engine=options.engine)
    how = {"temperature": options.temperature, "max_new_tokens": options.tokens}
    ways = {"plain": (plain, 0), "speculative": (speculative, policy)}
    found = report(decode(ways, [asked(plain, text) for text in texts], how))
    found["steps"] = [] if gamma != "auto" else [
        {"runs": ladder.runs, "drafts": ladder.drafts, "steps": steps} for ladder, steps in policy.measured()
    ]  # fmt: skip
    for name, value in found.items():
        sys.stdout.write(f"{name}: {json.dumps(value, default=lambda number: round(number, 3))}\n")
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    guarded(main)
