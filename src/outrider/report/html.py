"""The report as one HTML page that needs nothing else: no script, no network, no font from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from outrider.report import svg
from outrider.report.charts import (
    BarChart,
    Chapter,
    Chart,
    ColouredTrace,
    DataTable,
    LineChart,
    ReportBlock,
    ReportSection,
    TimeLines,
    TracePart,
)
from outrider.report.style import CHART, COLOURS, PAGE

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
FACTS = "Machine, versions, options"
FOOTER = "Point at a mark of a chart for its numbers; the table beside it has them, too."
ORIGINS = {
    "accepted": "accepted guess",
    "rejected": "rejected guess",
    "unread": "guess behind it, not judged",
    "corrected": "the target's correction",
    "bonus": "the target's own token, all guesses kept",
    "plain": "no guess was made",
}


def page(chapters: Sequence[tuple[Path, str, Chapter]], title: str, version: str) -> str:
    """``chapters``: a file, the kind of its result, and what it says."""
    several = len(chapters) > 1
    body = "\n".join(_article(number, *chapter) for number, chapter in enumerate(chapters, 1))
    listed = "".join(
        f'<li><a href="#file-{number}">{escape(chapter.title)}</a> <span class="muted">{escape(path.name)}</span></li>'
        for number, (path, _, chapter) in enumerate(chapters, 1)
    )
    contents = f'<nav aria-label="Files"><ol class="contents">{listed}</ol></nav>' if several else ""
    files = f"{len(chapters)} result files" if several else "one result file"
    source = f'<p class="muted">From {files}, by <code>outrider report</code> {escape(version)}.</p>'
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>{COLOURS}{CHART}{PAGE}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>{source}{contents}</header>
<main>
{body}
</main>
<footer>{FOOTER}</footer>
</body>
</html>
"""


def _article(number: int, path: Path, kind: str, chapter: Chapter) -> str:
    tiles = "".join(
        f"<div><dt>{escape(h.label)}</dt><dd>{escape(h.value)}</dd><dd>{escape(h.detail)}</dd></div>"
        for h in chapter.headlines
    )
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{_value(name, value)}</dd>" for name, value in chapter.facts)
    parts = [
        f'<article id="file-{number}" aria-labelledby="file-{number}-title">',
        f'<h2 id="file-{number}-title">{escape(chapter.title)}</h2>',
        f'<p class="muted">{escape(kind)}: <code>{escape(path.name)}</code></p>',
        f'<dl class="tiles">{tiles}</dl>' if tiles else "",
        f'<details><summary>{FACTS}</summary><dl class="facts">{facts}</dl></details>' if facts else "",
        *(_section(s, f"s{number}-{i}") for i, s in enumerate(chapter.sections, 1)),
        _missing(chapter.missing),
        "</article>",
    ]  # fmt: skip
    return "\n".join(filter(None, parts))


def _value(name: str, value: str) -> str:
    return f"<code>{escape(value)}</code>" if name == "command" else escape(value)


def _missing(missing: Sequence[str]) -> str:
    listed = "".join(f"<li>{_words(text)}</li>" for text in missing)
    return f'<section><h3>Not in this file</h3><ul class="missing">{listed}</ul></section>' if missing else ""


def _words(text: str) -> str:
    """Text with `code` between back quotes."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def _section(section: ReportSection, name: str) -> str:
    text = f'<p class="muted">{_words(section.text)}</p>' if section.text else ""
    blocks = "\n".join(_block(block, f"{name}-{i}") for i, block in enumerate(section.blocks, 1))
    return f'<section aria-labelledby="{name}"><h3 id="{name}">{escape(section.title)}</h3>{text}\n{blocks}</section>'


def _block(block: ReportBlock, name: str) -> str:
    if isinstance(block, (LineChart, BarChart, TimeLines)):
        return _figure(block, name)
    if isinstance(block, ColouredTrace):
        return _trace(block)
    return f'<div class="wide">{_table(block, caption=True)}</div>'


def _figure(chart: Chart, name: str) -> str:
    note = f'<p class="note">{_words(chart.note)}</p>' if chart.note else ""
    return (
        f'<figure id="{name}"><figcaption>{escape(chart.title)}</figcaption>{svg.inline(chart, name)}'
        f"{_table(chart.table, caption=False)}{note}</figure>"
    )


def _table(table: DataTable, caption: bool) -> str:
    """A reader who moves by keys can scroll it."""
    words = table.text | {0}
    head = "".join(_cell("th", name, i in words, ' scope="col"') for i, name in enumerate(table.columns))
    rows = "".join(
        "<tr>" + _cell("th", row[0], True, ' scope="row"')
        + "".join(_cell("td", value, i in words) for i, value in enumerate(row[1:], 1)) + "</tr>"
        for row in table.rows
    )  # fmt: skip
    title = f"<caption>{escape(table.title)}</caption>" if caption else ""
    heads = f"<thead><tr>{head}</tr></thead>" if any(table.columns) else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}: table">'
        f"<table>{title}{heads}<tbody>{rows}</tbody></table></div>"
    )


def _cell(tag: str, value: str, words: bool, more: str = "") -> str:
    kind = ' class="words"' if words else ""
    return f"<{tag}{kind}{more}>{escape(value)}</{tag}>"


def _trace(trace: ColouredTrace) -> str:
    used = {part.origin for run in trace.runs for part in run}
    legend = "".join(
        f'<li><span class="{origin}">{escape(meaning)}</span></li>'
        for origin, meaning in ORIGINS.items()
        if origin in used
    )
    runs = "".join(_run(number, run) for number, run in enumerate(trace.runs, 1))
    more = f'<p class="muted">… and {trace.left_out:,} more target runs.</p>' if trace.left_out else ""
    return (
        f'<div class="wide"><h4>{escape(trace.title)}</h4><ul class="legend">{legend}</ul>'
        f'<ol class="runs">{runs}</ol>{more}</div>'
    )


def _run(number: int, run: Sequence[TracePart]) -> str:
    given = sum(part.origin not in ("rejected", "unread") for part in run)
    tokens = "".join(f'<span class="{part.origin}">{escape(part.text)}</span>' for part in run)
    label = f"{given} token{'' if given == 1 else 's'}"
    return (
        f'<li><span aria-hidden="true">{number}</span><span class="tokens">{tokens}</span>'
        f'<span class="count" title="{label} of this run entered the text">+{given}</span></li>'
    )
