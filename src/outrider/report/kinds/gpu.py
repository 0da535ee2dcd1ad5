"""``outrider bench gpu --out``: steps, a trained pair, load and peers on one GPU. Any section may be missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outrider import theory
from outrider.report.charts import (
    Bar,
    BarChart,
    BarRow,
    Chapter,
    DataTable,
    Headline,
    LineChart,
    Mark,
    Series,
    section,
    sections,
)
from outrider.report.gpu import PANELS
from outrider.report.kinds.stats import conditions, expected_curve
from outrider.report.result_entry import ResultEntry
from outrider.report.values import figure, with_interval

TEMPERATURES = (0, 1)
LOADS = {"load": "8B shapes", "pair_load_temperature_0": "pair, t = 0", "pair_load_temperature_1": "pair, t = 1"}
SECTIONS = {
    "latency": ("graph_fused", "graph"), "pair": ("pair_temperature_0", "pair_temperature_1"),
    "curves": ("by_gamma", "by_context", "by_rows"), "load": tuple(LOADS),
    "identity": ("identity", "replayed_is_eager"),
}  # fmt: skip


def chapter(records: Sequence[ResultEntry]) -> Chapter:
    whole = records[0]
    device = whole.at("machine").text("device")
    pairs = {t: whole.at(f"pair_temperature_{t}") for t in TEMPERATURES if _measured(whole, f"pair_temperature_{t}")}
    loads = {name: whole.each(name) for name in LOADS if isinstance(whole.value.get(name), list)}
    found = (
        section("Speed-up of a trained pair", [_speedups(pairs)], PAIR),
        section("Acceptance", [_depths(pairs), _tasks(pairs)]),
        section("Where the time of a step goes", [_steps(pairs)]),
        section("Load", [*(_load(name, points) for name, points in loads.items()), _ratios(loads)]),
        section("transformers in the same process", [_peers(whole)]),
        section("Curves of a step", [_curve(whole, *panel) for panel in PANELS]),
        section("Same tokens", [_identity(whole)], "Speculative against plain, replayed against eager, in batches."),
    )
    title = f"{device}: {whole.text('size')} shapes"
    return Chapter(title, _headlines(whole, pairs), conditions(whole, "machine"), sections(*found), _missing(whole))


PAIR = "A small trained model padded with zeros to the size of the target: the large one's time, the small one's text."


def _measured(whole: ResultEntry, name: str) -> bool:
    value = whole.value.get(name)
    return isinstance(value, dict) and "error" not in value and "skipped" not in value


def _best_step(whole: ResultEntry) -> ResultEntry | None:
    return next(
        (whole.at(n) for n in ("graph_fused", "graph") if _measured(whole, n) and whole.at(n).has("plain")), None
    )


def _headlines(whole: ResultEntry, pairs: dict[int, ResultEntry]) -> tuple[Headline, ...]:
    found = [
        Headline(
            f"Speed-up, temperature {t}", f"{figure(pair.number('speedup'))}×",
            f"α {figure(pair.number('alpha'))}, γ {pair.count('gamma')}; predicted "
            f"{figure(pair.number('predicted_speedup'))}×",
        )
        for t, pair in pairs.items()
    ]  # fmt: skip
    best = _best_step(whole)
    if best is not None:
        plain = best.at("plain").at("queued").number("median")
        found.append(Headline("Plain decoding", f"{figure(plain)} ms", "a token, one row"))
        if _measured(whole, "transformers_plain"):
            theirs = whole.at("transformers_plain").number("median")
            found.append(
                Headline("Over transformers, plain", f"{figure(theirs / plain)}×", f"its token: {figure(theirs)} ms")
            )
    return tuple(found)


def _speedups(pairs: dict[int, ResultEntry]) -> LineChart | None:
    """Measured points before Theorem 3.8 with the measured alpha and c."""
    measured, curves = [], []
    for place, (t, pair) in enumerate(pairs.items()):
        runs = [*([pair.at("first")] if pair.has("first") else []), pair]
        marks = tuple(Mark(run.number("gamma"), run.number("speedup")) for run in runs)
        measured.append(Series(f"measured, temperature {t}", marks, "points", place))
        label = f"theory: α {figure(pair.number('alpha'))}, c {figure(pair.number('c'))}"
        curves.append(expected_curve(label, pair.number("alpha"), theory.Costs(draft=pair.number("c")), 12, place))
    note = "Curves: Theorem 3.8 with the measured α and c. The file holds no intervals of these speed-ups."
    return LineChart(
        "speedup", "Speed-up against γ", "guesses per run γ", "times as fast as plain decoding",
        (*measured, *curves), note, reference=(1.0, "plain decoding"),
    ) if measured else None  # fmt: skip


def _depths(pairs: dict[int, ResultEntry]) -> LineChart | None:
    series = tuple(
        Series(f"temperature {t}", tuple(Mark(i, share) for i, share in enumerate(pair.numbers("alpha_by_depth"), 1)))
        for t, pair in pairs.items()
        if pair.has("alpha_by_depth")
    )
    note = (
        "Share of guesses kept where all guesses before them were. The file holds no counts by depth, so no intervals."
    )
    return LineChart("depth", "Acceptance by depth", "guess of a run", "share kept", series, note) if series else None


def _tasks(pairs: dict[int, ResultEntry]) -> BarChart | None:
    known = {t: pair.at("alpha_by_task") for t, pair in pairs.items() if pair.has("alpha_by_task")}
    tasks = dict.fromkeys(task for pair in known.values() for task in pair.mapping())
    rows = tuple(
        BarRow(task, tuple(Bar(pair.number(task)) if pair.has(task) else None for pair in known.values()))
        for task in tasks
    )
    names = tuple(f"temperature {t}" for t in known)
    return BarChart("acceptance-by-task", "Acceptance by task", "acceptance α", names, rows) if rows else None


def _steps(pairs: dict[int, ResultEntry]) -> BarChart | None:
    """A step timed by itself, its guesses timed by themselves, and what the decoder's loop adds."""
    rows = []
    for t, pair in pairs.items():
        steps = pair.at("steps")
        plain, whole, guesses = steps.number("plain_ms"), steps.number("speculative_ms"), steps.number("guess_ms")
        drafting = min(whole, guesses * pair.number("gamma"))
        host = max(0.0, pair.number("exposed_host_plain_ms")), max(0.0, pair.number("exposed_host_ms"))
        rows.append(BarRow(f"plain, temperature {t}", (Bar(0.0), Bar(plain), Bar(host[0]))))
        label = f"speculative, γ {pair.count('gamma')}, temperature {t}"
        rows.append(BarRow(label, (Bar(drafting), Bar(whole - drafting), Bar(host[1]))))
    names = ("draft: guesses", "target run and verification", "host time not hidden")
    note = "A plain step gives one token; a speculative step gives several."
    return BarChart("step", "Time of a step", "ms per step", names, tuple(rows), note, stacked=True) if rows else None


def _load(name: str, points: Sequence[ResultEntry]) -> LineChart | None:
    ways = ("plain", "speculative", "transformers", "transformers_paged")
    series = []
    for way in ways:
        known = [p for p in points if p.has(way) and p.at(way).has("tokens_per_second")]
        marks = tuple(Mark(p.number("rows"), p.at(way).number("tokens_per_second")) for p in known)
        series += [Series(way.replace("_", " "), marks)] if marks else []
    floor = tuple(
        Mark(p.number("rows"), p.number("roofline_tokens_per_second"))
        for p in points
        if p.has("roofline_tokens_per_second")
    )
    highest = max((mark.y for line in series for mark in line.marks), default=0.0)
    near = tuple(mark for mark in floor if mark.y <= 1.6 * highest)  # else it would press the others together
    if not series:
        return None
    lines = (*series, *([Series("weights read once a step", near, "curve")] if near else []))
    title = f"Throughput against load, {LOADS[name]}"
    return LineChart(name.replace("_", "-"), title, "requests at once", "tokens per second", lines, log_x=True)


def _ratios(loads: dict[str, list[ResultEntry]]) -> LineChart | None:
    series = []
    for name, points in loads.items():
        known = [(p.number("rows"), p.at("speculative_over_plain")) for p in points if p.has("speculative_over_plain")]
        marks = tuple(Mark(rows, r.number("median"), r.known("min"), r.known("max")) for rows, r in known)
        series += [Series(LOADS[name], marks)] if marks else []
    note = "Medians of turns; bars: least and most."
    return LineChart(
        "speculative-over-plain", "Speculative over plain", "requests at once", "times as many tokens per second",
        tuple(series), note, log_x=True, reference=(1.0, "plain"),
    ) if series else None  # fmt: skip


def _peers(whole: ResultEntry) -> BarChart | None:
    best = _best_step(whole)
    times: dict[str, ResultEntry] = {}
    if best is not None:
        times["Outrider, plain: a token"] = best.at("plain").at("queued")
        times["Outrider, speculative: an iteration"] = best.at("speculative").at("queued")
    for name, shown in (("transformers_plain", "plain: a token"), ("transformers_assisted", "assisted: an iteration")):
        if _measured(whole, name):
            times[f"transformers, {shown}"] = whole.at(name)
    rows = tuple(BarRow(name, (Bar(t.number("median"), t.known("min"), t.known("max")),)) for name, t in times.items())
    note = "Medians; lines: least and most."
    floor = whole.at("roofline").known("target_floor_ms") if _measured(whole, "roofline") else None
    reference = None if floor is None else (floor, "weights read once")
    label = "milliseconds"
    return (
        BarChart("peers", "Outrider and transformers", label, (label,), rows, note, reference=reference)
        if rows
        else None
    )


def _curve(whole: ResultEntry, by: str, title: str, label: str, names: dict[str, str]) -> LineChart | None:
    series = []
    for name, shown in names.items():
        if isinstance(whole.value.get(name), list) and len(whole.value[name]) > 1:
            marks = tuple(
                Mark(p.number(by), p.number("median"), p.known("min"), p.known("max")) for p in whole.each(name)
            )
            series.append(Series(shown, marks))
    return (
        LineChart(
            f"step-by-{by}", f"A step by {title.lower()}", label, "ms per step", tuple(series), log_x=by != "gamma"
        )
        if series
        else None
    )


def _identity(whole: ResultEntry) -> DataTable | None:
    rows = []
    for name, title in (
        ("identity", "speculative against plain, 8 rows"),
        ("identity_one_row", "speculative against plain, one row"),
        ("replayed_is_eager", "replayed against eager"),
        ("in_batches", "in batches against alone"),
    ):
        parts = [part for _, part in _parts(whole, name)]
        tokens, differ = (sum(part.count(key) for part in parts) for key in ("tokens", "mismatches"))
        rows += [(title, f"{tokens:,}", f"{differ:,}")] if parts else []
    if isinstance(whole.value.get("cost_of_invariance"), list):
        for point in whole.each("cost_of_invariance"):
            if point.has("cost"):
                invariant, free = (point.at(name).number("median") for name in ("invariant", "free"))
                what = f"batch-invariant kernels, {point.count('rows')} rows: ms, and without them"
                rows.append((what, with_interval(invariant, None, None), figure(free)))
    return DataTable("Same tokens", ("what", "tokens", "differ"), tuple(rows)) if rows else None


def _parts(whole: ResultEntry, name: str) -> Iterator[tuple[str, ResultEntry]]:
    if _measured(whole, name):
        yield from ((n, part) for n, part in whole.items(name).items() if part.has("tokens", "mismatches"))


def _missing(whole: ResultEntry) -> tuple[str, ...]:
    found = [
        f"Section {name}: `outrider bench gpu --section {name}` measures it."
        for name, keys in SECTIONS.items()
        if not any(_measured(whole, key) or isinstance(whole.value.get(key), list) for key in keys)
    ]
    for name, value in whole.value.items():
        if isinstance(value, dict) and ("error" in value or "skipped" in value):
            found.append(f"{name}: {value.get('error') or 'skipped: ' + str(value['skipped'])}")
    found.append(
        "Tokens per run and a coloured trace: `outrider measure --out` and `outrider generate --trace` write them."
    )
    return tuple(found)
