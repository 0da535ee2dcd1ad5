"""Tokens per target run of trees beside chains with as many guesses, and their speed, by one drafter.

    python recipes/tree_gain.py smollm2-135m --nodes 4 8
    python recipes/tree_gain.py smollm2-135m --inflated --device cuda --chains 5 7 --nodes 16 32 --levels 6 8

A target's trained head is made to guess as often as it is asked, so that chains have all their guesses. Prompts are
those of the built-in sample, each decoded by every setting in turn; a first text of every setting is not counted.
--inflated pads the target to eight billion weights that compute the same function (outrider.bench.inflate).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import outrider  # isort: skip  # before torch: its threads then sleep while they wait, as in every command of outrider
import torch
from mistakes import check_least, guarded

from outrider.bench.pair import inflated
from outrider.bench.prompts import SAMPLE
from outrider.drafters import Mixture
from outrider.drafters.head import HeadDrafter
from outrider.models.hub.loading import choose_device
from outrider.trace import PHASES, merge, summarise


def never_stopping(llm: outrider.LLM) -> outrider.LLM:
    """The same target with its head alone, which makes every guess it is asked for; other drafters as they are."""
    drafter = llm.drafter.second if isinstance(llm.drafter, Mixture) else llm.drafter
    if isinstance(drafter, HeadDrafter):
        drafter = HeadDrafter(drafter.saved, drafter.tokens, drafter.name, floor=0.0)
    return llm.with_draft(drafter)


def loaded(chosen: argparse.Namespace, width: int) -> outrider.LLM:
    if chosen.inflated:
        head = None if chosen.draft == "auto" else Path(chosen.draft)
        made = inflated(chosen.target, head, torch.device(choose_device(chosen.device)), chosen.dtype)
        return outrider.LLM(made.loaded, made.drafter, width=width)
    llm = outrider.load(chosen.target, chosen.draft, device=chosen.device, dtype=chosen.dtype, width=width)
    return never_stopping(llm)


def settings(chains: Sequence[int], nodes: Sequence[int], levels: Sequence[int]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"plain": {"gamma": 0}}
    found |= {f"chain of {count}": {"gamma": count} for count in sorted({*chains, *nodes})}
    for count in nodes:
        for most in levels or [count]:
            found[f"tree of {count}, {most} levels"] = {"gamma": most, "tree": count}
        found[f"tree of up to {count}"] = {"tree": count}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--draft", default="auto", help="with --inflated: a head's directory")
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 8], help="of trees; chains have as many, too")
    parser.add_argument("--levels", type=int, nargs="+", default=[], help="of trees; left out: as many as nodes")
    parser.add_argument("--chains", type=int, nargs="+", default=[], help="further chains")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=6, help="of the built-in sample, at most 12")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", help="of the target")
    parser.add_argument("--inflated", action="store_true", help="pad the target to 8B weights")
    chosen = parser.parse_args()
    check_least(chosen, tokens=1, prompts=1)
    llm = loaded(chosen, max(9, *(count + 1 for count in (*chosen.nodes, *chosen.chains))))
    texts = [text for pair in zip(*SAMPLE.values(), strict=True) for text in pair][: chosen.prompts]
    chat = bool(llm.tokenizer.chat_template)
    asked = [llm.chat_prompt([{"role": "user", "content": text}]) if chat else text for text in texts]
    ways = settings(chosen.chains, chosen.nodes, chosen.levels)
    for temperature in chosen.temperatures:
        outputs: dict[str, list[outrider.Output]] = {name: [] for name in ways}
        for seed, prompt in enumerate([asked[0], *asked]):  # the first is not counted
            for name, options in ways.items():
                options = {"temperature": temperature, "seed": seed, "max_new_tokens": chosen.tokens, **options}
                outputs[name].append(llm.generate(prompt, eos=(), **options))
        sys.stdout.write(f"{chosen.target} with {llm.drafter.name}, temperature {temperature}, {len(texts)} prompts\n")
        show(outputs, one_text=temperature == 0)


def show(outputs: dict[str, list[outrider.Output]], one_text: bool) -> None:
    plain = 0.0
    for name, found in outputs.items():
        stats = summarise(merge(output.trace for output in found[1:]))
        plain = plain or stats.tokens_per_second
        spent = ", ".join(f"{phase} {1000 * stats.seconds[phase] / stats.runs:.2f}" for phase in PHASES)
        line = f"{stats.tokens_per_run:5.2f} tokens per run, {stats.drafted / stats.runs:4.1f} guesses"
        same = all(a.tokens == b.tokens for a, b in zip(found, outputs["plain"], strict=True))
        note = "" if same or not one_text else ", NOT the plain text"
        speed = f"{stats.tokens_per_second:6.1f} tokens/s, {stats.tokens_per_second / plain:.2f} of plain"
        sys.stdout.write(f"  {name:24} {line}, {speed} (ms per run: {spent}){note}\n")


if __name__ == "__main__":
    guarded(main)
