"""Results of ``outrider paper``: resumed after a kill, refused where they are something else, and made into a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import BadOption
from outrider.paper import page
from outrider.paper.lab import Amount, Lab
from outrider.paper.results import KEYS, KIND, VERSION, PaperResults
from outrider.paper.run import run
from outrider.paper.table import Experiment, Found, PaperRow, Unit, rounded
from outrider.report.charts import ColouredTrace, TracePart
from outrider.report.side_by_side import side_by_side, tables


def experiment(ran: list[str], fails: str = "") -> Experiment:
    """Two units that note that they were run."""

    def unit(name: str) -> Unit:
        def work(lab: Lab) -> Found:
            if name == fails:
                raise KeyboardInterrupt
            ran.append(name)
            trace = ColouredTrace(name, ((TracePart("accepted", "a |"), TracePart("corrected", " line")),))
            return Found([PaperRow({"unit": name}, {"x": 1.5}, {"x": 2.0})], [trace], ["A note."])

        return Unit(name, work)

    return Experiment("table9", "Leviathan et al. 2023", "Table 9: nothing", [unit("one"), unit("two")], "Nothing.")


def told(what: str, done: int, total: int) -> None:
    assert 0 <= done <= total == 2


def lab(seed: int = 0) -> Lab:
    return Lab(Amount(1, 2, 1, seed), device="cpu")


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """Catches units that are run twice, and records that are written only at the end."""
    ran: list[str] = []
    file = tmp_path / "results.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run([experiment(ran, fails="two")], lab(), PaperResults.at(file), told)
    assert ran == ["one"] and len(file.read_text().splitlines()) == 1
    file.write_text(file.read_text() + '{"kind": "outrider pa')  # killed while it wrote
    records = run([experiment(ran)], lab(), PaperResults.at(file), told)
    assert ran == ["one", "two"] and [r["unit"] for r in records] == ["one", "two"]
    assert [json.loads(line) for line in file.read_text().splitlines()] == records
    run([experiment(ran)], lab(seed=1), PaperResults.at(file), told)
    assert ran == ["one", "two", "one", "two"]  # other settings, other results


@pytest.mark.parametrize("text", ["hello", "{", "notes\nhello", '{"kind": "another program'])
def test_a_file_of_the_users_is_refused_and_stays(tmp_path: Path, text: str) -> None:
    """Any last line without its end was taken for one that a killed process left: ``--out notes.txt`` was emptied."""
    file = tmp_path / "notes.txt"
    file.write_text(text)
    with pytest.raises(BadOption, match=r"notes.txt, line \d: not JSON"):
        PaperResults.at(file)
    assert file.read_text() == text


def test_what_stands_behind_results_is_refused_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    run([experiment([])], lab(), PaperResults.at(file), told)
    whole = file.read_text()
    file.write_text(whole + "a note of mine")
    with pytest.raises(BadOption, match="line 3: not JSON"):
        PaperResults.at(file)
    assert file.read_text() == whole + "a note of mine"


def test_only_the_line_that_was_cut_off_is_removed(tmp_path: Path) -> None:
    """The file was written anew, without its empty lines; and a record whose end of line was missing ran into the
    next."""
    file = tmp_path / "results.jsonl"
    ran: list[str] = []
    run([experiment(ran)], lab(), PaperResults.at(file), told)
    first, second = file.read_text().splitlines()
    for cut in (1, len(second) // 2, len(second) - 1):
        file.write_text(f"{first}\n\n{second[:cut]}")
        assert [r["unit"] for r in PaperResults.at(file).records] == ["one"]
        assert file.read_text() == f"{first}\n\n"
    file.write_text(second[: len(second) // 2])  # nothing whole before it
    assert not PaperResults.at(file).records and file.read_text() == ""
    file.write_text(f"{first}\n{second}")
    again = PaperResults.at(file)
    run([experiment(ran)], lab(seed=1), again, told)
    assert len([json.loads(line) for line in file.read_text().splitlines()]) == 4


def test_another_machine_or_version_does_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings alone were compared: a page had figures of two machines and named the first."""
    file = tmp_path / "results.jsonl"
    ran: list[str] = []
    for name in ("cpu_name", "__version__"):
        run([experiment(ran)], lab(), PaperResults.at(file), told)
        other = "another" if name == "__version__" else lambda: "another"
        monkeypatch.setattr(f"outrider.paper.run.{name}", other)
    records = run([experiment(ran)], lab(), PaperResults.at(file), told)
    assert ran == ["one", "two"] * 3 and len(file.read_text().splitlines()) == 6
    assert {(r["machine"]["cpu"], r["machine"]["outrider"]) for r in records} == {("another", "another")}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", "line 1: not written by `outrider paper`"),
        ("[1]", "line 1: not written by `outrider paper`"),
        ("nonsense", "line 1: not JSON"),
        (json.dumps({"kind": KIND, "version": 7}), "line 1, version: 7 is not 2"),
        (
            json.dumps({"kind": KIND, "version": VERSION, "unit": "x"}),
            "line 1, paper, experiment",
        ),
        (json.dumps(dict.fromkeys(KEYS, 1) | {"kind": KIND, "version": VERSION, "rows": [{}]}), "line 1, rows: not as"),
        (
            json.dumps(dict.fromkeys(KEYS, 1) | {"kind": KIND, "version": VERSION, "rows": [], "pictures": [{}]}),
            "line 1, key pictures[0].picture: missing",
        ),
    ],
)
def test_a_file_of_something_else_is_refused_by_line_and_key(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(BadOption, match=r".*") as error:
        PaperResults.at(file)
    assert said in str(error.value) and str(file) in str(error.value)
    assert file.read_text() == line + "\n"  # nothing of the user's is lost


def test_an_empty_cell_needs_a_reason() -> None:
    given: list[dict[str, Any]] = [{"ours": {"x": None}}, {"theirs": {"x": None}}, {"ours": {}}, {"theirs": {}}]
    for part in given:
        values = {"theirs": {"x": 1.0}, "ours": {"x": 1.0}} | part
        with pytest.raises(BadOption, match="no reason"):
            PaperRow({"a": 1}, **values)
        assert PaperRow({"a": 1}, **values, why="it is not public").why


def test_theirs_stand_beside_ours_on_the_page() -> None:
    """Catches columns that slide where a row lacks one, and signs of a table inside a cell."""
    rows = [
        PaperRow({"draft": "a|b"}, {"alpha": 0.5}, {"alpha": 0.25, "tokens": 7}).to_json(),
        PaperRow({"draft": "c"}, {}, {"alpha": 1.0}, "the paper has no such row").to_json(),
    ]
    header, body = side_by_side(rows)
    assert header == ["draft", "alpha, theirs", "alpha, ours", "tokens, ours", "why empty"]
    assert body == [["a|b", "0.5", "0.25", "7", ""], ["c", "", "1", "", "the paper has no such row"]]
    ran: list[str] = []
    experiments = [experiment(ran)]
    quiet = [record | {"others_cores": 0.0} for record in run(experiments, lab(), PaperResults(None), told)]
    text = page.page(experiments, quiet, "outrider paper --quick", {"table9": [("A figure", "pictures/one.svg")]})
    assert "### Table 9: nothing" in text and "| one | 1.5 | 2 |" in text and " 1 a |[ line]" in text
    assert "![A figure](pictures/one.svg)" in text and text.count("A note.") == 1
    assert "`outrider paper --quick`" in text and "seed 0" in text and "The machine was busy" not in text
    quiet[1]["others_cores"] = 1.5
    text = page.page(experiments, quiet, "outrider paper", {})
    assert "during 1 of 2 parts" in text and "busy meanwhile: two (1.5 cores)." in text  # it was not said which


def test_rows_about_other_things_stand_in_another_table() -> None:
    """A row of a few words more left a column of empty cells, without a reason, in all others."""
    rows = [
        PaperRow({"K": 1}, {}, {"ms": 2.0}, "drawn").to_json(),
        PaperRow({"task": "x"}, {"best": 3}, {"best": 4}).to_json(),
        PaperRow({"K": 2}, {}, {"ms": 3.0}, "drawn").to_json(),
    ]  # fmt: skip
    (first, body), (second, other) = tables(rows)
    assert first == ["K", "ms, ours", "why empty"] and [line[0] for line in body] == ["1", "2"]
    assert second == ["task", "best, theirs", "best, ours"] and other == [["x", "3", "4"]]


def test_what_has_no_number_is_empty() -> None:
    """A planner that falls back makes no guess, and there is no alpha of none."""
    assert rounded(0.12345, 2) == 0.12 and rounded(float("nan"), 2) is None and rounded(float("inf"), 2) is None
