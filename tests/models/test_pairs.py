"""Pairs by name: what is in the package loads with its own draft, what is missing says how to get it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import library
import outrider
from outrider.cli.main import app
from outrider.errors import ModelError, ModelNotFound
from outrider.models.hub import names, pairs


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with one pair of the two, made of tiny models."""
    home = tmp_path_factory.mktemp("pairs")
    library.save_t5(home / "t5-ende" / "target")
    library.save_t5(home / "t5-ende" / "draft", seed=1)
    return home


@pytest.fixture
def package(stocked: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pairs, "home", lambda: stocked)
    return stocked


def test_the_name_is_the_target_with_its_draft(package: Path) -> None:
    """Catches a pair whose draft is left unused, or used in place of the target."""
    pair, plain = outrider.load("t5-ende"), outrider.load("t5-ende", draft=None)
    assert pair.drafter.name == "t5-ende draft" and plain.drafter.name == "none"
    assert names.resolve("t5-ende") == package / "t5-ende" / "target"
    one, two = (llm.generate("the end", max_new_tokens=12) for llm in (pair, plain))
    assert one.tokens == two.tokens and one.stats.drafted > 0 and one.stats.drafter_error is None


def test_the_command_line_translates(package: Path) -> None:
    """Catches a source that goes to the decoder: the answer must be that of the text as the encoder's input."""
    result = CliRunner().invoke(app, ["generate", "--target", "t5-ende", "the end", "--json", "-n", "6"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["tokens"] == outrider.load("t5-ende", draft=None).generate("the end", max_new_tokens=6).tokens
    assert answer["stats"]["drafter"] == "t5-ende draft"


def test_they_are_listed(package: Path) -> None:
    rows = {r["name"]: r for r in json.loads(CliRunner().invoke(app, ["models", "list", "--json"]).stdout)}
    assert rows["t5-ende"]["state"] == "shipped" and rows["t5-ende"]["bytes"] > 1000
    assert rows["gpt-small"]["state"] == "missing" and rows["gpt-small"]["path"] is None
    shown = CliRunner().invoke(app, ["models", "path", "t5-ende"]).stdout
    assert shown == f"{package / 't5-ende' / 'target'}\n"


def test_a_missing_pair_names_the_remedy(package: Path) -> None:
    """Catches a broken installation that ends in a search of the hub."""
    with pytest.raises(ModelNotFound, match=r"install outrider again, or train it with `python recipes/gpt_pair.py"):
        outrider.load("gpt-small")
    with pytest.raises(ModelNotFound, match="did you mean t5-ende"):
        outrider.load("t5-end")


def test_what_is_in_the_package_is_not_fetched(package: Path) -> None:
    assert names.pull("t5-ende") == package / "t5-ende" / "target"
    with pytest.raises(ModelError, match="install outrider again"):
        names.pull("t5-ende", force=True)


def test_a_directory_of_another_kind_is_no_pair(tmp_path: Path) -> None:
    """Catches a model directory whose subdirectories are taken for a pair, and half of a pair taken for one."""
    library.save_llama(tmp_path / "target")
    assert not pairs.is_pair(tmp_path)
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        outrider.load(str(tmp_path))
    library.save_llama(tmp_path / "draft")
    assert pairs.is_pair(tmp_path)
    library.save_llama(tmp_path)
    assert not pairs.is_pair(tmp_path)


@pytest.mark.parametrize("name", list(pairs.SHIPPED))
def test_the_shipped_pairs(name: str) -> None:
    """The real ones: they load, speculate, keep most guesses, and say the same as without."""
    if not pairs.is_pair(pairs.home() / name):
        pytest.skip(f"{name} is not in this checkout")
    models = sum(pairs.size(pairs.home() / name / part) for part in ("target", "draft"))
    assert models <= {"t5-ende": 25, "gpt-small": 10}[name] * 1_000_000
    pair, plain = outrider.load(name), outrider.load(name, draft=None)
    prompt = "I would like to buy a train pending to the city."
    for options in ({}, {"temperature": 1.0, "coupling": "gumbel", "seed": 3}, {"gamma": 4}):
        one, two = (llm.generate(prompt, max_new_tokens=24, **options) for llm in (pair, plain))
        assert one.tokens == two.tokens and one.stats.drafter_error is None
    assert one.stats.accepted > 0, "of four guesses at a time; a policy would ask the clock"
