"""A drafter of one's own by name: ``file.py:Class`` and ``package.module:Class``, and everything wrong with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import library
import outrider
from outrider.cli.main import app
from outrider.errors import BadOption

GOOD = """
from __future__ import annotations
from dataclasses import dataclass
from beside import WORD
from outrider.drafters import Copying
from outrider.core.protocols import Drafter

@dataclass(frozen=True)
class Mine:
    name: str = WORD
    def start(self, rows, shape, target):
        return Copying().start(rows, shape, target)

@dataclass(frozen=True)
class Needy:
    period: int
    name: str = "needy"
    def start(self, rows, shape, target):
        return Copying().start(rows, shape, target)

class Raises(Mine):
    def __init__(self):
        raise KeyError("no table")

class NoStart:
    name = "x"

class Short(Mine):
    def start(self, rows):
        return None

class Number(Mine):
    name = 3
    def __init__(self): ...

made = Needy(3)
number = 7
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("own")
    library.save_llama(root / "target")
    (root / "mine.py").write_text(GOOD, encoding="utf-8")
    (root / "beside.py").write_text("WORD = 'my own'\n", encoding="utf-8")
    (root / "broken.py").write_text("x = 1\ny = undefined\n", encoding="utf-8")
    (root / "syntax.py").write_text("def\n", encoding="utf-8")
    (root / "leaves.py").write_text("import sys\nsys.exit('usage: leaves')\n", encoding="utf-8")
    (root / "importing.py").write_text("import no_such_module_at_all\n", encoding="utf-8")
    return root


@pytest.mark.parametrize(("draft", "name"), [("mine.py:Mine", "my own"), ("mine.py:made", "needy")])
def test_a_class_or_an_object_in_a_file(draft: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter of one's own could be used from Python only."""
    monkeypatch.chdir(folder)
    words = ["generate", "a b c a b c a b", "--target", "target", "-n", "8", "--gamma", "2", "--json", "--draft"]
    result = CliRunner().invoke(app, [*words, draft])
    assert result.exit_code == 0, result.output + repr(result.exception)
    stats = json.loads(result.stdout)["stats"]
    assert stats["drafter"] == name and stats["drafter_error"] is None and stats["drafted"] > 0
    plain = CliRunner().invoke(app, [*words, "none"])
    assert json.loads(plain.stdout)["tokens"] == json.loads(result.stdout)["tokens"]


def test_a_class_in_a_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = outrider.load(str(folder / "target"))
    assert target.with_draft("outrider.drafters.ngram:Ngram").drafter.name == "ngram"
    with pytest.raises(BadOption, match=r"no module 'mine'.*PYTHONPATH.*file\.py:Class"):
        target.with_draft("mine:Mine")
    monkeypatch.syspath_prepend(str(folder))
    assert target.with_draft("mine:Mine").drafter.name == "my own"
    with pytest.raises(BadOption, match=r"importing importing raised ModuleNotFoundError.*no_such_module_at_all"):
        target.with_draft("importing:Mine")


@pytest.mark.parametrize(
    ("draft", "says"),
    [
        ("gone.py:Mine", r"the file gone\.py does not exist"),
        ("mine.py:Mien", r"mine\.py has no 'Mien'; it defines Mine, Needy"),
        ("mine.py", r"name the class in it, as mine\.py:Class"),
        ("mine.py:Needy", r"Needy needs arguments \(period\).*mine\.py:mine"),
        ("mine.py:Raises", r"making a Raises raised KeyError.*mine\.py, line"),
        ("mine.py:NoStart", r"NoStart is no drafter: it has no `start`"),
        ("mine.py:number", r"int is no drafter: it has no `name` and `start`"),
        ("mine.py:Short", r"Short\.start must take \(rows, shape, target\)"),
        ("mine.py:Number", r"`name` of Number must be a text, got 3"),
        ("broken.py:Mine", r"running broken\.py raised NameError.*broken\.py, line 2"),
        ("syntax.py:Mine", r"running syntax\.py raised SyntaxError.*line 1"),
        ("leaves.py:Mine", r"running leaves\.py raised SystemExit: usage"),
        ("copy>mine.py:Mine", r"cannot check guesses; put a model"),
    ],
)
def test_what_is_wrong_with_it(draft: str, says: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says the file, the class and what to do; none is a traceback."""
    monkeypatch.chdir(folder)
    with pytest.raises(BadOption, match=says):
        outrider.load("target", draft=draft)
