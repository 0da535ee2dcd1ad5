"""``outrider models``: what is listed, what everything occupies, and what is removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cli.models import app
from outrider.errors import BadOption, ModelCorrupt, ModelError, ModelNotFound
from outrider.models.hub import names
from tiny_gguf import NAME


def test_command_line(cache: Path, wheel: Path, quick_convert: list[Path]) -> None:
    run = CliRunner().invoke
    absent = json.loads(run(app, ["list", "--json"]).stdout)
    assert [(row["name"], row["state"], row["path"]) for row in absent[:1]] == [(NAME, "not pulled", None)]
    assert isinstance(run(app, ["path", NAME]).exception, ModelNotFound)
    assert isinstance(run(app, ["path", "gpt2"]).exception, ModelNotFound)

    assert run(app, ["pull", NAME]).stdout == f"{cache / NAME}\n"
    assert run(app, ["path", NAME]).stdout == f"{cache / NAME}\n"
    assert json.loads(run(app, ["path", NAME, "--json"]).stdout) == {"name": NAME, "path": str(cache / NAME)}
    assert str(cache / NAME) in run(app, ["list"]).stdout
    row, *_ = json.loads(run(app, ["list", "--check", "--json"]).stdout)
    assert row["state"] == "checked" and row["bytes"] > 0

    (cache / NAME / "tokenizer.json").write_text("{}")
    bad = run(app, ["list", "--json"])
    assert json.loads(bad.stdout)[0]["state"] == "corrupt" and isinstance(bad.exception, ModelCorrupt)
    (cache / NAME / "outrider.json").write_text("{")
    assert isinstance(run(app, ["list"]).exception, ModelError)
    assert run(app, ["pull", NAME, "--force", "--json"]).exit_code == 0
    assert run(app, ["list", "--check"]).exit_code == 0


@pytest.fixture
def full_cache(cache: Path, wheel: Path, quick_convert: list[Path], tiny_gguf: Path, tmp_path: Path) -> Path:
    """The default model and a .gguf file, both prepared for an engine, another directory's files, and shared code."""
    mine = Path(shutil.copy(tiny_gguf, tmp_path / "a-model-of-mine-with-quite-a-long-name.Q4_K_M.gguf"))
    for number, source in enumerate([names.pull(NAME), names.pull(str(mine)), tmp_path / "own"]):
        folder = cache / f"numba-{number:032}"
        folder.mkdir()
        (folder / "weights.bin").write_bytes(bytes(2_000_000))
        (folder / "prepared.json").write_text(json.dumps({"source": str(source), "weights": "bfloat16"}))
    (cache / "compiled-0123").mkdir()
    (cache / "compiled-0123/code.nbc").write_bytes(bytes(3_000_000))
    return cache


def test_everything_a_model_occupies_is_shown(full_cache: Path, tmp_path: Path) -> None:
    """A GGUF file of 1.1 GB took 6.8 GB of cache, and the list showed half of it."""
    run = CliRunner().invoke
    rows = {row["name"]: row for row in json.loads(run(app, ["list", "--json"]).stdout)}
    converted = sum(file.stat().st_size for file in (full_cache / NAME).iterdir())
    assert 2_000_000 + converted <= rows[NAME]["bytes"] < 2_000_000 + converted + 1000
    assert [part["kind"] for part in rows[NAME]["parts"]] == ["converted", "prepared"]
    assert rows[str(tmp_path / "own")]["state"] == "prepared"
    told = json.loads(run(app, ["du", "--json"]).stdout)
    there = sum(
        file.stat().st_size for file in full_cache.rglob("*") if file.is_file() and "checksums" not in str(file)
    )
    assert told["bytes"] == there == sum(entry["bytes"] for entry in told["entries"])
    shown = run(app, ["du"]).stdout
    assert "compiled code: 3 MB" in shown and "numba, bfloat16" in shown and f"in {full_cache}" in shown


def test_lists_fit_80_columns(full_cache: Path) -> None:
    """The licence of t5-ende ended in the middle of a sentence, behind a path that pushed everything off the screen."""
    shown = CliRunner().invoke(app, ["list"]).stdout.splitlines()
    assert all(len(line) <= 80 for line in shown if not line.startswith("  /")), "but for paths, which must be whole"
    assert any(line.startswith("t5-ende") and line.endswith("research only (WMT news data)") for line in shown)
    assert f"  {full_cache / NAME}" in shown, "on a line of its own"
    used = CliRunner().invoke(app, ["du"]).stdout.splitlines()
    assert all(len(line) <= 80 for line in used[:-1])


def test_removing(full_cache: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    refused = run(app, ["rm", NAME])
    assert isinstance(refused.exception, BadOption) and "--yes" in str(refused.exception)
    assert (full_cache / NAME).is_dir()
    assert isinstance(run(app, ["rm", "no-such-model", "--yes"]).exception, ModelNotFound)

    only = json.loads(run(app, ["rm", NAME, "--prepared", "--yes", "--json"]).stdout)
    assert only["removed"] == [str(full_cache / f"numba-{0:032}")] and only["bytes"] > 2_000_000
    assert (full_cache / NAME).is_dir() and not (full_cache / f"numba-{0:032}").exists()
    assert f"{NAME}: removed" in run(app, ["rm", NAME, "--yes"]).stdout
    assert not (full_cache / NAME).exists()

    mine = next(tmp_path.glob("*.gguf"))
    assert run(app, ["rm", str(mine), "--yes"]).exit_code == 0
    assert not list(full_cache.glob("gguf-*")) and not (full_cache / f"numba-{1:032}").exists()
    assert mine.is_file(), "the user's own file stays"
    assert (full_cache / f"numba-{2:032}").is_dir() and (full_cache / "compiled-0123").is_dir()


def test_what_removed_engines_left_is_shown_and_removed(full_cache: Path) -> None:
    """Files of an engine that is no longer there looked like files that a model needs."""
    run = CliRunner().invoke
    left = full_cache / f"onnxruntime-{0:032}"
    left.mkdir()
    (left / "weights.bin").write_bytes(bytes(5_000_000))
    (left / "prepared.json").write_text(json.dumps({"source": str(full_cache / NAME), "weights": "float32"}))
    shown = run(app, ["du"]).stdout
    assert "no longer used: 5 MB\n  onnxruntime, float32" in shown
    assert f"{left.name}" not in json.dumps(json.loads(run(app, ["list", "--json"]).stdout)), "no part of the model"
    assert run(app, ["rm", "no longer used", "--yes"]).exit_code == 0
    assert not left.exists() and (full_cache / f"numba-{0:032}").is_dir()
    assert "no longer used" not in run(app, ["du"]).stdout


def test_help_names_the_cache() -> None:
    """OUTRIDER_CACHE was in error messages only."""
    from outrider.cli.main import app as whole

    for command in (["--help"], ["models", "--help"]):
        assert "OUTRIDER_CACHE" in CliRunner().invoke(whole, command).stdout
