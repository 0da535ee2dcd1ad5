"""Tokens per target run of trees beside chains with as many guesses, and their speed, by one drafter.

    python recipes/tree_gain.py smollm2-135m --nodes 4 8

A target's trained head is made to guess as often as it is asked, so that chains have all their guesses. Prompts are
those of the built-in sample, each decoded by every setting in turn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from mistakes import guarded

import outrider
from outrider.bench.prompts import SAMPLE
from outrider.drafters import Mixture
from outrider.drafters.head import HeadDrafter
from outrider.trace import PHASES, merge, summarise


def never_stopping(llm: outrider.LLM) -> outrider.LLM:
    """The same target with its head alone, which makes every guess it is asked for; other drafters as they are."""
    drafter = llm.drafter.second if isinstance(llm.drafter, Mixture) else llm.drafter
    if isinstance(drafter, HeadDrafter):
        drafter = HeadDrafter(drafter.saved, drafter.tokens, drafter.name, floor=0.0)
    return llm.with_draft(drafter)


def settings(nodes: Sequence[int]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"plain": {"gamma": 0}}
    for count in nodes:
        found[f"chain of {count}"] = {"gamma": count}
        found[f"tree of {count}"] = {"gamma": count, "tree": count}
        found[f"tree of up to {count}, by cost"] = {"tree": count}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=6, help="of the built-in sample, at most 12")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    chosen = parser.parse_args()
    llm = never_stopping(outrider.load(chosen.target, chosen.draft))
    texts = [text for pair in zip(*SAMPLE.values(), strict=True) for text in pair][: chosen.prompts]
    write = sys.stdout.write
    for temperature in chosen.temperatures:
        outputs: dict[str, list[outrider.Output]] = {}
        for seed, text in enumerate(texts):
            asked = llm.chat_prompt([{"role": "user", "content": text}]) if llm.tokenizer.chat_template else text
            for name, options in settings(chosen.nodes).items():
                options = {"temperature": temperature, "seed": seed, "max_new_tokens": chosen.tokens, **options}
                outputs.setdefault(name, []).append(llm.generate(asked, eos=(), **options))
        write(f"{chosen.target} with {llm.drafter.name}, temperature {temperature}, {len(texts)} prompts\n")
        for name, found in outputs.items():
            stats = summarise(merge(output.trace for output in found))
            spent = ", ".join(f"{phase} {1000 * stats.seconds[phase] / stats.runs:.1f}" for phase in PHASES)
            line = f"{stats.tokens_per_run:5.2f} tokens per run, {stats.drafted / stats.runs:4.1f} guesses"
            same = temperature > 0 or all(a.tokens == b.tokens for a, b in zip(found, outputs["plain"], strict=True))
            speed = f"{stats.tokens_per_second:6.1f} tokens/s (ms per run: {spent})"
            write(f"  {name:26} {line}, {speed}{'' if same else ', NOT the plain text'}\n")


if __name__ == "__main__":
    guarded(main)
