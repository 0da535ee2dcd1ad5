"""Texts of the user's own: what a file holds is found out, and what is wrong in it is named by file, line and key."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from outrider.errors import BadOption
from outrider.paper import texts
from outrider.paper.data import OwnTexts, read, spread
from outrider.paper.quality import passes

PROGRAM = {"task_id": "T/0", "prompt": "def f():\n", "entry_point": "f", "test": "def check(c):\n    assert c() == 1"}


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_without_files_the_texts_are_the_packages_own() -> None:
    found = read([])
    assert found == OwnTexts() and not found.given and found.translations == texts.TRANSLATIONS
    assert not set(found.summaries) & set(found.counted)
    assert {*found.summaries, *found.counted} == set(texts.SUMMARIES)


def test_files_packed_or_not_and_directories(tmp_path: Path) -> None:
    """Every kind by itself; the others stay the package's own."""
    (tmp_path / "programs.jsonl").write_text(lines(PROGRAM) + "\n")
    (tmp_path / "README.md").write_text("not read")
    pairs = "Good morning.\tGuten Morgen.\r\nYes.\tJa.\n"
    (tmp_path / "pairs.en-de.tsv.gz").write_bytes(gzip.compress(pairs.encode()))
    found = read([tmp_path])
    assert found.translations == [("Good morning.", "Guten Morgen."), ("Yes.", "Ja.")]
    assert found.summaries == OwnTexts().summaries and set(found.given) == {"programs", "translations"}
    assert found.given["translations"].startswith("2 of sha256 ") and str(tmp_path) not in str(found.given)
    alone = read([tmp_path / "programs.jsonl"])
    assert alone.programs == found.programs and alone.translations == texts.TRANSLATIONS
    assert alone.given["programs"] == found.given["programs"]


@pytest.mark.slow
def test_programs_are_checked_as_humaneval_does(tmp_path: Path) -> None:
    """Its tests define ``check``, which nobody called: every program passed."""
    (tmp_path / "p.jsonl").write_text(lines(PROGRAM))
    [program] = read([tmp_path / "p.jsonl"]).programs
    assert passes(program, "    return 1\n") and not passes(program, "    return 2\n")


def test_summaries_of_the_training_split_are_counted_and_not_asked(tmp_path: Path) -> None:
    rows = [{"article": f"article {n}", "summary": f"summary {n}", "split": s} for n, s in enumerate(("train", "test"))]
    (tmp_path / "a.jsonl").write_text(lines(*rows))
    found = read([tmp_path / "a.jsonl"])
    assert (found.summaries, found.counted) == ([("article 1", "summary 1")], [("article 0", "summary 0")])
    (tmp_path / "b.jsonl").write_text(lines(*({"document": f"d {n}", "highlights": f"h {n}"} for n in range(4))))
    found = read([tmp_path / "b.jsonl"])
    assert found.summaries == [("d 0", "h 0"), ("d 2", "h 2")] and found.counted == [("d 1", "h 1"), ("d 3", "h 3")]


def test_a_few_of_many_are_spread() -> None:
    assert spread(range(10), 3) == [0, 3, 6] and spread([1, 2], 3) == [1, 2]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", "", "is empty"),
        ("a.jsonl", lines({"article": "x", "summary": "y"}) + "{", "line 2: not JSON"),
        ("a.jsonl", lines([1]), "line 1: a line is a JSON object"),
        ("a.jsonl", lines({"article": "x"}), "line 1, key summary or highlights: must be a text"),
        ("a.jsonl", lines({"article": "x", "summary": " "}), "line 1, key summary or highlights: must be a text"),
        ("a.jsonl", lines({"article": "x", "summary": "y", "split": 3}), "line 1, key split"),
        ("a.jsonl", lines({**PROGRAM, "prompt": 3}), "line 1, key prompt: must be a text"),
        ("a.jsonl", lines(PROGRAM, {"article": "x"}), "line 2, key prompt"),
        ("a.jsonl", lines({**PROGRAM, "entry_point": None}), "line 1, key entry_point"),
        ("a.tsv", "one\ttwo\nthree\n", "line 2: must be an English sentence, a tab"),
        ("a.tsv.gz", "not packed", "cannot be unpacked"),
        ("a.txt", "x", "must be named .jsonl"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(BadOption, match=name) as error:
        read([file])
    assert said in str(error.value)


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="no such file or directory"):
        read([tmp_path / "missing.jsonl"])
    with pytest.raises(BadOption, match="no file in this directory"):
        read([tmp_path])
