"""Lay the documentation out for the site generator: docs, and a page for every file of the repository they link to.

    python .ci/docs_site.py build/docs

Pages link to sources, tests and recipes by their place in the repository, as a code host shows them. A site has only
pages: so a file outside ``docs`` that a page links to becomes one below ``files/`` (Markdown as it is, code with line
numbers, a folder as a list), and links are turned to it. A link that leads nowhere is an error.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md")
"""Files outside ``docs`` that the site's navigation names."""

LINK = re.compile(r"(?<=\]\()(?!https?://|mailto:|#)([^)\s#]+)(?=(?:#[^)\s]*)?\))")
FENCED = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)
INFO = re.compile(r"^```(\w+) (?:quote|file)=(\S+)$", re.MULTILINE)
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml"}


def lay_out(out: Path) -> int:
    """Write every page below ``out`` -> how many."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(ROOT / "docs", out)
    waiting = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")] + list(ALWAYS)
    done: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        text, linked = turned(name)
        waiting += linked
        target = out / page(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return len(done)


def turned(name: str) -> tuple[str, list[str]]:
    """The page of a file with links between pages, and the files outside ``docs`` that it links to."""
    linked: list[str] = []

    def turn(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[1]))
        if target.startswith("..") or not (ROOT / target).exists():
            raise SystemExit(f"{name}: {match[1]} leads nowhere")
        if not target.startswith("docs/"):
            linked.append(target)
        return posixpath.relpath(page(target), posixpath.dirname(page(name)) or ".")

    return INFO.sub(r'```\1 title="\2"', outside_code(content(name), lambda prose: LINK.sub(turn, prose))), linked


def page(name: str) -> str:
    """Where a file of the repository stands in the site."""
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return f"files/{name}" if name.endswith(".md") else f"files/{name}.md"


def content(name: str) -> str:
    """A file as Markdown."""
    path = ROOT / name
    if path.is_dir():
        inside = sorted(p.name for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        return f"# {name}\n\n" + "\n".join(f"- [{file}]({path.name}/{file})" for file in inside) + "\n"
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    language = LANGUAGES.get(path.suffix, "text")
    return f'# {name}\n\n`````{language} linenums="1"\n{text.rstrip()}\n`````\n'


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text with ``change`` made to everything but fenced blocks."""
    parts, last = [], 0
    for block in FENCED.finditer(text):
        parts += [change(text[last : block.start()]), block.group()]
        last = block.end()
    return "".join([*parts, change(text[last:])])


if __name__ == "__main__":
    print(f"{lay_out(Path(sys.argv[1]))} pages")
