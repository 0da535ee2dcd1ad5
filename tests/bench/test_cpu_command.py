"""Comparing engines: who takes part, what is refused, and the real thing on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import library
from outrider.bench.cpu import CpuPlan, contenders, draft_place
from outrider.bench.start import STAGES, start
from outrider.cli.main import app
from outrider.errors import BadOption, OutriderError
from outrider.models.hub.checkpoint import look

TASKS = {"first": ["the end", "then and there"], "second": ["a b c a b c a b"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(library.save_llama(tmp_path_factory.mktemp("cpu") / "target"))


# --- who takes part ----------------------------------------------------------------------------------


def test_seats(folder: str, tmp_path: Path) -> None:
    """Ours gets the name it was asked by, others the checkpoint, or a model of their own."""
    plan = CpuPlan(
        folder, ("outrider", "transformers", "transformers:bfloat16", "openvino"), draft=folder,
        models={"openvino": str(tmp_path)}, pythons={"openvino": "/other/python"},
    )  # fmt: skip
    found = contenders(plan, look(folder))
    assert [(s.name, s.dtype, s.ways) for s in found] == [
        ("outrider", "auto", ("plain", "speculative")),
        ("transformers", "float32", ("plain", "lookup", "assisted")),
        ("transformers:bfloat16", "bfloat16", ("plain", "lookup", "assisted")),
        ("openvino", "float32", ("plain",)),
        ("openvino", "float32", ("lookup",)),
    ]
    assert found[3].target == str(tmp_path) and found[3].python == "/other/python" and found[1].draft == folder


def test_drafts_that_others_can_use(folder: str, tmp_path: Path) -> None:
    assert draft_place(folder, "auto") is None and draft_place(folder, "copy") is None
    assert draft_place(folder, folder) == folder and draft_place(folder, f"copy>{folder}") is None
    partner = draft_place("gpt-small", "auto")
    assert partner is not None and Path(partner).name == "draft" and draft_place(folder, "gpt-small") == partner


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engines", "exllama"], "known: outrider"),
        (["--engines", "llamacpp:float16"], "as its file has them"),
        (["--engines", "outrider,outrider"], "twice"),
        (["--engines", ","], "empty"),
        (["--engines", "vllm:int8"], "dtype must be"),
        (["--peer-python", "vllm"], "ENGINE=PATH"),
        (["--peer-python", "vllm=/no/such/python"], "does not exist"),
        (["--peer-model", "what=."], "must be one of"),
        (["--tokens", "1"], "at least 2"),
        (["--threads", "0"], "at least 1"),
        (["--temperature", "-1"], "at least 0"),
        (["--dtype", "int3"], "dtype must be"),
        (["--repeats", "0"], "at least 1"),
        (["--out", "/no/such/place/x.json"], "make it first"),
    ],
)
def test_mistakes_are_told_before_anything_is_loaded(words: list[str], said: str, folder: str) -> None:
    ended = CliRunner().invoke(app, ["bench", "cpu", folder, *words])
    assert isinstance(ended.exception, OutriderError | BadOption) and said in str(ended.exception)


# --- the real thing, on a tiny model -----------------------------------------------------------------


@pytest.mark.slow
def test_ours_and_transformers(folder: str, tmp_path: Path) -> None:
    """Both engines in their own processes, the target as its own draft: the same texts, forced length, a table."""
    out, prompts = tmp_path / "report.json", tmp_path / "prompts.jsonl"
    lines = [{"task": task, "prompt": text} for task, texts in TASKS.items() for text in texts]
    prompts.write_text("\n".join(map(json.dumps, [*lines, {"task": "first", "prompt": "too long " * 99}])))
    words = ["bench", "cpu", folder, "--engines", "outrider,transformers", "--draft", folder, "--prompts", str(prompts)]
    words += ["--tokens", "12", "--temperature", "0", "--temperature", "1", "--threads", "1", "--out", str(out)]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    report = json.loads(out.read_text())
    ways = ["outrider plain", "outrider speculative"] + [f"transformers {w}" for w in ("plain", "lookup", "assisted")]
    assert list(report["engines"]) == ways and {e["dtype"] for e in report["engines"].values()} == {"float32"}
    table = {(r["temperature"], r["task"], r["way"]): r for r in report["rows"]}
    for way in ways:
        row = table[0.0, "all", way]
        assert row["prompts"] == 3 and row["tokens_per_second"] > 0 and row["first_seconds"] > 0
        assert row["agreement"] >= 1  # of the same weights, though rounded elsewhere
        assert table[1.0, "all", way]["tokens_per_second"] > 0
    assert table[0.0, "all", "outrider speculative"]["same_as_plain"] == 3
    assert report["command"].startswith(f"outrider bench cpu {folder} --engines outrider,transformers")
    assert "temperature 1: tokens per second by task" in ended.output.replace("\n", " ")
    assert report["left_out"] == 1 and "left out" in ended.output


@pytest.mark.slow
def test_from_the_start_to_the_first_token(folder: str) -> None:
    report = start(folder, draft="none", tokens=4, repeats=1)
    assert [stage["stage"] for stage in report["stages"]] == list(STAGES)
    assert (report["engine"], report["weights"]) == ("torch", "float32")
    seconds = [stage["seconds"]["median"] for stage in report["stages"]]
    assert seconds == sorted(seconds) and seconds[0] > 0
    if "resident" in report["stages"][0]:  # on Linux
        ended = report["stages"][-1]
        assert 0 < ended["beyond_libraries"] < ended["peak"] - ended["code"] < ended["peak"]


def test_a_start_that_fails(tmp_path: Path) -> None:
    with pytest.raises(OutriderError, match="no config.json"):
        start(str(tmp_path), repeats=1)
