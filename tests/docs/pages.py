"""The documents, and what stands in them: fenced blocks, prose, headings.

A fenced block says by its first line what it is:

    ```python               an example: run, one namespace per document, with a tiny model in place of the named ones
    ```python file=NAME     a file the reader writes: saved, so that later examples can import it
    ```python quote=PATH    a quotation: must stand in that source file, character for character
    ```sh                   commands for a shell: every ``outrider`` and ``make`` line must be a valid one
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")] + sorted(DOCS.rglob("*.md"))
HISTORY = [document for document in DOCUMENTS if document.parent.name == "decisions" or document.name == "CHANGELOG.md"]
"""What was once the case: modules, tests and files go by the names they had."""
PRESENT = [document for document in DOCUMENTS if document not in HISTORY]


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    document: Path
    line: int  # of the first line inside
    language: str
    kind: str  # "", file or quote
    name: str
    text: str


def blocks(document: Path) -> Iterator[Block]:
    lines = text_of(document).splitlines()
    start = None
    for number, line in enumerate(lines, 1):
        if not line.startswith("```"):
            continue
        if start is None:
            start, info = number, line[3:].split()
            language, (kind, _, name) = (info or [""])[0], (info[1] if info[1:] else "").partition("=")
        else:
            yield Block(document, start + 1, language, kind, name, "\n".join(lines[start : number - 1]) + "\n")
            start = None
    assert start is None, f"{document.name}:{start}: a block that does not end"


def prose(document: Path) -> str:
    """Everything outside fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text_of(document), flags=re.MULTILINE | re.DOTALL)


def links(document: Path) -> list[tuple[str, str]]:
    """What each link to a file or a heading says, and where it leads."""
    found = re.findall(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", prose(document))
    return [(says, leads) for says, leads in found if not leads.startswith(("https://", "http://"))]


def anchors(document: Path) -> set[str]:
    """The fragments GitHub gives to headings: lower case, punctuation dropped, spaces to hyphens."""
    headings = re.findall(r"^#+ (.*)$", prose(document), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


ALL = [block for document in DOCUMENTS for block in blocks(document)]
QUOTES = [block for block in ALL if block.kind == "quote"]


def place_of(block: Block) -> str:
    return f"{name_of(block.document)}:{block.line}"
