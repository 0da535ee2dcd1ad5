"""``outrider verify --out``: whether speculation is exact, and how that was found out."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.report.charts import Chapter, DataTable, Headline, LineChart, Mark, Series, section, sections
from outrider.report.kinds.stats import MOST_SERIES, conditions
from outrider.report.result_entry import ResultEntry
from outrider.report.values import figure

PARTS = {"greedy": "temperature 0", "gumbel": "temperature 1, Gumbel coupling"}
TREES = "trees of guesses"
ELSEWHERE = ("Speed: `outrider measure --out FILE` measures it.",)


def chapter(records: Sequence[ResultEntry]) -> Chapter:
    whole = records[0]
    parts = {name: whole.each(name) for name in PARTS}
    identity = [
        block
        for name, title in PARTS.items()
        for block in (_tokens_per_run(parts[name], name, title), _identity(parts[name], title))
    ]
    if whole.has("trees"):  # a certificate of an earlier version has none
        for seeded, title in enumerate(PARTS.values()):
            mine = [r for r in whole.each("trees") if bool(r.each("seeds")) == bool(seeded)]
            identity.append(_identity(mine, f"{TREES}, {title}"))
    found = (
        section("Bit identity", identity, "Speculative text beside the same engine's plain text, token by token."),
        section("Distribution under a coupling", [_distribution(whole.each("distribution"))], DISTRIBUTION),
        section("Row invariance of the kernels", [_invariance(whole.each("invariance"))], INVARIANCE),
    )
    left_out = [f"Part of the certificate: {part.value}." for part in whole.each("left_out")]
    if not whole.flag("finished"):
        left_out.append("A whole certificate: the run was interrupted.")
    title = f"{whole.text('target')} with {whole.text('drafter')}: certificate"
    return Chapter(title, _headlines(whole), conditions(whole, "conditions"), sections(*found), (*left_out, *ELSEWHERE))


DISTRIBUTION = (
    "Pairs of tokens drawn by the rule, and by runs of the model, against the target's distribution. Controls are "
    "deliberately wrong rules, which must be caught. Detects: the smallest total variation found with chance 99.9 %."
)
INVARIANCE = "Logit rows that change in any bit where the surroundings of a row change."


def _headlines(whole: ResultEntry) -> tuple[Headline, ...]:
    differ = whole.count("mismatched_tokens")
    return (
        Headline("Verdict", whole.text("verdict"), f"in {whole.number('seconds'):.0f} s"),
        Headline("Tokens that differ", f"{differ:,}", f"of {whole.count('tokens_compared'):,} compared"),
        Headline("Distribution tests", _passed(whole.each("distribution")), "passed, wrong rules caught"),
        Headline("Row invariance", _passed(whole.each("invariance")), "passed"),
    )


def _passed(results: Sequence[ResultEntry]) -> str:
    return f"{sum(r.flag('passed') for r in results)} of {len(results)}" if results else "left out"


def _tokens_per_run(results: Sequence[ResultEntry], name: str, title: str) -> LineChart | None:
    series = []
    for drafter in dict.fromkeys(r.text("drafter") for r in results):
        mine = [r for r in results if r.text("drafter") == drafter and r.has("tokens_per_run")]
        if mine:
            series.append(Series(drafter, tuple(Mark(r.number("gamma"), r.number("tokens_per_run")) for r in mine)))
    if not series:
        return None
    return LineChart(
        f"tokens-per-run-{name}", f"Tokens per run, {title}", "guesses per run γ", "tokens per target run",
        tuple(series[:MOST_SERIES]), reference=(1.0, "plain decoding"),
    )  # fmt: skip


def _identity(results: Sequence[ResultEntry], title: str) -> DataTable | None:
    rows = tuple(
        (
            r.text("drafter"), _guesses(r), r.text("slots"), f"{r.count('tokens'):,}", str(r.count("mismatches")),
            figure(r.known("alpha")), figure(r.known("tokens_per_run")),
            str(r.value.get("error") or _mark(r.flag("passed"))),
        )
        for r in results
    )  # fmt: skip
    columns = ("drafter", "γ", "slots", "tokens", "differ", "α", "per run", "result")
    return DataTable(f"Bit identity, {title}", columns, rows, frozenset({7})) if rows else None


def _guesses(result: ResultEntry) -> str:
    tree = result.value.get("tree")
    return result.text("gamma") if tree is None else f"{result.text('gamma')}, {tree} nodes"


def _distribution(results: Sequence[ResultEntry]) -> DataTable | None:
    rows = tuple(
        (
            r.text("part"), r.text("drafter"), r.text("verifier"), f"{r.count('samples'):,}",
            f"{r.number('p_value'):.2g}" if r.has("p_value") else "-", figure(r.known("detects")), _power_mark(r),
        )
        for r in results
    )  # fmt: skip
    columns = ("test of", "draft", "rule", "draws", "p-value", "detects", "result")
    return DataTable("Distribution under a coupling", columns, rows, frozenset({1, 2, 6})) if rows else None


def _power_mark(result: ResultEntry) -> str:
    if result.has("inconclusive") and result.flag("inconclusive"):
        return "no power"
    if result.text("part") == "control":
        return "caught" if result.flag("passed") else "FAILED: not caught"
    return _mark(result.flag("passed"))


def _invariance(results: Sequence[ResultEntry]) -> DataTable | None:
    rows = tuple(
        (
            r.text("change"), f"{r.count('rows'):,}", f"{r.count('changed'):,}",
            _mark(r.flag("passed")) if r.flag("required") else "not promised",
        )
        for r in results
    )  # fmt: skip
    return (
        DataTable("Row invariance", ("a row with", "logit rows", "changed", "result"), rows, frozenset({3}))
        if rows
        else None
    )


def _mark(passed: bool) -> str:
    return "ok" if passed else "FAILED"
