"""``outrider generate --json`` and the lines of ``outrider batch``: texts with statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from outrider.report.charts import Chapter, DataTable, Headline, section, sections
from outrider.report.kinds import stats
from outrider.report.kinds.stats import NamedStats, table_of
from outrider.report.result_entry import ResultEntry
from outrider.report.values import counted, figure, shorten
from outrider.trace import PHASES, ratio, wilson

MOST_TEXTS = 100
COUNTS = ("tokens", "runs", "drafted", "examined", "accepted", "kept")
ELSEWHERE = ("Speed-up over plain decoding: `outrider measure --out FILE` measures both.",)
TRACE = "A coloured trace: `outrider generate --trace FILE` writes one, and this command draws it."


def recognises(record: Mapping[str, Any]) -> bool:
    """A text, or a line of a batch that failed."""
    return {"text", "tokens", "stats", "finish_reason"} <= record.keys() or {"index", "key", "error"} <= record.keys()


def chapter(records: Sequence[ResultEntry]) -> Chapter:
    for record in records:
        if not recognises(record.value):
            raise record.fail("text", "missing")
    done = [record for record in records if record.has("stats")]
    failed = [record for record in records if record.has("error")]
    for record in done:
        stats.check_depths(record.at("stats"))
    whole = ResultEntry(total(done), done[0].place, "stats") if done else None
    found = charts(whole, len(records) == 1) if whole is not None else ()
    name = "One text" if len(records) == 1 else f"{len(records):,} texts"
    engine = f" by {done[0].at('stats').text('engine') or 'an engine'}" if done else ""
    old = whole is not None and not whole.has("emitted")
    missing = [OLD] if old else []
    failures = f"{len(failed):,} of {counted(len(records), 'text')} failed" if failed else ""
    if failed:
        missing.append(f"{failures}; the table says why.")
    return Chapter(
        name + engine,
        (*(headlines(whole) if whole is not None else ()), *_failed(failed, len(records))),
        _facts(done),
        sections(*found, section("Texts", [_table(records)], _cut(records))),
        (*missing, TRACE, *ELSEWHERE),
        failures,
    )


OLD = "Acceptance by depth and tokens per run: this file was written before they were; generate again."


def total(records: Sequence[ResultEntry]) -> dict[str, Any]:
    """The statistics of several texts as one: sums of counts, ratios of sums."""
    each = [record.at("stats") for record in records]
    counts = {name: sum(s.count(name) for s in each) for name in COUNTS}
    seconds = {p: sum(s.at("seconds").known(p) or 0.0 for s in each) for p in (*PHASES, "prefill")}
    found: dict[str, Any] = {**counts, "seconds": seconds}
    known = [(s.number("alpha"), s.number("examined")) for s in each if s.has("alpha")]
    found["alpha"] = ratio(sum(a * n for a, n in known), sum(n for _, n in known)) if known else None
    found["tokens_per_run"] = ratio(counts["tokens"], counts["runs"]) if counts["runs"] else None
    if all(s.has("emitted", "depths") for s in each):
        found["emitted"] = [sum(column) for column in zip_longest(*(s.numbers("emitted") for s in each), fillvalue=0)]
        pairs = [[pair.value for pair in s.each("depths")] for s in each]
        found["depths"] = [
            [sum(part) for part in zip(*column, strict=True)] for column in zip_longest(*pairs, fillvalue=[0, 0])
        ]
    return found


def charts(whole: ResultEntry, alone: bool) -> tuple[Any, ...]:
    """Sections of statistics; times in milliseconds only where one text ran alone."""
    named = [NamedStats("all texts" if not alone else "this text", whole)]
    return (
        section("Acceptance and tokens per run", [stats.by_depth(named), stats.run_lengths(named)]),
        section("Time", [stats.phases(named, shares=not alone)]),
    )


def _failed(failed: Sequence[ResultEntry], texts: int) -> tuple[Headline, ...]:
    return (Headline("Failed", f"{len(failed):,}", f"of {counted(texts, 'text')}"),) if failed else ()


def headlines(whole: ResultEntry) -> tuple[Headline, ...]:
    examined, kept = whole.count("examined"), whole.count("kept")
    low, high = wilson(kept, examined)
    share = (
        f"{figure(kept / examined)} of guesses kept; 95 %: {figure(low)} to {figure(high)}"
        if examined
        else "no guesses"
    )
    return (
        Headline("Tokens", f"{whole.count('tokens'):,}", f"in {whole.count('runs'):,} target runs"),
        Headline("Tokens per target run", figure(whole.known("tokens_per_run")), "plain decoding has 1"),
        Headline("Acceptance α", figure(whole.known("alpha")), share),
    )


def _facts(records: Sequence[ResultEntry]) -> tuple[tuple[str, str], ...]:
    """What the statistics say alike of every text."""
    found = []
    for name in ("drafter", "coupling", "engine", "dtype", "lenience"):
        values = Counter(record.at("stats").text(name) for record in records if record.at("stats").has(name))
        if values:
            found.append((name, ", ".join(values)))
    ends = Counter(record.text("finish_reason") for record in records if record.has("finish_reason"))
    return (*found, *([("ended by", ", ".join(f"{reason}: {n}" for reason, n in ends.items()))] if ends else []))


def _cut(records: Sequence[ResultEntry]) -> str:
    if len(records) <= MOST_TEXTS:
        return ""
    failed = any(record.has("error") for record in records)
    count = f"{MOST_TEXTS} of {len(records):,}"
    return f"{count}: those that failed, then the first others." if failed else f"The first {count}."


def _shown(records: Sequence[ResultEntry]) -> list[tuple[int, ResultEntry]]:
    """As many as a table has room for, with their numbers: texts that failed are not left out for others."""
    by_need = sorted(enumerate(records), key=lambda pair: not pair[1].has("error"))
    return sorted(by_need[:MOST_TEXTS], key=lambda pair: pair[0])


def _table(records: Sequence[ResultEntry]) -> DataTable | None:
    if len(records) == 1 and not records[0].has("error"):
        only = records[0]
        return table_of("Text", {"text": shorten(only.text("text"), 2000), "ended by": only.text("finish_reason")})
    rows = []
    for number, record in _shown(records):
        name = record.value.get("id") if record.value.get("id") is not None else record.value.get("index", number)
        about = record.at("stats") if record.has("stats") else None
        text = f"error: {record.text('error')}" if record.has("error") else record.text("text")
        counts = ("", "", "") if about is None else (
            str(about.count("tokens")), figure(about.known("tokens_per_run")), figure(about.known("alpha"))
        )  # fmt: skip
        rows.append((str(name), *counts, shorten(text, 160)))
    return DataTable("Texts", ("id", "tokens", "per run", "α", "text"), tuple(rows), frozenset({4}))
