"""Mistakes on a recipe's command line: one line with option, value and remedy, where there was a traceback."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import beam_cost
import mistakes
import pytest

import library

RECIPES = Path(beam_cost.__file__).parent


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("{}/nothing", "/nothing': no such file or directory; known names: "),
        ("{} --beams 0", "--beams must be at least 2, got 0; choose 2 or more"),
        ("{} --draft-beams 0", "--draft-beams must be at least 1, got 0"),
        ("{} --gamma -1", "--gamma must be at least 0, got -1"),
        ("{} --prompts 1", "--prompts must be at least 2, got 1"),
        ("{} --tokens 0", "--tokens must be at least 1, got 0"),
        ("{} --draft {}/nothing", "not built in (auto, copy,"),
        ("{} --gamma 99", "gamma 99 needs a width of 100"),
    ],
)
def test_bad_words_are_one_line(
    words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library.save_llama(tmp_path)
    monkeypatch.setattr(sys, "argv", ["beam_cost.py", *words.replace("{}", str(tmp_path)).split()])
    with pytest.raises(SystemExit) as ended:
        mistakes.guarded(beam_cost.main)
    said = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2 and said.startswith("error: ") and says in said


def test_a_bug_keeps_its_traceback() -> None:
    def main() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        mistakes.guarded(main)


def test_no_recipe_shows_a_traceback_for_a_mistake() -> None:
    """Every recipe that uses Outrider in its own process is guarded."""
    for path in sorted(RECIPES.glob("*.py")):
        text = path.read_text("utf-8")
        if "__main__" in text and re.search(r"^(from|import) outrider", text, flags=re.MULTILINE):
            assert text.rstrip().endswith("    guarded(main)"), path.name
