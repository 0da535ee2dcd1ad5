"""Container file, systemd unit and dashboard name options, files and metrics that exist."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from outrider.cli.main import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
pytestmark = pytest.mark.skipif(find_spec("outrider.serve") is None, reason="there is no server in this version")


@pytest.fixture(scope="module")
def serve() -> Any:
    """The command ``outrider serve``."""
    commands: Any = typer.main.get_command(app)
    return commands.commands["serve"]


def check_options(words: list[str], serve: Any) -> None:
    known = {name for option in serve.params for name in option.opts}
    assert [word for word in words if word.startswith("--") and word not in known] == []
    serve.make_context("serve", list(words))  # raises for a value of the wrong kind


def test_the_container_starts_the_server(serve: Any) -> None:
    """Catches options, extras and files that were renamed since."""
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    steps: dict[str, list[str]] = {}
    for name, rest in lines:
        steps.setdefault(name, []).append(rest)
    assert json.loads(steps["ENTRYPOINT"][0]) == ["outrider", "serve"]
    check_options(json.loads(steps["CMD"][0]), serve)
    for copied in steps["COPY"]:
        assert all((ROOT / name).exists() for name in copied.split()[:-1]), copied
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = re.findall(r"'\.\[([\w,]+)\]'", steps["RUN"][0])
    assert set(wanted.split(",")) <= set(extras)
    assert "/health" in steps["HEALTHCHECK"][0] and steps["USER"] == ["outrider"]


def test_the_unit_starts_the_server_and_waits_for_it_to_drain(serve: Any) -> None:
    """systemd would kill answers under way if it waited shorter than the server lets them end."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((DEPLOY / "outrider.service").read_text())
    words = shlex.split(unit["Service"]["ExecStart"])
    assert words[:2] == ["/opt/outrider/bin/outrider", "serve"]
    check_options(words[2:], serve)
    assert float(unit["Service"]["TimeoutStopSec"]) > float(words[words.index("--drain") + 1])


def test_the_dashboard_reads_metrics_that_the_server_has() -> None:
    """A renamed metric leaves an empty panel."""
    board = json.loads((DEPLOY / "grafana.json").read_text())
    said = (ROOT / "src" / "outrider" / "serve" / "metrics.py").read_text()
    has = set(re.findall(r'"((?:outrider_|vllm:)\w+)"', said))
    read: set[str] = set()
    for panel in board["panels"]:
        for target in panel["targets"]:
            read |= set(re.findall(r"(?:outrider_|vllm:)\w+", target["expr"]))
    plain = {re.sub(r"_(total|bucket)$", "", name) for name in read}
    assert plain and plain <= has, plain - has
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
