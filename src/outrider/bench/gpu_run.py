"""Runs all of ``outrider bench gpu``: models of a size, every section, one result file.

Also ``python -m outrider.bench.gpu_run``, for machines without the command line's own dependencies.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from outrider.bench import curves, gpu, identity, load, loop, many_rows, micro
from outrider.bench.gpu import GREEDY, StandingRows, StepSetting
from outrider.bench.shapes import SIZES, build
from outrider.bench.timing import Report, settle
from outrider.drafters import ModelDrafter, Nothing
from outrider.errors import DeviceError, ModelNotFound, require
from outrider.runtime import timer

SECTIONS = ("latency", "decoder", "identity", "rows", "curves", "load", "pair", "micro", "profile", "compile")


@dataclass(frozen=True)
class GpuPlan:
    """What to measure. ``tiny`` is for machines without a GPU: it runs the same code."""

    size: str = "8b"
    device: str = "cuda"
    sections: tuple[str, ...] = ("latency", "identity", "curves")
    budget: float = float("inf")
    out: Path | None = None
    tokens: int = 2500  # of each of eight rows, for the comparison of speculative with plain text
    pair: str = "smollm2-135m"  # the trained model that is inflated
    pair_draft: Path | None = None  # a head trained for it; None: the one that comes with the package
    prompts: Path | None = None  # that the pair continues; None: twelve of six tasks

    def __post_init__(self) -> None:
        unknown = [name for name in self.sections if name not in SECTIONS]
        require(not unknown, f"sections {unknown} are unknown; known: {', '.join(SECTIONS)}")
        require(len(self.sections) > 0, f"no section to measure; known: {', '.join(SECTIONS)}")
        require(self.size in ("8b", "tiny"), f"size must be 8b or tiny, got {self.size!r}")
        require(self.tokens >= 1, f"tokens must be at least 1, got {self.tokens}")
        usual = self.prompts is None and self.pair_draft is None
        require(usual or not self.tiny, "prompts and pair_draft are for a trained pair; size tiny makes one of its own")
        require(
            self.prompts is None or self.prompts.is_file(), f"prompts file {self.prompts} does not exist", ModelNotFound
        )

    @property
    def tiny(self) -> bool:
        return self.size == "tiny"


def run(plan: GpuPlan) -> Report:
    """Every section asked for; a section that fails is recorded and the next one runs. Ctrl-C ends it between two."""
    device = torch.device(plan.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError("no GPU is visible here; use --device cpu --size tiny to try the command on a CPU")
    report = Report(plan.out, plan.budget)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    target = build(SIZES["tiny" if plan.tiny else "8b"], device, dtype)
    draft = build(SIZES["tinier" if plan.tiny else "1b"], device, dtype, seed=1)
    few = {"repeats": 2, "inner": 2, "context": 64, "capacity": 256} if plan.tiny else {}
    setting = StepSetting(target, draft, **few)
    settle(device)
    report.results["machine"], report.results["size"] = _machine(device), plan.size
    report.results["shapes"] = {"target": str(target.config), "draft": str(draft.config)}
    try:
        with torch.no_grad():
            _sections(plan, setting, report)
    except KeyboardInterrupt:
        report.interrupted = True
    return report


def _sections(plan: GpuPlan, setting: StepSetting, report: Report) -> None:
    report.section("noise", lambda: identity.same_noise(setting))
    if "latency" in plan.sections:
        gpu.everything(setting, report)
    else:
        for model in (setting.target, setting.draft):
            model.fuse()
            model.find_batch_invariance()
    if "latency" in plan.sections or "decoder" in plan.sections:
        report.section("decoder", lambda: loop.exposed(setting, 16 if plan.tiny else 96))
    if "identity" in plan.sections:
        count = 12 if plan.tiny else 40
        report.section("replayed_is_eager", lambda: identity.replayed_is_eager(setting, count))
        rows, count = (2, 16) if plan.tiny else (8, plan.tokens)
        report.section("identity_one_row", lambda: identity.compare(setting, 1, min(count, 300), 0.3))
        report.section("identity", lambda: identity.compare(setting, rows, count, 0.3))
    if "rows" in plan.sections:
        tokens, longest = (8, 30) if plan.tiny else (128, load.LONGEST)
        prompts = load.random_prompts(setting.target.vocab_size, 64, longest)
        prompts[0] = (prompts[0] * longest)[: 6 * longest]  # one that is prefilled in several chunks
        report.section("in_batches", lambda: many_rows.in_batches(setting.target, prompts, tokens))
        if setting.device.type == "cuda":
            report.series("cost_of_invariance", many_rows.cost_of_invariance(setting, (1, 8, 64, 256)))
    if "pair" in plan.sections:
        _pair(plan, setting, report)
    if "curves" in plan.sections:
        _curves(plan, setting, report)
    if "load" in plan.sections:
        counts, tokens, longest = ((1, 2), 8, 30) if plan.tiny else ((1, 4, 16, 64, 256), 128, load.LONGEST)
        prompts = load.random_prompts(setting.target.vocab_size, max(counts), longest)
        report.series("load", load.points(setting, GREEDY, counts, prompts, tokens, others=not plan.tiny))
    if "micro" in plan.sections:
        report.section("products", lambda: micro.products(setting, (1, setting.width, 16)))
        report.section("filters", lambda: micro.filters(setting))
        if setting.target.fused:
            lengths = (128, 512, 1024, 4096, 16384)
            report.section("attention", lambda: micro.attention(setting, lengths, 16384))
    if "profile" in plan.sections:
        report.section("profile", lambda: profile(setting, plan.out))
    if "compile" in plan.sections:
        report.section("graph_compiled", lambda: _compiled(setting))


def _curves(plan: GpuPlan, setting: StepSetting, report: Report) -> None:
    gammas = [1, 2, 4] if plan.tiny else [1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16]
    lengths = [64, 128] if plan.tiny else [512, 1024, 2048, 4096, 8192, 16384]
    counts = [1, 2] if plan.tiny else [1, 2, 4, 8, 16, 32, 64]
    report.series("by_gamma", curves.by_gamma(setting, gammas))
    for name, speculative in (("", False), ("_speculative", True)):
        report.series(f"by_context{name}", curves.by_context(setting, lengths, speculative))
        report.series(f"by_rows{name}", curves.by_rows(setting, counts, speculative))


def _pair(plan: GpuPlan, setting: StepSetting, report: Report) -> None:
    """The pair is made once; each temperature is a section of its own."""
    from outrider.bench import pair  # loads models by name, which needs more packages than the other sections

    made: list[pair.Pair] = []

    def make() -> dict[str, Any]:
        dtype = str(setting.target.dtype).removeprefix("torch.")
        made.append(
            pair.tiny_pair(setting.device)
            if plan.tiny
            else pair.trained_pair(plan.pair, plan.pair_draft, setting.device, dtype, plan.prompts)
        )
        lengths = [len(prompt) for prompt in made[0].prompts]
        return {"about": made[0].about, "drafter": made[0].drafter.name, "prompt_lengths": lengths}

    report.section("inflated_pair", make)
    if not made:
        return
    for temperature in (0, 1):
        report.section(
            f"pair_temperature_{temperature}",
            lambda: pair.measure(made[0], setting, 64 if plan.tiny else 256, temperature),  # noqa: B023
        )
    counts, tokens = ((1, 2), 8) if plan.tiny else ((1, 4, 16, 64), 128)
    prompts = [made[0].prompts[row % len(made[0].prompts)] for row in range(max(counts))]
    inflated = replace(setting, target=made[0].target)
    for temperature, rule in enumerate((GREEDY, gpu.SAMPLED)):
        points = load.points(inflated, rule, counts, prompts, tokens, made[0].drafter, others=False, repeats=5)
        report.series(f"pair_load_temperature_{temperature}", points)


def _compiled(setting: StepSetting) -> Any:
    """transformers' own layers through torch.compile, for comparison with the fused ones; plain decoding only."""
    began = timer.now()
    target = build(SIZES["8b"], setting.device, setting.target.dtype)
    target.model.base_model.compile(dynamic=False)
    rows_at = StandingRows(replace(setting, target=target), Nothing(), setting.shape())
    times = rows_at.times(GREEDY, 0, setting.context)
    return {"plain": times, "seconds_to_compile_and_time": timer.now() - began}


def profile(setting: StepSetting, out: Path | None) -> dict[str, Any]:
    """Where the time of a replayed step goes, kernel by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watch

    result: dict[str, Any] = {}
    kinds = [ProfilerActivity.CUDA] if setting.device.type == "cuda" else [ProfilerActivity.CPU]
    for name, drafter, gamma in (("plain", Nothing(), 0), ("speculative", ModelDrafter(setting.draft), setting.gamma)):
        for label, rule in (("", GREEDY), ("_sampled", gpu.SAMPLED)):
            rows_at = StandingRows(setting, drafter, setting.shape())
            rows_at.stand_at(setting.context)
            rows_at.runner.launch(rule, gamma).read()
            with watch(activities=kinds) as seen:
                for _ in range(3):
                    rows_at.runner.launch(rule, gamma).read()
            rows = sorted(seen.key_averages(), key=lambda e: -e.device_time_total)
            total = sum(e.device_time_total for e in rows) / 3000
            top = [[e.key[:90], e.count // 3, round(e.device_time_total / 3, 1)] for e in rows[:28]]
            result[name + label] = {"kernel_ms": total, "kernels_name_count_us": top}
    return result


def _machine(device: torch.device) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {"device": name, "torch": torch.__version__, "transformers": version("transformers")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="8b", choices=["8b", "tiny"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sections", default="latency,identity,curves", help="of " + ",".join(SECTIONS))
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tokens", type=int, default=2500)
    parser.add_argument("--pair", default="smollm2-135m")
    parser.add_argument("--pair-draft", type=Path)
    parser.add_argument("--prompts", type=Path)
    given = vars(parser.parse_args())
    run(GpuPlan(**given | {"sections": tuple(given["sections"].split(","))}))


if __name__ == "__main__":
    main()
