"""Many streams at once through the engine of `outrider serve`, without HTTP, against one call of `generate`.

    python recipes/serve_streams.py smollm2-135m --streams 64
    python recipes/serve_streams.py smollm2-135m --inflated --device cuda --dtype bfloat16 --streams 64

The same prompts, of 40 to 250 tokens as in `outrider bench gpu --section load`, at temperature 0: submitted to the
engine all at once and read step by step, and as one batch. They take turns in one process; prefill counts. Every turn
has prompts of its own, since the engine need not run again what it holds; --same-prompts has the same ones.
--inflated pads the target to eight billion weights that compute the same function (outrider.bench.inflate), with the
head that comes for the small one.
"""

from __future__ import annotations

import argparse
import sys
import threading
from functools import partial
from statistics import median

import outrider  # isort: skip  # before torch: its threads then sleep while they wait, as in every command of outrider
import torch
from mistakes import check_least, guarded

from outrider.bench.load import random_prompts, seconds
from outrider.bench.pair import inflated
from outrider.models.hub.loading import choose_device
from outrider.options import Options
from outrider.serve.engine import Engine, Limits
from outrider.serve.job import Deliver, Job, StepProgress


class Streams:
    """Clients of an engine: one for each prompt, all at once."""

    def __init__(self, llm: outrider.LLM, count: int, tokens: int) -> None:
        self.tokens = tokens
        self.engine = Engine(llm, Limits(slots=count, context=512 + tokens, waiting=count))
        self.engine.start()

    def texts(self, prompts: list[tuple[int, ...]]) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in prompts]
        ended, left, failed = threading.Event(), [len(prompts)], []

        def reader(row: int) -> Deliver:
            def deliver(step: StepProgress) -> None:
                found[row] += step.tokens
                if step.finish_reason is not None:
                    failed.extend([step.error] if step.error else [])
                    left[0] -= 1
                    if not left[0]:
                        ended.set()

            return deliver

        options = Options(max_new_tokens=self.tokens, eos=())
        requests = [self.engine.request(Job(prompt, options, seed)) for seed, prompt in enumerate(prompts)]
        self.engine.submit(requests, [reader(row) for row in range(len(prompts))])
        while not ended.wait(5):
            if self.engine.failure is not None:
                raise RuntimeError(self.engine.failure)
        if failed:
            raise RuntimeError(failed[0])
        return found


def loaded_llm(chosen: argparse.Namespace) -> outrider.LLM:
    if not chosen.inflated:
        return outrider.load(chosen.target, chosen.draft, device=chosen.device, dtype=chosen.dtype)
    made = inflated(chosen.target, None, torch.device(choose_device(chosen.device)), chosen.dtype)
    return outrider.LLM(made.loaded, outrider.Nothing() if chosen.draft == "none" else made.drafter)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--draft", default="none", help="none, or auto; with --inflated the small model's own head")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128, help="new ones of each stream")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--same-prompts", action="store_true", help="in every turn: the engine copies what it holds")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", help="of the target")
    parser.add_argument("--inflated", action="store_true", help="pad the target to eight billion weights")
    chosen = parser.parse_args()
    check_least(chosen, streams=1, tokens=1, turns=1)
    llm = loaded_llm(chosen)
    asked = random_prompts(
        llm.target.model.vocab_size, chosen.streams * (1 if chosen.same_prompts else chosen.turns + 1)
    )
    device, streams = llm.target.model.device, Streams(llm, chosen.streams, chosen.tokens)

    def prompts(turn: int) -> list[tuple[int, ...]]:
        first = 0 if chosen.same_prompts else chosen.streams * turn
        return asked[first : first + chosen.streams]

    def batch(turn: int) -> list[list[int]]:
        return [list(output.tokens) for output in llm.generate(prompts(turn), max_new_tokens=chosen.tokens, eos=())]

    batch(0), streams.texts(prompts(0))  # what is compiled, captured or measured once
    differ = sum(one != other for one, other in zip(batch(0), streams.texts(prompts(0)), strict=True))
    took: dict[str, list[float]] = {"batch": [], "streams": []}
    for turn in range(1, chosen.turns + 1):
        ways = {"batch": partial(batch, turn), "streams": partial(streams.texts, prompts(turn))}
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            took[name] += seconds(ways[name], device, 1)
    streams.engine.drain(5)
    total = chosen.streams * chosen.tokens
    ratios = sorted(b / s for b, s in zip(took["batch"], took["streams"], strict=True))
    speeds = ", ".join(f"{name} {total / median(times):.0f} tokens/s" for name, times in took.items())
    sys.stdout.write(
        f"{chosen.streams} streams, draft {llm.drafter.name}: {speeds}; streams over batch {median(ratios):.2f} "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f}, {chosen.turns} turns); {differ} of {chosen.streams} texts differ\n"
    )


if __name__ == "__main__":
    guarded(main)
