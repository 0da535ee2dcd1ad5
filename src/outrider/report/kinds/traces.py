"""``outrider generate --trace``: every target run of a text, in the colours of Figure 1 of Leviathan et al."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.report.charts import Chapter, ColouredTrace, TracePart, section, sections
from outrider.report.kinds import texts
from outrider.report.result_entry import ResultEntry
from outrider.trace import PHASES, Record, Trace, summarise

MOST_RUNS = 400
MOST_ROWS = 8
EXPLAINED = (
    "One line for every target run: guesses that were kept, the first that was not (struck out), guesses behind it, "
    "which were not judged (struck out, grey), then the target's own token."
)
NO_TEXTS = (
    "The text of its tokens: this trace has their numbers only, as traces written from Python do; "
    "`outrider generate --trace` writes both."
)


def chapter(records: Sequence[ResultEntry]) -> Chapter:
    head, *rest = records
    trace = _trace(head, rest)
    whole = ResultEntry(summarise(trace).to_json(), head.place, "stats")
    rows = list(dict.fromkeys(record.row for record in trace.records))
    shown = {name: text.value for name, text in head.items("texts").items()} if head.has("texts") else {}
    coloured = [_coloured(trace, row, shown, len(rows) > 1) for row in rows[:MOST_ROWS]]
    missing = [] if shown else [NO_TEXTS]
    if len(rows) > MOST_ROWS:
        missing.append(f"Lines of {len(rows) - MOST_ROWS} further texts: the first {MOST_ROWS} are shown.")
    if trace.drafter_error:
        missing.append(f"Guesses behind an error of the drafter: {trace.drafter_error}")
    facts = [("drafter", trace.drafter), ("coupling", trace.coupling), ("engine", trace.engine), ("dtype", trace.dtype)]
    facts += [] if trace.exact else [("inexact", f"lenience {trace.lenience:g}")]
    known = trace.graphs or not any(trace.seconds.values())
    found = texts.charts(whole, alone=True) if trace.records else ()
    return Chapter(
        f"Trace of {trace.runs:,} target runs",
        texts.headlines(whole) if trace.records else (),
        tuple(fact for fact in facts if fact[1]),
        sections(section("Runs", coloured, EXPLAINED), *(found[:1] if known else found)),
        (*missing, *(["A prompt: a trace begins behind it."]), *texts.ELSEWHERE),
    )


def _trace(head: ResultEntry, rest: Sequence[ResultEntry]) -> Trace:
    seconds = {phase: head.at("seconds").known(phase) or 0.0 for phase in (*PHASES, "prefill")}
    return Trace(
        head.text("drafter"), head.text("coupling"), head.flag("exact"), [_record(entry) for entry in rest],
        head.count("runs"), seconds, str(head.value["drafter_error"]) if head.has("drafter_error") else None,
        head.known("lenience") or 1.0, engine=head.text("engine") if head.has("engine") else "",
        dtype=head.text("dtype") if head.has("dtype") else "", graphs=bool(head.value.get("graphs")),
    )  # fmt: skip


def _record(entry: ResultEntry) -> Record:
    drafted = tuple(int(token) for token in entry.numbers("drafted"))
    accepted, emitted = entry.count("accepted"), entry.count("emitted")
    if not 0 <= accepted <= len(drafted):
        raise entry.fail("accepted", f"{accepted} guesses kept of {len(drafted)}")
    if not 0 <= emitted <= accepted + 1:
        raise entry.fail("emitted", f"{emitted} tokens from {accepted} guesses and one more")
    overlap = tuple(each.value if isinstance(each.value, float | int) else None for each in entry.each("overlap"))
    place = entry.count("row"), entry.count("position")
    return Record(*place, drafted, accepted, entry.count("token"), overlap, emitted)


def _coloured(trace: Trace, row: int, shown: dict[str, str], several: bool) -> ColouredTrace:
    records = [record for record in trace.records if record.row == row]
    runs = tuple(_run(record, shown) for record in records[:MOST_RUNS])
    title = f"Text {row + 1}" if several else "Runs of the target"
    return ColouredTrace(title, runs, max(0, len(records) - MOST_RUNS))


def _run(record: Record, shown: dict[str, str]) -> tuple[TracePart, ...]:
    """Guesses in order, then the target's own token, as far as they entered the text."""
    given = dict(enumerate(record.origins))
    parts = []
    for place, token in enumerate(record.drafted):
        kept = place < record.accepted
        origin = given.get(place, "unread") if kept else "rejected" if place == record.accepted else "unread"
        parts.append(TracePart(origin, _text(token, shown)))
    if record.emitted > record.accepted:
        parts.append(TracePart(record.origins[-1], _text(record.token, shown)))
    return tuple(parts)


def _text(token: int, shown: dict[str, str]) -> str:
    """Line ends as a sign; without texts the token's number, with a space between numbers."""
    if not shown:
        return f" {token}"
    return str(shown.get(str(token), f" {token}")).replace("\n", "⏎").replace("\t", "⇥")
