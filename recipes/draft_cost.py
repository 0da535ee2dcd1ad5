"""What a speculative step costs beside the target's run, part by part, on a CPU with one row.

python recipes/draft_cost.py smollm2-135m

"floor" is the time to read the weights of a guess once, in the form they are kept in (eight bits where this CPU is
fast at them), at the bandwidth of summing a large tensor, best of several. Guesses are timed after that tensor was
read, as in decoding, where the target's weights have gone through the caches. Medians of --steps steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from mistakes import guarded

import outrider
from outrider.core.algorithm import Step, splice
from outrider.core.noise import Noise, Silence
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling, standardise
from outrider.core.verification.choose import choose
from outrider.decoding.step_result import PendingStep
from outrider.drafters import Mixture
from outrider.drafters.head import HeadDrafter

PROMPT = (
    "Explain how rain forms, and why some clouds give none, in a few sentences a child can follow. Then list three "
    "other kinds of weather and what causes each of them."
)


class Laps:
    """Milliseconds by name; each lap is the time since the last."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = defaultdict(list)
        self.last = time.perf_counter()

    def __call__(self, name: str) -> None:
        self.taken[name].append((time.perf_counter() - self.last) * 1e3)
        self.last = time.perf_counter()

    def medians(self) -> dict[str, float]:
        return {name: statistics.median(values[2:]) for name, values in self.taken.items()}


def bandwidth(large: torch.Tensor) -> float:
    """Bytes a second."""
    return large.nbytes / min(timed(large.sum) for _ in range(8)) * 1e3


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def steps(llm: outrider.LLM, prompt: list[int], temperature: float, count: int) -> dict[str, float]:
    """A decoder's steps, one part after the other."""
    sampling, seeds, shape = Sampling(temperature), torch.zeros(1, dtype=torch.int64), Shape(512, llm.width)
    noise = Silence(seeds) if sampling.greedy else Noise(seeds)
    verify = choose("maximal", sampling.greedy)
    target = llm.target.model.start(1, shape)
    drafter = llm.drafter.start(1, shape, target)
    target.admit(0, prompt)
    drafter.admit(0, prompt)
    lap = Laps()
    for _ in range(count + 2):
        lap("between")
        at = target.context.positions(llm.width)
        draft = drafter.propose(llm.width - 1, sampling, verify.noise_for_draft(noise, at), at)
        lap("draft")
        logits = target.score(draft.tokens)
        lap("target")
        p = standardise(logits, sampling, target.context, draft.tokens)
        lap("standardise")
        verdict = verify(p, draft, noise, at[:, : draft.tokens.shape[1] + 1])
        lap("verify")
        emitted, kept = splice(draft.tokens, verdict)
        step = Step(emitted, kept, draft, draft.overlap(p), p)
        lap("splice, overlap")
        target.commit(emitted, kept)
        lap("commit, target")
        drafter.commit(emitted, kept)
        lap("commit, draft")
        PendingStep(step).read()
        lap("read back")
    found = lap.medians()
    found.pop("between")
    return found


def guesses(llm: outrider.LLM, head: HeadDrafter, large: torch.Tensor, temperature: float, count: int) -> list[float]:
    """The first guess of a draft, and each further one."""
    sampling, seeds, shape = Sampling(temperature), torch.zeros(1, dtype=torch.int64), Shape(512, llm.width)
    noise = Silence(seeds) if sampling.greedy else Noise(seeds)
    prompt = llm.tokenizer.encode(PROMPT)
    target = llm.target.model.start(1, shape)
    session = HeadDrafter(head.head, head.tokens, floor=0.0).start(1, shape, target)
    target.admit(0, prompt)
    session.admit(0, prompt)
    times: dict[int, list[float]] = {1: [], 5: []}
    for _ in range(count + 2):
        for gamma, taken in times.items():
            large.sum()
            at = target.context.positions(gamma + 1)
            taken.append(timed(lambda: session.propose(gamma, sampling, noise, at)))  # noqa: B023
    one, five = (statistics.median(taken[2:]) for taken in times.values())
    return [one, (five - one) / 4]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="the numbers as JSON")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    llm = outrider.load(options.target, device="cpu", dtype=options.dtype)
    large = torch.ones(128 * 2**20)
    speed = bandwidth(large)
    report: dict[str, Any] = {"threads": torch.get_num_threads(), "read_gb_s": speed / 1e9, "steps": {}, "guess": {}}
    head = llm.drafter.second if isinstance(llm.drafter, Mixture) else llm.drafter
    for temperature in (0.0, 1.0):
        report["steps"][temperature] = steps(llm, llm.tokenizer.encode(PROMPT), temperature, options.steps)
        if isinstance(head, HeadDrafter):
            first, further = guesses(llm, head, large, temperature, options.steps)
            report["guess"][temperature] = {"first": first, "further": further}
    if isinstance(head, HeadDrafter):
        report["floor_ms"] = {bits: head.weights_read * bits / 8 / speed * 1e3 for bits in (8, 32)}
    sys.stdout.write(json.dumps(report) + "\n" if options.json else shown(options, report))


def shown(options: argparse.Namespace, report: dict[str, Any]) -> str:
    lines = [
        f"{options.target} {options.dtype}, {report['threads']} threads, reads {report['read_gb_s']:.1f} GB/s; "
        f"medians of {options.steps}, ms"
    ]
    for temperature, parts in report["steps"].items():
        lines += [f"temperature {temperature:g}", *(f"  {name:26s} {ms:8.3f}" for name, ms in parts.items())]
        for name, ms in report["guess"].get(temperature, {}).items():
            lines.append(f"  {name + ' guess':26s} {ms:8.3f}")
    for bits, ms in report.get("floor_ms", {}).items():
        lines.append(f"floor of a guess, {bits:2d} bits    {ms:8.3f}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    guarded(main)
