"""Times the decoding loop beside the bare step it runs: the difference is host time that the GPU waits for."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from outrider.bench.gpu import GREEDY, StandingRows, StepSetting
from outrider.bench.timing import timed
from outrider.core.protocols import Drafter
from outrider.decoding.loop import Decoder, Request, bucket
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.stopping import Stopping
from outrider.drafters import ModelDrafter, Nothing
from outrider.planning.policies import Auto, Policy
from outrider.runtime import timer
from outrider.trace import Trace, ratio


@dataclass(frozen=True)
class Decoded:
    """What the loop did after the first run of every request, which waits for the prompt to be read."""

    trace: Trace
    tokens: int  # in the texts
    kept: int  # with those beyond a text's end
    pauses: tuple[float, ...]  # seconds from run to run
    context: int  # tokens before a run, on average

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return ratio(self.tokens, sum(self.pauses))

    @property
    def runs(self) -> int:
        return len(self.pauses)

    @property
    def milliseconds(self) -> float:
        return 1000 * ratio(sum(self.pauses), self.runs)


def decode(decoder: Decoder, requests: Sequence[Request]) -> Decoded:
    """Every request, one at a time; steps are captured before, once for every shape."""
    for request in {decoder.shape(request): request for request in requests}.values():
        list(decoder.stream([request], Trace()))
    trace, tokens = Trace(decoder.drafter.name), 0
    pauses: list[float] = []
    for number, request in enumerate(requests):
        last = None
        for event in decoder.stream([request], trace, [number]):
            now = timer.now()
            if last is not None:
                pauses.append(now - last)
                tokens += len(event.tokens)
            last = now
    if trace.drafter_error:
        raise RuntimeError(trace.drafter_error)
    later = [r for r in trace.records if r.position > len(requests[r.row].prompt)]
    context = round(statistics.fmean(r.position for r in trace.records))
    return Decoded(trace, tokens, sum(r.accepted + 1 for r in later), tuple(pauses), context)


def exposed(setting: StepSetting, tokens: int) -> dict[str, Any]:
    """Milliseconds of an iteration and of its step without reading the result: plain, speculative, and with a planner.

    The planner takes guesses for free, so that it asks for as many as it may; only its own work counts here.
    """
    model = ModelDrafter(setting.draft)
    ways: dict[str, tuple[Drafter, int | Policy, int]] = {
        "plain": (Nothing(), 0, 0),
        "speculative": (model, setting.gamma, setting.gamma),
        "planned": (model, Auto(0.0), setting.width - 1),
    }
    return {name: _exposed(setting, tokens, *way) for name, way in ways.items()}


def _exposed(setting: StepSetting, tokens: int, drafter: Drafter, policy: int | Policy, gamma: int) -> dict[str, Any]:
    drawn = torch.Generator().manual_seed(0)
    prompt = torch.randint(3, setting.target.vocab_size, (setting.context,), generator=drawn).tolist()
    pool = SessionPool(graphs=True)
    decoder = Decoder(
        setting.target, drafter, GREEDY.verifier, GREEDY.sampling, policy, setting.width, slots=1, pool=pool
    )
    found = decode(decoder, [Request(tuple(prompt), Stopping(tokens), seed=seed) for seed in range(2)])
    pool.clear()
    rows_at = StandingRows(replace(setting, capacity=bucket(found.context + 256)), drafter, setting.shape())
    step = timed(
        lambda: rows_at.runner.launch(GREEDY, gamma), setting.device, setting.repeats, setting.inner,
        lambda: rows_at.stand_at(found.context),
    )["median"]  # fmt: skip
    middle = 1000 * statistics.median(found.pauses)
    return {
        "iteration_ms": found.milliseconds, "iteration_median_ms": middle, "step_ms": step, "runs": found.runs,
        "gamma": gamma, "asked": statistics.fmean(len(r.drafted) for r in found.trace.records),
        "exposed_host_ms": found.milliseconds - step, "exposed_host_median_ms": middle - step,
    }  # fmt: skip
