"""Public drafts: ``draft="auto"`` names one for its target, and fetches none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import library
import outrider
from outrider.drafters.public_drafts import PUBLIC, public_draft
from outrider.models.hub import remote

PAGE = Path(__file__).parents[2] / "docs" / "public-drafts.md"
DRAFT = "RedHatAI/Qwen3-8B-speculator.eagle3"


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("Qwen/Qwen3-8B", DRAFT),
        ("/models/Qwen3-8B", DRAFT),
        ("Qwen/Qwen3-8B-Base", None),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.dflash"),
        ("files/Qwen3-8B-Base-Q4_K_M.gguf", None),
        ("smollm2-135m", None),
    ],
)
def test_which_is_named(target: str, draft: str | None) -> None:
    """A draft for the base model is none for its fine-tuned ones: names that only begin alike are different."""
    assert public_draft(target) == draft


def test_auto_names_it_once_and_fetches_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetched(*_: object, **__: object) -> None:
        raise AssertionError("nothing may be fetched unasked")

    monkeypatch.setattr(remote, "snapshot", fetched)
    target = str(library.save_llama(tmp_path / "Qwen3-8B"))
    outrider.load(target, draft="copy", dtype="float32")
    assert DRAFT not in capsys.readouterr().err, "another draft was asked for"
    for _ in range(2):
        outrider.load(target, dtype="float32")
    said = [line for line in capsys.readouterr().err.splitlines() if DRAFT in line]
    line = f"a public draft for {target}: --draft {DRAFT} (draft={DRAFT!r}) fetches and uses it; 'auto' does not"
    assert said == [line], "once"


def test_the_page_has_the_same_table() -> None:
    """Catches a draft that is added to one of both."""
    found: dict[str, tuple[str, ...]] = {}
    target = ""
    for line in PAGE.read_text("utf-8").split("## Which there are")[1].split("\n## ")[0].splitlines():
        cells = [re.findall("`([^`]+)`", cell) for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[1]:
            target = cells[0][0] if cells[0] else target
            found[target] = (*found.get(target, ()), *cells[1])
    assert found == dict(PUBLIC)
