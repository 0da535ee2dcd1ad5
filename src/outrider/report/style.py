"""Style sheets of the report: colours for light and dark with a contrast of 4.5, a phone's width, paper."""

from __future__ import annotations

LIGHT = """
  color-scheme: light dark;
  --ground: #f6f7f5; --panel: #ffffff; --ink: #1c1e21; --muted: #565c65; --line: #d5d9dd; --field: #6f767f;
  --accepted: #1a6b2f; --rejected: #b3261e; --corrected: #1d4fa8; --bonus: #7a2f95;
  --c0: #1d4fa8; --c1: #a34a00; --c2: #1a6b2f; --c3: #7a2f95; --c4: #00696f; --c5: #a01f4b;
"""
DARK = """
  --ground: #14161a; --panel: #1d2026; --ink: #e6e8eb; --muted: #a8afb9; --line: #343a44; --field: #7d8591;
  --accepted: #7fd28f; --rejected: #ff9d94; --corrected: #8db8ff; --bonus: #d9a5f0;
  --c0: #8db8ff; --c1: #ffb066; --c2: #7fd28f; --c3: #d9a5f0; --c4: #6fd3d8; --c5: #ff97b7;
"""
COLOURS = f":root {{{LIGHT}}}\n@media screen and (prefers-color-scheme: dark) {{ :root {{{DARK}}} }}\n"

_SERIES = "".join(
    f".chart .bar.c{i}, .chart .mark.c{i} {{ fill: var(--c{i}); }} "
    f".chart .line.c{i}, .chart .curve.c{i}, .chart .interval.c{i} {{ stroke: var(--c{i}); }}\n"
    for i in range(6)
)
CHART = f"""
.chart {{ font: 12px system-ui, sans-serif; }}
.chart text {{ fill: var(--ink); }}
.chart .title {{ font-size: 15px; font-weight: 600; }}
.chart .tick, .chart .axis-name {{ fill: var(--muted); }}
.chart .axis {{ stroke: var(--field); }}
.chart .grid {{ stroke: var(--line); }}
.chart .value {{ font-variant-numeric: tabular-nums; }}
.chart .line {{ fill: none; stroke-width: 2; stroke-linejoin: round; }}
.chart .d1 {{ stroke-dasharray: 6 3; }}
.chart .d2 {{ stroke-dasharray: 2 3; }}
.chart .curve {{ fill: none; stroke-width: 2; stroke-dasharray: 5 4; opacity: .75; }}
.chart .interval {{ stroke-width: 1.5; }}
.chart .mark {{ stroke: var(--panel); stroke-width: 1; }}
.chart .bar {{ fill-opacity: .85; }}
.chart .halo {{ stroke: var(--panel); stroke-width: 4; opacity: .7; }}
.chart .spread {{ stroke: var(--ink); stroke-width: 1.25; }}
.chart .reference {{ stroke: var(--ink); stroke-width: 1; stroke-dasharray: 1 3; }}
.chart .reference-name {{ fill: var(--muted); font-size: 11px; }}
.chart .reference-name, .chart .name {{ paint-order: stroke; stroke: var(--panel); stroke-width: 3px; }}
{_SERIES}"""

PAGE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
header, main, footer { max-width: 72rem; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 1.5rem; }
footer { padding: 1rem 1rem 3rem; color: var(--muted); font-size: .875rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .25rem; text-wrap: balance; }
h2 { font-size: 1.375rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; text-wrap: balance; }
h3 { font-size: 1.0625rem; margin: 2rem 0 .25rem; }
h4 { font-size: 1rem; margin: 0; }
p { margin: .25rem 0; max-width: 70ch; }
code { font: .875em ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
a { color: var(--corrected); }
:focus-visible { outline: 3px solid var(--corrected); outline-offset: 2px; }
.muted { color: var(--muted); }
.contents { padding: 0 0 0 1.25rem; }
article { border-top: 1px solid var(--line); margin-top: 2rem; padding-top: 1.5rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .75rem; margin: 1rem 0; }
.tiles > div {
  background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .625rem .875rem;
  min-width: 0;
}
.tiles dt { font-size: .875rem; color: var(--muted); }
.tiles dd { margin: 0; font-size: .8125rem; color: var(--muted); overflow-wrap: anywhere; }
.tiles dt + dd {
  font-size: 1.625rem; line-height: 1.3; font-weight: 600; color: var(--ink);
  font-variant-numeric: tabular-nums;
}
figure {
  margin: .75rem 0; background: var(--panel); border: 1px solid var(--line); border-radius: .5rem;
  padding: 1rem; display: grid; grid-template-columns: minmax(0, 31rem) minmax(0, 1fr); gap: .25rem 2rem;
  align-items: start;
}
figcaption { grid-column: 1 / -1; font-weight: 600; }
figure .note { grid-column: 1 / -1; font-size: .8125rem; color: var(--muted); }
figure svg { width: 100%; height: auto; display: block; }
.wide {
  background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: 1rem;
  margin: .75rem 0;
}
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .8125rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; font-size: 1rem; padding-bottom: .25rem; }
th { color: var(--muted); font-weight: 500; vertical-align: bottom; }
th, td { padding: .25rem .625rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td { white-space: nowrap; }
th.words, td.words { text-align: left; white-space: normal; }
thead th { min-width: 5.5rem; }
thead th:first-child { min-width: 4rem; }
tbody th { color: var(--ink); font-weight: 400; }
.facts {
  display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .125rem 1rem; font-size: .8125rem;
  margin: .5rem 0;
}
.facts dt { color: var(--muted); }
.facts dd { margin: 0; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--muted); font-size: .875rem; padding: .25rem 0; }
.missing { font-size: .875rem; color: var(--muted); padding-left: 1.25rem; }
.legend {
  list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; margin: .5rem 0;
  font-size: .875rem;
}
.runs {
  font: .875rem/1.7 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; list-style: none;
  margin: 0; padding: 0;
}
.runs li {
  display: grid; grid-template-columns: 2.25rem minmax(0, 1fr) auto; gap: .75rem;
  border-bottom: 1px solid var(--line);
}
.runs li > span:first-child, .runs .count { color: var(--muted); text-align: right; }
.runs .tokens { white-space: pre-wrap; overflow-wrap: anywhere; }
.accepted, .corrected, .bonus { text-decoration-line: underline; text-underline-offset: .2em; }
.accepted { color: var(--accepted); text-decoration-thickness: 1px; }
.corrected { color: var(--corrected); text-decoration-style: double; text-decoration-thickness: 1px; }
.bonus { color: var(--bonus); text-decoration-style: dotted; text-decoration-thickness: 2px; }
.rejected { color: var(--rejected); text-decoration: line-through; }
.unread { color: var(--muted); text-decoration: line-through; }

@media (max-width: 52rem) {
  body { font-size: 15px; }
  figure { grid-template-columns: minmax(0, 1fr); padding: .75rem; }
  .wide { padding: .75rem; }
  .tiles { grid-template-columns: 1fr 1fr; gap: .5rem; }
  .tiles > div { padding: .5rem .625rem; }
  .tiles dt + dd { font-size: 1.25rem; }
  .chart { font-size: 13px; }
  .runs li { grid-template-columns: 1.5rem minmax(0, 1fr) auto; gap: .5rem; }
}
@media print {
  :root { color-scheme: light; }
  body { background: #ffffff; font-size: 10pt; }
  header, main, footer { max-width: none; padding: 0; }
  article { break-before: page; border: 0; margin: 0; padding: 0; }
  article:first-of-type { break-before: auto; }
  figure, .wide, .tiles > div { border-color: #999; }
  figure { break-inside: avoid; grid-template-columns: minmax(0, 11fr) minmax(0, 9fr); }
  th, td, thead th { white-space: normal; overflow-wrap: anywhere; min-width: 0; padding: .1rem .3rem; }
  table { font-size: 7.5pt; }
  .tiles { grid-template-columns: repeat(4, 1fr); }
  .scroll { overflow: visible; }
  h3 { break-after: avoid; }
  a { color: inherit; text-decoration: none; }
}
@media (forced-colors: active) { .runs span, .legend span { forced-color-adjust: none; } }
"""
