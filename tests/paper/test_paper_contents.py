"""What stands in the tables: with random models that draft for themselves every figure but times can be worked out."""

from __future__ import annotations

import math
from typing import Any

import pytest

from outrider import theory
from outrider.bench import measure
from outrider.bench.cells import NARROW, PLAIN, Cell
from outrider.bench.measure import Way
from outrider.bench.plan.forecast import TargetCosts
from outrider.errors import BadOption
from outrider.output import Output
from outrider.paper import acceptance, beams, chen, lenience, published, speed, traces, tulsian
from outrider.paper.lab import CHATTER, CONTINUER, SUMMARISER, TRANSLATOR, Timed
from outrider.paper.table import PaperRow
from outrider.report.charts import ColouredTrace, TimeLines
from outrider.trace import Record, Trace
from tiny_lab import TinyLab, tiny_lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> TinyLab:
    return tiny_lab(tmp_path_factory.mktemp("lab"))


def known(row: PaperRow, *names: str) -> list[Any]:
    return [row.ours[name] for name in names]


def test_what_theirs_has_ours_has_or_says_why() -> None:
    """A figure of the paper without one of ours beside it, and without a reason, passed for a whole row."""
    with pytest.raises(BadOption, match="no reason"):
        PaperRow({"a": 1}, {"x": 1.0, "y": 2.0}, {"x": 1.0})
    assert PaperRow({"a": 1}, {"x": 1.0}, {"x": 1.0, "y": 2.0}).ours["y"] == 2.0


# --- Leviathan et al. ---------------------------------------------------------------------------------------------


def test_table_2_and_4(lab: TinyLab) -> None:
    """alpha is of the target's own text, expected is the theorem's, operations those of Theorem 3.11."""
    rows = speed.speeds(TRANSLATOR, 0).run(lab).rows
    assert [(r.about["our draft"], r.about["gamma"]) for r in rows] == [
        (draft, gamma) for draft in ("bigram", "draft") for gamma in speed.GAMMAS
    ]
    means = lab.overlaps(TRANSLATOR, 0.0)
    for row in rows:
        gamma, c = int(row.about["gamma"]), row.ours["c"]  # type: ignore[arg-type]
        alpha = means.of(str(row.about["our draft"])).value
        assert row.ours["alpha"] == pytest.approx(alpha, abs=1e-3) and row.ours["same text"] == "2 of 2"
        near = theory.speedup(min(alpha, 1.0), gamma, c + 5e-4), theory.speedup(min(alpha, 1.0), gamma, c - 5e-4)
        assert near[0] - 0.01 <= row.ours["expected"] <= near[1] + 0.01
        if row.about["our draft"] == "bigram":
            assert row.ours["operations expected"] == pytest.approx(theory.operations(alpha, gamma), abs=0.01)
        else:
            assert row.ours["alpha"] == 1.0 and row.ours["operations expected"] > 1
    bigram, draft = rows[0], rows[5]
    assert bigram.theirs == {"alpha": 0.2, "c": 0.0, "expected": 1.25, "speed-up": None}
    assert bigram.why == speed.WORKED_OUT
    assert draft.theirs["speed-up"] == 3.4 and not draft.why and rows[3].why == speed.NO_SUCH_ROW


def test_a_draft_that_abstains_is_not_expected_to_gain_what_it_never_guesses() -> None:
    """A copier guesses now and then and is then often right: alpha over its guesses promised 2.35 where 1.13 was
    measured."""
    guessing, silent = Record(0, 0, (1, 1, 1), 3, 2, (1.0,) * 3, 4), Record(0, 0, (), 0, 2, (), 1)
    records = [guessing] * 2 + [silent] * 8
    seconds = {"draft": 0.0, "target": 1.0, "accept": 0.0, "host": 0.0, "prefill": 0.0}
    cell = Cell((Output("", [2] * 16, "length", 1, Trace(records=records, runs=10, seconds=seconds)),))
    row = measure.measured_row(
        Way(None, "copy", 3), "copy", 0.0, "all", [{"copy": cell, PLAIN: cell, NARROW: cell}], 0.0
    )  # type: ignore[arg-type]
    assert row.stats.alpha == 1.0 and theory.speedup(row.stats.alpha, 3, 0.0) == 4.0  # what was printed
    flat = TargetCosts(1, 1.0, dict.fromkeys(range(1, 9), 1.0), 1)
    assert speed.by_guess_and_width(Timed(row, [cell], [cell]), flat) == pytest.approx(1.6)


def test_expected_by_guess_is_tokens_of_a_run_over_its_cost(lab: TinyLab) -> None:
    """Where runs of any width cost one and guesses nothing, it is the tokens of a run."""
    [timed] = lab.timed(TRANSLATOR, {"draft": lab.engine(TRANSLATOR).drafter}, (3,), 0.0)
    object.__setattr__(timed.row, "cost", 0.0)
    flat = TargetCosts(1, 1.0, dict.fromkeys(range(1, 9), 1.0), 1)
    records = [r for cell in timed.ours for r in cell.outputs[0].trace.records]
    kept = sum(r.accepted for r in records)
    assert speed.by_guess_and_width(timed, flat) == pytest.approx((len(records) + kept) / len(records))
    steep = TargetCosts(1, 1.0, {width: float(width) for width in range(1, 9)}, 1)
    drafted = sum(len(r.drafted) for r in records)
    expected = (len(records) + kept) / (len(records) + drafted)
    assert speed.by_guess_and_width(timed, steep) == pytest.approx(expected)


def test_rows_that_nothing_stands_for(lab: TinyLab) -> None:
    for rows, wanted in ((speed.not_here(lab).rows, 6), (acceptance.not_here(lab).rows, 12)):
        assert len(rows) == wanted and all(row.why and not row.ours and row.theirs for row in rows)
    drawn = {(s.task, s.draft) for s in published.SPEEDS}
    assert {("CNNDM", "T5-small"), ("CNNDM", "T5-base")} <= set(speed.LIKE.values()) & drawn  # summaries stand for them


def test_table_3(lab: TinyLab) -> None:
    rows = acceptance.table_3(SUMMARISER, 1).run(lab).rows
    found = {str(row.about["our draft"]): row for row in rows}
    assert list(found) == ["unigram", "bigram", "copy", "head", "auto"]
    assert found["head"].ours["alpha"] == 1.0 and found["head"].theirs == {"alpha": 0.53} and not found["head"].why
    assert found["unigram"].theirs == {"alpha": 0.08} and found["copy"].why and not found["copy"].theirs
    assert all(row.ours["texts"] == 2 and row.ours["tokens"] <= 10 for row in rows)


def test_sampling_says_whether_sharper_is_higher(lab: TinyLab) -> None:
    for row in acceptance.sampling_variants(CONTINUER).run(lab).rows:
        sharper = row.ours["temperature 0"] - row.ours["temperature 1"]  # type: ignore[operator]
        assert row.ours["0 less 1"] == pytest.approx(sharper, abs=2e-3)
        assert row.about["our draft"] != "draft" or row.ours["nucleus 0.8"] == 1.0


def test_rejection_sampling_keeps_no_more(lab: TinyLab) -> None:
    """A.2: at most alpha, and all of it only for a draft that is the target."""
    for row in acceptance.rejection(CONTINUER).run(lab).rows:
        kept, alpha = known(row, "rejection sampling", "alpha")
        assert kept <= alpha and (kept > 0.99) == (row.about["our draft"] == "draft")
    by_hand = [known(row, "rejection sampling", "alpha") for row in acceptance.rejection_by_hand(lab).rows]
    assert by_hand == [[1, 1], [0.8, 0.9], [0.167, 0.6]]


def test_lenience(lab: TinyLab) -> None:
    rows = lenience.table_5(lab).rows
    assert [row.about["their draft"] for row in rows] == ["unigram", "bigram", "T5-small", "T5-base", "T5-small"]
    base = rows[3]
    assert base.theirs == {"l = 1": 0.68, "l = 0.8": None, "l = 0.5": 0.8, "l = 0.3": 0.83, "l = 0.1": 0.9}
    assert not base.ours and "second size" in base.why
    for row in rows:
        alphas = list(row.ours.values())
        assert alphas == sorted(alphas)  # type: ignore[type-var]


def test_what_lenience_brings(lab: TinyLab) -> None:
    """A.5's factors stand beside the theorem's: at temperature 0 they are its, at temperature 1 more than any gamma
    gives."""
    rows = lenience.gains(lab).rows
    assert [(row.about["temperature"], row.about["l"]) for row in rows] == [
        (t, x) for t in (1, 0) for x in lenience.LENIENCES
    ]
    printed = [row for row in rows if row.theirs["improvement"] is not None]
    assert [row.theirs["improvement"] for row in printed] == [2.5, 3.1, 3.6, 5.0, 3.3, 3.3, 3.9, 4.9]
    cold = [row for row in printed if row.about["temperature"] == 0]
    assert all(row.ours["from their alphas"] == pytest.approx(row.theirs["improvement"], abs=0.05) for row in cold)
    warm = [row for row in printed if row.about["temperature"] == 1]
    assert all(row.ours["from their alphas"] < row.theirs["improvement"] for row in warm)  # type: ignore[operator]
    assert all(row.ours["improvement"] == pytest.approx(theory.speedup(1.0, 8, 0.015), abs=0.01) for row in cold)


def test_beams(lab: TinyLab) -> None:
    rows = beams.table(TRANSLATOR).run(lab).rows
    assert [(row.about["w"], row.about["u"], row.about["gamma"]) for row in rows] == list(beams.SETTINGS)
    for row, (w, u, gamma) in zip(rows, beams.SETTINGS, strict=True):
        assert row.theirs == {"tokens of a run": w + u * gamma} and row.ours["tokens of a run"] == u * (gamma + 1)
        assert row.ours["same hypotheses"] == "2 of 2" and 0 <= row.ours["levels kept"] <= 1  # type: ignore[operator]
        assert 1 <= row.ours["levels per run"] <= gamma + 1  # type: ignore[operator]


def test_figure_1_shows_the_text_as_it_is(lab: TinyLab) -> None:
    """Every token was decoded by itself, and blanks between words were lost: DieRegierung."""
    found = traces.figure_1(TRANSLATOR).run(lab)
    [trace], [row] = found.pictures, found.rows
    assert isinstance(trace, ColouredTrace) and len(trace.runs) == row.ours["runs"]
    llm = lab.engine(TRANSLATOR)
    out = llm.generate(traces.PROMPT, max_new_tokens=38, gamma=7, temperature=0)
    shown = [part.text for run in trace.runs for part in run if part.origin not in ("rejected", "unread")]
    assert "".join(shown) == llm.show(out.tokens).replace("\n", "⏎")


def test_pieces_of_characters(lab: TinyLab) -> None:
    """A character of several tokens is shown once, where it is whole."""
    llm = lab.engine(CHATTER)
    tokens = llm.encode("tüt")
    assert len(tokens) == 4
    assert [traces.added(llm, tokens[:at], tokens[at]) for at in range(4)] == ["t", "", "ü", "t"]


def test_figure_5(lab: TinyLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read once stands before the runs, every run has its guesses before it, and the parts are the whole."""
    monkeypatch.setattr(traces, "TURNS", 1)
    monkeypatch.setattr(traces, "TOKENS", 6)
    found = traces.figure_5(TRANSLATOR).run(lab)
    [lines] = found.pictures
    assert isinstance(lines, TimeLines) and [line.label for line in lines.lines] == ["plain", "gamma 3", "gamma 7"]
    for line, row in zip(lines.lines, found.rows, strict=True):
        kinds = [part.kind for part in line.parts]
        assert kinds[0] == "target reads" and kinds.count("target run") == row.ours["runs"]
        assert row.ours["ms"] == pytest.approx(line.length, abs=0.06)
        assert ("guesses" in kinds) == (line.label != "plain")


# --- Chen et al. --------------------------------------------------------------------------------------------------


def test_chen_quality_is_equal_because_texts_are(lab: TinyLab) -> None:
    rows = chen.table_1(chen.SUMMARIES, "greedy", chen.GREEDY).run(lab).rows
    assert [row.about["measure"] for row in rows] == ["ROUGE-2", "ROUGE-1", "ROUGE-L"]
    assert rows[0].theirs["plain"] == 0.157 and not rows[0].why and rows[1].why and not rows[1].theirs
    for row in rows:
        assert row.ours["plain"] == row.ours["speculative"] and known(row, "same text", "prompts") == ["2 of 2", 2]


def test_chen_samples(lab: TinyLab) -> None:
    """Several of each prompt, with seeds of their own: the same text with and without guesses, other texts."""
    [row] = chen.table_1(chen.PROGRAMS, "nucleus 0.95, temperature 0.8", chen.WARM).run(lab).rows
    assert row.theirs["plain"] == 0.451 and known(row, "same text", "prompts") == ["4 of 4", 2]
    texts = [cell["plain"].tokens for _, cell in chen.texts_of(lab, ["the "], chen.WARM)]
    assert len(texts) == 2 and texts[0] != texts[1]


def test_chen_programs_that_pass(lab: TinyLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.paper.chen.passes", lambda program, text: program.prompt.startswith("def g"))
    [row] = chen.table_1(chen.PROGRAMS, "greedy", chen.GREEDY).run(lab).rows
    assert known(row, "plain", "speculative") == [0.5, 0.5] and row.about["measure"] == "pass@1"


@pytest.mark.parametrize("asked", chen.LOOKAHEADS, ids=lambda asked: asked.task)
def test_chen_lookahead(lab: TinyLab, asked: chen.Lookahead) -> None:
    """The share of K + 1 tokens falls from 1, where there is no guess; of one curve the paper says where it is best."""
    *rows, fastest = chen.figure_1(asked).run(lab).rows
    assert [row.about["K"] for row in rows] == list(range(8))
    shares = [row.ours["tokens kept over K + 1"] for row in rows]
    assert shares[0] == 1.0 and all(1 / (k + 1) - 1e-3 <= share <= 1 for k, share in enumerate(shares))  # type: ignore[operator]
    assert all(math.isfinite(value) for row in rows for value in known(row, "ms for 128 tokens", "deviation"))
    assert 1 <= fastest.ours["fastest K"] <= 7  # type: ignore[operator]
    assert fastest.theirs == ({"fastest K": 3} if asked.task == "summaries" else {})


# --- Tulsian et al. -----------------------------------------------------------------------------------------------


def test_tulsian_tables(lab: TinyLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table for both tasks. The report's figures stand beside what they are of; our quality is in every row."""
    monkeypatch.setattr("outrider.paper.quality.mean_bleu", lambda texts, wanted: 0.5)
    monkeypatch.setattr("outrider.paper.quality.bleu", lambda texts, wanted: 0.4)
    rows = {e.name: [row for unit in e.units for row in unit.run(lab).rows] for e in tulsian.EXPERIMENTS}
    assert {name: len(found) for name, found in rows.items()} == {
        "tulsian-table1": 4, "tulsian-table2": 4, "tulsian-table3": 2, "tulsian-table4": 6, "tulsian-table5": 4,
    }  # fmt: skip
    for found in rows.values():
        for row in found:
            same = row.ours.get("same text", row.ours.get("same hypotheses", "2 of 2"))
            assert same == "2 of 2", row
            assert row.why == tulsian.ALONE or known(row, "BLEU", "BLEU of all") == [0.5, 0.4]
    varying = rows["tulsian-table4"]
    assert [bool(row.theirs) for row in varying] == [True, False, False] * 2
    assert [row.theirs["speed-up"] for row in varying if row.theirs] == [2.61, 2.33]
    assert all("best of 5 on these texts" in str(row.about["policy"]) for row in varying[2::3])
    assert [row.theirs.get("BLEU") for row in rows["tulsian-table5"]] == [0.723, 0.73, 0.728, None]
    alone = rows["tulsian-table1"]
    assert alone[3].why == tulsian.ALONE and alone[0].ours["texts"] == 2


def test_tulsian_without_sacrebleu(lab: TinyLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.paper.quality.mean_bleu", lambda texts, wanted: None)
    monkeypatch.setattr("outrider.paper.quality.bleu", lambda texts, wanted: None)
    assert all("pip install sacrebleu" in row.why for row in tulsian.table_5(lab).rows)


def test_whole_times_have_the_prompt_in_them(lab: TinyLab) -> None:
    """Table 1 of the report times whole texts; ours left out encoder and prompt."""
    [timed] = lab.timed(TRANSLATOR, {"draft": lab.engine(TRANSLATOR).drafter}, (3,), 0.0)
    for cell in (*timed.ours, *timed.plain):
        assert cell.whole_seconds == pytest.approx(cell.seconds + cell.outputs[0].trace.seconds["prefill"])
    stats = timed.row.stats
    assert timed.kept_of_drafted == stats.accepted / stats.drafted
