"""``outrider report``: files that cannot be read are named with line and key; what is written is whole and safe."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import Result
from typer.testing import CliRunner

import result_files
from outrider.cli.main import app
from outrider.errors import BadOption
from outrider.trace import strict_json


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, words)], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return result_files.write_all(tmp_path_factory.mktemp("results"))


def test_all_kinds_on_one_page(written: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    result = run(*written.values(), "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [each["file"] for each in found["results"]] == [str(path) for path in written.values()]
    assert all(each["missing"] for each in found["results"]) and found["written"] == [str(out)]
    page = out.read_text("utf-8")
    assert page.count("<article ") == len(written)
    assert page.count("<figure ") == page.count("<svg ") == sum(len(each["charts"]) for each in found["results"])
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids)), "an id is used twice: a screen reader would read another chart's title"
    assert not re.search(r"(src|href)=\"(?!#)|<script|@import|url\(", page), "the page asks something of the network"
    assert page.count("nan") == 0 or "nan" not in re.sub(r"[a-z]*nan[a-z]+|[a-z]+nan[a-z]*", "", page)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html"], "a part of it was left behind"


def test_pictures(written: dict[str, Path], tmp_path: Path) -> None:
    """Every chart as SVG that an XML parser takes, and as PNG; names do not collide."""
    pytest.importorskip("matplotlib")
    twin = tmp_path / "measure.json"
    twin.write_text(written["measure"].read_text("utf-8"), encoding="utf-8")
    files = (written["measure"], twin, written["verify"], written["serve"])
    result = run(*files, "--out", tmp_path / "r.html", "--figures", tmp_path / "figures", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    charts = sum(len(each["charts"]) for each in found["results"])
    names = [Path(path) for path in found["written"][1:]]
    assert len(set(names)) == len(names) == 2 * charts and {path.suffix for path in names} == {".svg", ".png"}
    for path in names:
        if path.suffix == ".svg":
            root = ElementTree.fromstring(path.read_text("utf-8"))
            assert [child.tag.rpartition("}")[2] for child in root][:3] == ["title", "desc", "style"]
        else:
            assert path.read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figures" / "measure-2-speedup-t0.svg").is_file()


def test_names_from_a_file_are_no_markup(tmp_path: Path) -> None:
    """A model may be called anything: its name is text, in the page and in the pictures."""
    record = result_files.measured() | {"target": "<script>alert(1)</script>&amp;"}
    for row in record["rows"]:
        row["draft"] = '"><img src=x onerror=alert(1)>'
    path = tmp_path / "m.json"
    path.write_text(strict_json(record), encoding="utf-8")
    assert run(path, "--out", tmp_path / "r.html", "--title", "<b>").exit_code == 0
    page = (tmp_path / "r.html").read_text("utf-8")
    assert "<script" not in page and "<img" not in page and "<title>&lt;b&gt;</title>" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;amp;" in page


def edited(change: Any) -> str:
    record = result_files.measured()
    change(record)
    return strict_json(record)


LINES = [strict_json(line) for line in result_files.batch()[:3]]
TRACE = list(result_files.trace(3).lines())

BAD = {
    "empty": ("", r"f: the file is empty: no result was written to it; run .* to its end, or name another file$"),
    "blank": (" \n\n", r"f: the file is empty"),
    "binary": (b"\x89PNG\r\n\x1a\n\xff\xfe", r"f, line 1: .*byte 0x89 is not UTF-8"),
    "zeros": (b'{"a": "\x00"}', r"f: not a result file but binary"),
    "no json": ("hello\n", r"f, line 1, column 1: not JSON"),
    "a list": ("[1, 2]", r"f: a result is a JSON object, this is a list"),
    "null": ("null", r"f: a result is a JSON object, this is null; name"),
    "a number": ("5", r"f: a result is a JSON object, this is a number; name"),
    "cut in the middle": (strict_json(result_files.measured(), indent=1)[:5000], r"f, line \d+, column \d+: cut off"),
    "cut at the end": (strict_json(result_files.text())[:-1], r"f, line 1, column \d+: cut off here"),
    "cut in a word": ('{"a": tr', r"f, line 1, column 7: cut off here"),
    "last line cut": ("\n".join([*LINES[:2], LINES[2][:80]]), r"f, line 3, column \d+: cut off here"),
    "middle line broken": ("\n".join([LINES[0], "{]", LINES[2]]), r"f, line 2, column 2: not JSON"),
    "line of another kind": ("\n".join([LINES[0], "{}"]), r"f, line 2, key text: missing"),
    "unknown kind": ('{"kind": "weather"}', r"f: kind 'weather' is no result .* known: trace, texts"),
    "unknown keys": ('{"a": 1, "b": 2}', r"f: its keys \(a, b\) are those of no result"),
    "no keys": ("{}", r"f: its keys \(none\)"),
    "other version": (edited(lambda r: r.update(version=2)), r"f, key version: version 2 of a measure result"),
    "other trace version": (TRACE[0].replace('"trace": 1', '"trace": 7'), r"f, key trace: version 7 of a trace"),
    "other paper version": (
        strict_json(result_files.papers()[0] | {"version": 999}), r"f, key \w+: version 999 of an outrider paper result"
    ),
    "missing key": (edited(lambda r: r["rows"][3].pop("draft")), r"f, key rows\[3\]\.draft: missing"),
    "deep key": (edited(lambda r: r["rows"][4]["stats"].pop("runs")), r"f, key rows\[4\]\.stats\.runs: missing"),
    "a text for a number": (edited(lambda r: r["rows"][4].update(speedup="2")), r"rows\[4\]\.speedup: not a number"),
    "a number for a list": (edited(lambda r: r.update(rows=3)), r"key rows: not a list but 3"),
    "half an interval": (edited(lambda r: r["rows"][4].update(speedup_interval=[1])), r"_interval: not two numbers"),
    "impossible depths": (
        edited(lambda r: [row["stats"].update(depths=[[1, 2]]) for row in r["rows"]]),
        r"depths\[0\]: 2 guesses kept of 1",
    ),
    "impossible run": (
        "\n".join([TRACE[0], TRACE[1].replace('"accepted": ', '"accepted": 9')]),
        r"f, line 2, key accepted: 9\d guesses kept of 5",
    ),
    "two objects": (edited(lambda r: None) + "\n{}", r"f, line 2: a measure result is one JSON object"),
    "two objects and gaps": ("\n" + edited(lambda r: None) + "\n\n{}", r"f, line 4: a measure result is one .* second"),
    "a line behind a gap": ("\n\n" + "[" * 100_000, r"f, line 3: cannot be read as JSON"),
    "deep in many lines": ("[\n" * 100_000, r"f: cannot be read as JSON"),
    "impossible depths of one line": (
        "\n".join([*LINES[:2], re.sub(r'"depths": \[\[\d+', '"depths": [[-1', LINES[2])]),
        r"f, line 3, key stats\.depths\[0\]: \d+ guesses kept of -1",
    ),
    "infinite": (edited(lambda r: None).replace('"cost": 0.06', '"cost": 1e999'), r"cost: not a number but inf"),
    "deep": ("[" * 100_000, r"f, line 1"),
    "depths of no numbers": (
        edited(lambda r: [row["stats"].update(depths=[["a", None]]) for row in r["rows"]]),
        r"f[,:] .*depths|f: a value in it",
    ),
    "a huge number": (edited(lambda r: r["rows"][4].update(speedup=10**400)), r"f[,:]"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named(name: str, tmp_path: Path) -> None:
    """One line with the file, the line where there are lines, and the key; no page is written."""
    content, match = BAD[name]
    path = tmp_path / "f"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    result = run(path, "--out", tmp_path / "r.html")
    assert isinstance(result.exception, BadOption), result.output
    message = str(result.exception)
    assert re.search(match, message), message
    assert "\n" not in message and str(path) in message and not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    ("lines", "says"), [(slice(6, 7), "0 charts; 1 of 1 text"), (slice(7), "3 charts; 1 of 7 texts")]
)
def test_failures_of_a_batch_are_told(lines: slice, says: str, tmp_path: Path) -> None:
    """A file of nothing but failures was "texts, 0 charts", and its page had no headline."""
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(strict_json(line) + "\n" for line in result_files.batch()[lines]), encoding="utf-8")
    result = run(path, "--out", tmp_path / "r.html")
    assert result.exit_code == 0 and f"texts, {says} failed\n" in result.output
    told = json.loads(run(path, "--out", tmp_path / "r.html", "--json").stdout)["results"][0]
    assert (
        told["failures"] == f"{says.split('; ')[1]} failed" and f"{told['failures']}; the table" in told["missing"][0]
    )
    assert ">Failed<" in (tmp_path / "r.html").read_text("utf-8")


def test_failures_behind_many_texts_are_in_the_table(tmp_path: Path) -> None:
    """The table shows the first hundred; a failure behind them was counted, and its reason nowhere."""
    texts, failed = result_files.batch()[:6] * 20, result_files.batch()[6]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(strict_json(line) + "\n" for line in [*texts, failed]), encoding="utf-8")
    assert run(path, "--out", tmp_path / "r.html").exit_code == 0
    page = (tmp_path / "r.html").read_text("utf-8")
    assert "error: the prompt is empty" in page and "100 of 121: those that failed" in page


def test_places_that_are_no_files(written: dict[str, Path], tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(written["serve"])
    for words, match in (
        ((tmp_path,), "this is a directory"),
        ((tmp_path / "none.json",), "cannot be read"),
        ((written["serve"], written["serve"]), "is named twice; name each"),
        ((written["serve"], link), r"is named twice \(as .*serve.json, too\)"),
        ((written["serve"], "--out", tmp_path), "this is a directory; name a file in it"),
        ((written["serve"], "--out", written["serve"]), "one of the result files"),
        ((written["serve"], "--figures", written["load"]), "--figures .* is a file; name a directory"),
        ((written["serve"], "--figures", tmp_path / "r.html"), "--out and --figures are both"),
        ((written["serve"], "--figures", written["load"] / "in" / "it"), "is a file; name a directory"),
    ):
        result = run(*words, *(() if "--out" in words else ("--out", tmp_path / "r.html")))
        assert isinstance(result.exception, BadOption) and re.search(match, str(result.exception)), result.exception
        assert not (tmp_path / "r.html").exists(), "the page was written first, and then --figures was refused"
    assert run().exit_code == 2
