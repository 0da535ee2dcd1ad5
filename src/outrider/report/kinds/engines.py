"""``outrider bench cpu --out``: Outrider beside other engines on one CPU."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.report.charts import (
    Bar,
    BarChart,
    BarRow,
    Chapter,
    DataTable,
    Headline,
    LineChart,
    Mark,
    ReportSection,
    Series,
    section,
    sections,
)
from outrider.report.kinds.stats import table_of
from outrider.report.result_entry import ResultEntry
from outrider.report.values import figure, with_interval

OURS = "outrider speculative"
ELSEWHERE = (
    "Acceptance, the time of a step by phase, and tokens per run: `outrider measure --out FILE` writes them.",
    "A coloured trace of a text: `outrider generate --trace FILE` writes one.",
)


def chapter(records: Sequence[ResultEntry]) -> Chapter:
    whole = records[0]
    rows = whole.each("rows")
    found: list[ReportSection | None] = []
    for t in dict.fromkeys(row.number("temperature") for row in rows):
        here = [row for row in rows if row.number("temperature") == t]
        overall = [row for row in here if row.text("task") == "all"]
        charts = [_peers(overall, t), _over_plain(overall, t), _by_task(here, t)]
        found.append(section(f"Engines, temperature {t:g}", [*charts, _table(overall, t)], EXPLAINED))
    contexts = whole.each("contexts") if whole.has("contexts") else []
    found.append(section("Length of the prompt", [_contexts(contexts, *what) for what in _CONTEXTS]))
    found.append(section("Versions", [_versions(whole)]))
    return Chapter(
        f"{whole.text('target')}: engines on one CPU",
        _headlines(rows),
        _facts(whole),
        sections(*found),
        (*_missing(whole, contexts), *ELSEWHERE),
    )


EXPLAINED = (
    "Decoding: tokens behind the first, totals over totals. Floor: share of the speed at which reading the weights "
    "once a token would be all. Same text: texts that are the engine's own plain text. Intervals: 95 %, over prompts."
)
_CONTEXTS = (
    ("tokens_per_second", "Decoding behind long prompts", "tokens per second"),
    ("prefill_tokens_per_second", "Prefill", "tokens of the prompt per second"),
)


def _headlines(rows: Sequence[ResultEntry]) -> tuple[Headline, ...]:
    overall = [row for row in rows if row.text("task") == "all"]
    ours = next((row for row in overall if row.text("way") == OURS), None)
    if ours is None:
        return ()
    t = ours.number("temperature")
    others = [
        (row.number("ours_over"), row.text("way"))
        for row in overall
        if row.number("temperature") == t and not row.text("way").startswith("outrider") and row.has("ours_over")
    ]
    at = f"temperature {t:g}"
    found = [
        Headline("Outrider, speculative", figure(ours.known("tokens_per_second")), f"tokens per second, {at}"),
        Headline("Over its own plain decoding", f"{figure(ours.known('over_plain'))}×", at),
    ]
    if others:
        least, name = min(others)
        found.append(Headline("Over the fastest other way", f"{figure(least)}×", f"{name}, {at}"))
    if ours.has("same_as_plain"):
        same = f"{ours.count('same_as_plain')} of {ours.count('compared')}"
        found.append(Headline("Same text as plain", same, f"texts of Outrider, {at}"))
    return tuple(found)


def _facts(whole: ResultEntry) -> tuple[tuple[str, str], ...]:
    found = [("command", whole.text("command")), ("CPU", whole.text("cpu")), ("threads", whole.text("threads"))]
    found += [("prompts", whole.text("prompts")), ("tokens of a text", whole.text("tokens"))]
    if whole.has("bytes_per_second"):
        found.append(("memory reads", f"{whole.at('bytes_per_second').number('median') / 1e9:.1f} GB/s"))
    if whole.has("other_cores"):
        found.append(("cores used by others", f"{whole.number('other_cores'):.2f}"))
    return tuple(found)


def _peers(rows: Sequence[ResultEntry], t: float) -> BarChart | None:
    """Fastest first."""
    known = [row for row in rows if row.has("tokens_per_second")]
    known.sort(key=lambda row: -row.number("tokens_per_second"))
    bars = tuple(
        BarRow(row.text("way"), (Bar(row.number("tokens_per_second"), *row.interval("interval")),)) for row in known
    )
    if not bars:
        return None
    label = "tokens per second"
    return BarChart(f"peers-t{t:g}", f"Speed of engines, temperature {t:g}", label, (label,), bars)


def _over_plain(rows: Sequence[ResultEntry], t: float) -> BarChart | None:
    """What guesses gain each engine over its own plain decoding."""
    known = [row for row in rows if row.has("over_plain") and not row.text("way").endswith(" plain")]
    bars = tuple(
        BarRow(row.text("way"), (Bar(row.number("over_plain"), *row.interval("over_plain_interval")),))
        for row in sorted(known, key=lambda row: -row.number("over_plain"))
    )
    if not bars:
        return None
    label = "times as fast as its own plain decoding"
    title = f"Gain of speculation, temperature {t:g}"
    return BarChart(f"over-plain-t{t:g}", title, label, (label,), bars, reference=(1.0, "plain"))


def _by_task(rows: Sequence[ResultEntry], t: float) -> BarChart | None:
    """Ours beside our plain decoding and the fastest way of others."""
    ways = dict.fromkeys(row.text("way") for row in rows)
    overall = {row.text("way"): row.known("tokens_per_second") or 0.0 for row in rows if row.text("task") == "all"}
    others = sorted((way for way in ways if not way.startswith("outrider")), key=lambda way: -overall.get(way, 0.0))
    chosen = [way for way in (OURS, "outrider plain") if way in ways] + others[:1]
    tasks = [task for task in dict.fromkeys(row.text("task") for row in rows) if task != "all"]
    found = {(row.text("way"), row.text("task")): row for row in rows}
    if len(tasks) < 2 or not chosen:
        return None
    bars = tuple(BarRow(task, tuple(_bar(found.get((way, task))) for way in chosen)) for task in tasks)
    title = f"Speed by task, temperature {t:g}"
    return BarChart(f"by-task-t{t:g}", title, "tokens per second", tuple(chosen), bars)


def _bar(row: ResultEntry | None) -> Bar | None:
    if row is None or not row.has("tokens_per_second"):
        return None
    return Bar(row.number("tokens_per_second"), *row.interval("interval"))


def _contexts(rows: Sequence[ResultEntry], key: str, title: str, label: str) -> LineChart | None:
    series = []
    for way in dict.fromkeys(row.text("way") for row in rows):
        known = [row for row in rows if row.text("way") == way and row.has(key)]
        if known:
            series.append(Series(way, tuple(Mark(row.number("context"), row.number(key)) for row in known)))
    name = "decode-by-context" if key == "tokens_per_second" else "prefill-by-context"
    return LineChart(name, title, "tokens of the prompt", label, tuple(series)) if series else None


def _table(rows: Sequence[ResultEntry], t: float) -> DataTable | None:
    columns = (
        "engine",
        "decode t/s",
        "prefill t/s",
        "first, s",
        "floor",
        "over own plain",
        "ours over it",
        "same text",
    )
    lines = tuple(
        (
            row.text("way"), with_interval(row.known("tokens_per_second"), *row.interval("interval")),
            figure(row.known("prefill_tokens_per_second")), figure(row.known("first_seconds")),
            f"{100 * row.number('floor_share'):.0f} %" if row.has("floor_share") else "-",
            with_interval(row.known("over_plain"), *row.interval("over_plain_interval")),
            with_interval(row.known("ours_over"), *row.interval("ours_over_interval")),
            f"{row.count('same_as_plain')} of {row.count('compared')}" if row.has("same_as_plain") else "-",
        )
        for row in rows
    )  # fmt: skip
    return DataTable(f"Engines, temperature {t:g}", columns, lines) if lines else None


def _versions(whole: ResultEntry) -> DataTable | None:
    found = {
        name: ", ".join(filter(None, (about.text("version"), about.text("dtype"), str(about.value.get("note") or ""))))
        for name, about in whole.items("engines").items()
    }
    return table_of("Engines and versions", found) if found else None


def _missing(whole: ResultEntry, contexts: Sequence[ResultEntry]) -> list[str]:
    found = [f"{name}: it failed: {reason.value}" for name, reason in whole.items("failed").items()]
    if not contexts:
        found.append("Speed behind long prompts: `outrider bench cpu --contexts 200,800,4000` measures it.")
    if whole.value.get("interrupted"):
        found.append("All of its prompts: the run was interrupted.")
    if whole.known("left_out"):
        found.append(f"{whole.count('left_out')} prompts that are longer than the model reads.")
    return found
