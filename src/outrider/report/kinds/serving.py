"""``outrider bench serve --out``: throughput and latency of a server under load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
from outrider.report.result_entry import ResultEntry
from outrider.report.values import figure

WAYS = ("plain", "speculative")
LATENCIES = {
    "first_token": "to the first token", "per_token": "per token behind it", "between_chunks": "between two chunks",
    "whole": "whole answer",
}  # fmt: skip
ELSEWHERE = (
    "Acceptance, the time of a step by phase, and tokens per run: `outrider measure --out FILE` writes them.",
    "Other engines: `outrider bench cpu --out FILE` compares with them.",
)
CLIENTS = "clients, each with one request at a time"


def recognises(record: Mapping[str, Any]) -> bool:
    several, one = ("points", "texts", "interrupted"), ("clients", "answers", "tokens_per_second", "whole")
    return any(all(name in record for name in names) for names in (several, one))


def chapter(records: Sequence[ResultEntry]) -> Chapter:
    return _several(records[0]) if "points" in records[0].value else _one(records[0])


def _facts(whole: ResultEntry) -> tuple[tuple[str, str], ...]:
    names = {"target": "target", "server_options": "options of the server", "tokens_at_most": "tokens of an answer"}
    return tuple((shown, whole.text(key)) for key, shown in names.items() if whole.value.get(key))


def _several(whole: ResultEntry) -> Chapter:
    points = whole.each("points")
    found = (
        section("Throughput", [_throughput(points), _ratios(points)]),
        section("Latency", [_latency(points, "whole"), _latency(points, "first_token")]),
        section("Every load", [_table(points)]),
    )
    missing = [] if len(points) > 1 else ["A curve: one load was measured; name several with --loads 1,2,4,8."]
    missing += ["All of its loads: the run was interrupted."] if whole.value.get("interrupted") else []
    title = f"{_target(whole)}: a server under load"
    return Chapter(title, _headlines(whole, points), _facts(whole), sections(*found), (*missing, *ELSEWHERE))


def _target(whole: ResultEntry) -> str:
    return whole.text("target") if whole.has("target") else "a server"


def _headlines(whole: ResultEntry, points: Sequence[ResultEntry]) -> tuple[Headline, ...]:
    if not points:
        return ()
    most = max(points, key=lambda point: point.at("speculative").number("tokens_per_second"))
    ratios = [(point.at("speculative_over_plain").number("ratio"), point.count("load")) for point in _compared(points)]
    texts = whole.at("texts")
    found = [
        Headline(
            "Most tokens per second", figure(most.at("speculative").number("tokens_per_second")),
            f"speculative, {most.count('load')} clients",
        ),
        Headline(
            "Same text at every load", f"{texts.count('same'):,} of {texts.count('compared'):,}",
            "answers, plain and speculative",
        ),
    ]  # fmt: skip
    if ratios:
        (least, at), (best, where) = min(ratios), max(ratios)
        found.insert(1, Headline("Speculative over plain", f"{figure(best)}×", f"at {where} clients"))
        found.insert(2, Headline("At its least", f"{figure(least)}×", f"at {at} clients"))
    return tuple(found)


def _compared(points: Sequence[ResultEntry]) -> list[ResultEntry]:
    return [point for point in points if point.has("speculative_over_plain")]


def _throughput(points: Sequence[ResultEntry]) -> LineChart | None:
    series = tuple(
        Series(way, tuple(Mark(p.number("load"), p.at(way).number("tokens_per_second")) for p in points))
        for way in WAYS
    )
    title = "Throughput against load"
    return LineChart("throughput", title, CLIENTS, "tokens per second", series, log_x=True) if points else None


def _ratios(points: Sequence[ResultEntry]) -> LineChart | None:
    marks = tuple(
        Mark(p.number("load"), ratio.number("ratio"), *ratio.interval("quartiles"))
        for p in _compared(points)
        if (ratio := p.at("speculative_over_plain"))
    )
    note = "Ratios of medians; bars: quartiles of single turns."
    return LineChart(
        "speculative-over-plain", "Speculative over plain", CLIENTS, "times as many tokens per second",
        (Series("speculative over plain", marks),), note, log_x=True, reference=(1.0, "plain"),
    ) if marks else None  # fmt: skip


def _latency(points: Sequence[ResultEntry], name: str) -> LineChart | None:
    series = []
    for way in WAYS:
        for level in ("p50", "p95"):
            known = [p for p in points if p.at(way).at(name).has(level)]
            marks = tuple(Mark(p.number("load"), p.at(way).at(name).number(level)) for p in known)
            series += [Series(f"{way}, {level}", marks)] if marks else []
    title = f"Seconds {LATENCIES[name]}" if name == "first_token" else "Seconds of a whole answer"
    return LineChart(f"latency-{name}", title, CLIENTS, "seconds", tuple(series), log_x=True) if series else None


def _table(points: Sequence[ResultEntry]) -> DataTable | None:
    columns = (
        "clients", "way", "tokens/s", "answers/s", "first p50, s", "first p95, s", "answer p50, s", "answer p95, s",
        "429", "errors",
    )  # fmt: skip
    rows = tuple(
        (
            point.text("load"), way, figure(cell.number("tokens_per_second")),
            figure(cell.number("requests_per_second")),
            *(figure(cell.at(name).known(level)) for name in ("first_token", "whole") for level in ("p50", "p95")),
            str(cell.count("refused_429")), str(sum(count.value for count in cell.items("errors").values())),
        )
        for point in points for way in WAYS if (cell := point.at(way))
    )  # fmt: skip
    return DataTable("Loads", columns, rows, frozenset({1})) if rows else None


def _one(whole: ResultEntry) -> Chapter:
    """One load."""
    rows = tuple(
        BarRow(shown, tuple(_second(whole.at(name), level) for level in ("p50", "p95")))
        for name, shown in LATENCIES.items()
    )
    known = [row for row in rows if any(row.bars)]
    chart = BarChart("latency", "Latencies", "seconds", ("p50", "p95"), tuple(known)) if known else None
    at = f"{whole.count('clients')} clients, {whole.number('seconds'):.0f} s"
    errors = sum(int(count.value) for count in whole.items("errors").values())
    found = [
        Headline("Tokens per second", figure(whole.number("tokens_per_second")), at),
        Headline(
            "Answers per second", figure(whole.number("requests_per_second")), f"{whole.count('answers'):,} in all"
        ),
        Headline("Refused and failed", f"{whole.count('refused_429')}, {errors}", "status 429, other errors"),
    ]
    if whole.has("alone"):
        alone = whole.at("alone")
        same = f"{alone.count('same')} of {alone.count('compared')}"
        found.append(Headline("Same text alone", same, "answers under load, sent again alone"))
    missing = (
        "Throughput against load, and speculative beside plain: `outrider bench serve --loads 1,2,4,8` measures them.",
        *ELSEWHERE,
    )
    title = f"{_target(whole)}: a server under one load"
    return Chapter(title, tuple(found), _facts(whole), sections(section("Latency", [chart])), missing)


def _second(entry: ResultEntry, level: str) -> Bar | None:
    return Bar(entry.number(level)) if entry.has(level) else None
