"""The results of ``outrider bench gpu`` as a table: what was measured, the bar it is held to, whether it is met."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

Results = dict[str, Any]


@dataclass(frozen=True)
class GpuLine:
    """One line: ``met`` is None where no bar is set."""

    what: str
    measured: str
    bar: str = ""
    met: bool | None = None


_PAPER = {0: (0.75, 3.4), 1: (0.62, 2.6)}
"""Leviathan et al. 2023, Table 2, the translation of T5-XXL with T5-small: alpha and speed-up by temperature."""


def lines(results: Results) -> list[GpuLine]:
    """Only what was measured; a section that failed or was skipped gives a line that says so."""
    found = [*_latency(results), *_decoder(results), *_pair(results), *_invariance(results), *_load(results)]
    if results.get("size") == "tiny":  # the bars are for the large models on a large GPU
        found = [replace(line, bar="", met=None) for line in found]
    return [*found, *_identity(results), *_curves(results), *_failures(results)]


def failed(results: Results) -> list[str]:
    return [name for name, value in results.items() if isinstance(value, dict) and "error" in value]


def _latency(results: Results) -> Iterator[GpuLine]:
    best = next((results[n] for n in ("graph_fused", "graph") if "plain" in results.get(n, {})), None)
    theirs, assisted = (results.get(n, {}).get("median") for n in ("transformers_plain", "transformers_assisted"))
    floor = results.get("roofline", {}).get("target_floor_ms")
    if theirs is not None:
        yield GpuLine("transformers, plain generate, ms a token", f"{theirs:.2f}")
    if assisted is not None:
        yield GpuLine("transformers, assisted generate, ms an iteration", f"{assisted:.2f}")
    if floor is not None:
        yield GpuLine("roofline: reading the target's weights, ms", f"{floor:.3g}")
    if best is None:
        return
    plain, step = best["plain"]["queued"]["median"], best["speculative"]["queued"]["median"]
    yield _held("plain decoding, ms a token", plain, 6.0, _at_most)
    if theirs is not None:
        yield _held("  times faster than transformers", theirs / plain, 6.0, _at_least)
    yield _held("speculative iteration, ms", step, 14.0, _at_most)
    if assisted is not None:
        yield _held("  times faster than transformers", assisted / step, 10.0, _at_least)
    if "speculative_sampled" in best:
        yield GpuLine(
            "speculative iteration at temperature 1, ms", f"{best['speculative_sampled']['queued']['median']:.2f}"
        )
    yield _held("target step at full width over width 1", best["width_ratio"], 1.08, _at_most)
    yield _held(
        "host time not hidden in a bare loop, ms", max(0.0, best["speculative"]["exposed_host_ms"]), 0.2, _at_most
    )
    if not best["speculative"]["graphs"]:
        yield GpuLine("steps are not replayed", "a capture failed, see the warning above", "", False)


def _decoder(results: Results) -> Iterator[GpuLine]:
    for name, values in results.get("decoder", {}).items():
        if isinstance(values, dict) and "step_ms" in values:
            times = f"{values['iteration_ms']:.2f}, {values['step_ms']:.2f}"
            yield GpuLine(f"decoder, {name}: ms an iteration, its step", times)
            yield _held("  host time not hidden, ms an iteration", values["exposed_host_ms"], 0.2, _at_most)


def _identity(results: Results) -> Iterator[GpuLine]:
    noise = results.get("noise", {})
    if "different" in noise:
        yield _none("noise that differs from a CPU's", noise["different"], noise["values"])
    for name, title in (
        ("replayed_is_eager", "replayed against eager"),
        ("identity", "speculative against plain"),
        ("in_batches", "in batches against alone"),
    ):
        parts = [v for v in results.get(name, {}).values() if isinstance(v, dict) and "mismatches" in v]
        if parts:
            yield _none(f"other tokens, {title}", sum(p["mismatches"] for p in parts), sum(p["tokens"] for p in parts))


def _pair(results: Results) -> Iterator[GpuLine]:
    for temperature in (0, 1):
        values = results.get(f"pair_temperature_{temperature}", {})
        if "speedup" not in values:
            continue
        found = f"{values['alpha']:.3f}, {values['c']:.4f}, {values['gamma']}"
        yield GpuLine(f"inflated pair, temperature {temperature}: alpha, c, gamma", found)
        yield GpuLine("  predicted speed-up (Theorem 3.8)", f"{values['predicted_speedup']:.2f}")
        least, bar = _PAPER[temperature]
        applies = values["alpha"] >= least  # the paper's speed-up is a bar for a draft as good as the paper's
        reached = _held("  speed-up", values["speedup"], bar, _at_least)
        yield reached if applies else replace(reached, bar=f"{reached.bar} where alpha is {least:g}", met=None)
        yield _held("  reached over predicted", values["realised_over_predicted"], 0.95, _at_least)
        parts = values["of_which"]
        shares = (parts["tokens_a_run"], parts["ends_of_texts"], parts["time_of_a_run"])
        yield GpuLine("    = tokens a run, ends of texts, time of a run", ", ".join(f"{share:.3f}" for share in shares))
        yield _held("  host time not hidden, ms an iteration", max(0.0, values["exposed_host_ms"]), 0.2, _at_most)


def _curves(results: Results) -> Iterator[GpuLine]:
    for name, by in (("by_gamma", "gamma"), ("by_context", "context"), ("by_rows", "rows")):
        points = results.get(name)
        if isinstance(points, list) and points:
            first, last = points[0], points[-1]
            yield GpuLine(
                f"ms a step from {by} {first[by]} to {last[by]}", f"{first['median']:.2f} to {last['median']:.2f}"
            )


_COSTS = {1: 0.03, 8: 0.03, 64: 0.05, 256: 0.15}
"""What batch-invariant kernels may cost a step, by rows."""


def _invariance(results: Results) -> Iterator[GpuLine]:
    for point in results.get("cost_of_invariance", []):
        if "cost" in point:
            bar = _COSTS.get(point["rows"], 0.15)
            yield _held(f"cost of batch invariance, {point['rows']} rows", point["cost"], bar, _at_most)


def _load(results: Results) -> Iterator[GpuLine]:
    for name, title in (("load", "8B shapes"), *((f"pair_load_temperature_{t}", f"pair, t={t}") for t in (0, 1))):
        for point in results.get(name, []):
            if "plain" not in point:
                continue
            speed, rows = point["plain"]["tokens_per_second"], point["rows"]
            yield GpuLine(f"{title}, {rows} requests at once: plain tokens a second", f"{speed:,.0f}")
            if "speculative_over_plain" in point:
                yield _held("  speculative over plain", point["speculative_over_plain"]["median"], 0.98, _at_least)


def _failures(results: Results) -> Iterator[GpuLine]:
    for name, value in results.items():
        if isinstance(value, dict) and ("error" in value or "skipped" in value):
            reason = value.get("error") or f"skipped: {value['skipped']}"
            yield GpuLine(name, reason, "", False if "error" in value else None)


def _at_most(value: float, bar: float) -> tuple[str, bool]:
    return f"at most {bar:g}", value <= bar


def _at_least(value: float, bar: float) -> tuple[str, bool]:
    return f"at least {bar:g}", value >= bar


def _held(what: str, value: float, bar: float, rule: Callable[[float, float], tuple[str, bool]]) -> GpuLine:
    text, met = rule(value, bar)
    return GpuLine(what, "-" if math.isnan(value) else f"{value:.2f}", text, met)


def _none(what: str, count: int, of: int) -> GpuLine:
    return GpuLine(what, f"{count:,} of {of:,}", "0", count == 0)
