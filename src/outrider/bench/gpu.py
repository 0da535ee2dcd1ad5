"""Times decoding steps, Outrider's and transformers' in one process, beside the limit of the memory bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from outrider.bench.shapes import weight_bytes
from outrider.bench.timing import Report, settle, spread, timed
from outrider.core.protocols import Drafter, Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.capture.graphs import StepGraphs
from outrider.decoding.step_runner import Rule, StepRunner
from outrider.drafters import ModelDrafter, Nothing
from outrider.models.transformers.model import HuggingFaceModel
from outrider.runtime import timer

GREEDY = Rule(gumbel_coupling, Sampling())
SAMPLED = Rule(maximal_coupling, Sampling(temperature=1.0))
COUPLED = Rule(gumbel_coupling, Sampling(temperature=1.0))


@dataclass(frozen=True)
class StepSetting:
    """What is measured: models, shapes, how often."""

    target: HuggingFaceModel
    draft: HuggingFaceModel
    context: int = 512
    capacity: int = 1024
    width: int = 8
    gamma: int = 5
    repeats: int = 7
    inner: int = 10

    @property
    def device(self) -> torch.device:
        return torch.device(self.target.device)

    def shape(self, width: int | None = None, capacity: int | None = None) -> Shape:
        source = 64 if self.target.encoder_decoder else 0
        return Shape(capacity or self.capacity, width or self.width, source_capacity=source)


def roofline(setting: StepSetting) -> dict[str, float]:
    """Copy bandwidth, bytes read plus written, and the time the weights alone need at it."""
    size = 2**32 if setting.device.type == "cuda" else 2**24
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=setting.device)
    target = torch.empty_like(source)
    took = timed(lambda: target.copy_(source), setting.device, 7, 3, lambda: None)["median"]
    rate = 2 * size / took * 1000  # bytes a second
    weights = {"target": weight_bytes(setting.target), "draft": weight_bytes(setting.draft)}
    floors = {f"{name}_floor_ms": 1000 * count / rate for name, count in weights.items()}
    return {"bytes_per_second": rate, **{f"{k}_bytes": v for k, v in weights.items()}, **floors}


class StandingRows:
    """A runner whose rows stand at a chosen length, with a past of random keys and values."""

    def __init__(
        self, setting: StepSetting, drafter: Drafter, shape: Shape, rows: int = 1, graphs: bool = True
    ) -> None:
        self.setting, self.rows = setting, rows
        self.runner = StepRunner((setting.target, drafter), rows, shape, graphs)
        for row in range(rows):
            self.runner.target.context.admit(row, [3, 4])
            self.runner.drafter.admit(row, [3, 4])
            self.runner.seeds[row] = row
        found = StepGraphs(self.runner.target, self.runner.drafter)
        self.sessions: list[Any] = list(found.sessions)
        self.contexts = found.contexts
        for session in self.sessions:
            for pair in session.cache.buffers():
                for buffer in pair:
                    buffer.normal_()

    def stand_at(self, length: int) -> None:
        """Committed tokens up to here, all but the last of them run."""
        for context in self.contexts:
            context.lengths.fill_(length)
        for session in self.sessions:
            session.cached.fill_(length - 1)

    def times(self, rule: Rule, gamma: int, length: int) -> dict[str, Any]:
        """Milliseconds a step: back to back, read at once, and read a step behind; prefill is not in it."""
        setting = self.setting
        held: list[Any] = []

        def lagging() -> None:
            held.append(self.runner.launch(rule, gamma))
            if len(held) > 1:
                held.pop(0).read()

        def run(work: Callable[[], object]) -> dict[str, float]:
            return timed(work, setting.device, setting.repeats, setting.inner, lambda: self.stand_at(length))

        result: dict[str, Any] = {"queued": run(lambda: self.runner.launch(rule, gamma))}
        result["read"] = run(lambda: self.runner.launch(rule, gamma).read())
        result["lagging"] = run(lagging)
        result["exposed_host_ms"] = result["lagging"]["median"] - result["queued"]["median"]
        result["graphs"] = self.runner.graphs
        return result


def variant(setting: StepSetting, graphs: bool) -> dict[str, Any]:
    """Plain decoding at the session's width and at width 1, and speculative decoding, greedy and sampled."""
    gamma, length = setting.gamma, setting.context
    setting = setting if graphs else replace(setting, repeats=min(setting.repeats, 3), inner=min(setting.inner, 4))
    result: dict[str, Any] = {}
    plain = StandingRows(setting, Nothing(), setting.shape(), graphs=graphs)
    result["plain"] = plain.times(GREEDY, 0, length)
    narrow = StandingRows(setting, Nothing(), setting.shape(width=1), graphs=graphs)
    result["plain_width_1"] = narrow.times(GREEDY, 0, length)
    result["width_ratio"] = result["plain"]["queued"]["median"] / result["plain_width_1"]["queued"]["median"]
    drafting = StandingRows(setting, ModelDrafter(setting.draft), setting.shape(), graphs=graphs)
    result["speculative"] = drafting.times(GREEDY, gamma, length)
    if graphs:
        result["plain_sampled"] = plain.times(COUPLED, 0, length)
        result["speculative_sampled"] = drafting.times(SAMPLED, gamma, length)
    return result


def prefill(setting: StepSetting) -> dict[str, float]:
    """Milliseconds until a prompt of ``context`` tokens is in memory."""
    runner = StepRunner((setting.target, Nothing()), 1, setting.shape())
    prompt = torch.randint(3, setting.target.vocab_size, (setting.context,)).tolist()
    return timed(lambda: runner.target.admit(0, prompt), setting.device, 3, 1, lambda: None)


def theirs(setting: StepSetting, assisted: bool) -> dict[str, Any]:
    """transformers' own generate: milliseconds per target run after the first, which reads the prompt."""
    model, runs = setting.target.model, []
    prompt = torch.randint(3, setting.target.vocab_size, (1, setting.context), device=setting.device)
    options: dict[str, Any] = {"do_sample": False, "attention_mask": torch.ones_like(prompt)}
    if assisted:
        config = setting.draft.model.generation_config
        config.num_assistant_tokens, config.num_assistant_tokens_schedule = setting.gamma, "constant"
        config.assistant_confidence_threshold = 0.0
        options |= {"assistant_model": setting.draft.model}

    def stamp(*ignored: Any) -> None:
        settle(setting.device)
        runs.append(timer.now())

    hook = model.register_forward_hook(stamp)
    try:
        times = []
        for _ in range(4):
            runs.clear()
            model.generate(prompt, max_new_tokens=12, **options)
            times.append((runs[-1] - runs[0]) * 1000 / (len(runs) - 1))
    finally:
        hook.remove()
    return spread(times[1:]) | {"runs": len(runs)}


def compiled(setting: StepSetting, mode: str | None) -> Callable[[], None]:
    """Compile both models in place -> what undoes it."""
    bodies = [setting.target.model.base_model, setting.draft.model.base_model]
    torch._dynamo.config.cache_size_limit = 64
    for body in bodies:
        body.compile(dynamic=False, mode=mode)

    def undo() -> None:
        for body in bodies:
            body._compiled_call_impl = None

    return undo


def everything(setting: StepSetting, report: Report, baseline: bool = True, compile_too: bool = False) -> None:
    """Every variant in one process, the unfused ones first."""
    report.section("roofline", lambda: roofline(setting))
    if baseline:
        report.section("transformers_plain", lambda: theirs(setting, assisted=False))
        report.section("transformers_assisted", lambda: theirs(setting, assisted=True))
        report.section("eager", lambda: variant(setting, graphs=False))
        report.section("graph", lambda: variant(setting, graphs=True))
    if compile_too:
        undo = compiled(setting, None)
        report.section("graph_compiled", lambda: variant(setting, graphs=True))
        undo()
    fused = setting.target.fuse() and setting.draft.fuse()
    report.results["fused"] = fused
    report.results["batch_invariant"] = setting.target.find_batch_invariance() and setting.draft.find_batch_invariance()
    if fused:
        report.section("eager_fused", lambda: variant(setting, graphs=False))
        report.section("graph_fused", lambda: variant(setting, graphs=True))
    report.section("prefill", lambda: prefill(setting))
