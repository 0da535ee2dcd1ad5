"""MkDocs hook: pages may link to any file of the repository, as they do on a code host.

A link that leaves ``docs`` (to a source file, a test, a recipe, the changelog) gets a page of its own below ``files/``:
Markdown as it is, code with line numbers, a folder as a list. So the site is complete by itself, and a link to a file
that is not there fails the build (``make docs`` is strict).
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?!https?://|mailto:|#)([^)\s#]+)((?:#[^)\s]*)?)(?=\))")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml", "Makefile": "make", ".txt": "text"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every file outside ``docs`` that a page, or such a file in turn, links to."""
    waiting = [
        (f"docs/{f.src_uri}", Path(f.abs_src_path).read_text(encoding="utf-8"))
        for f in files.documentation_pages()
        if f.abs_src_path
    ]
    waiting += [(name, "") for name in ("CHANGELOG.md", "CONTRIBUTING.md")]
    done: set[str] = set()
    while waiting:
        name, text = waiting.pop()
        if not name.startswith("docs/") and name not in done:
            done.add(name)
            text = _page(name)
            files.append(File.generated(config, _uri(name), content=text))
        for linked in _leaving(name, text):
            if linked not in done and (ROOT / linked).exists():
                waiting.append((linked, ""))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links by place in the repository into links by place in the site."""
    own = page.file.src_uri
    name = next(
        (
            n
            for n in (own.removeprefix("files/"), own.removeprefix("files/").removesuffix(".md"))
            if own.startswith("files/") and (ROOT / n).exists()
        ),
        f"docs/{own}",
    )
    return _outside_code(markdown, lambda text: LINK.sub(lambda m: _turned(name, own, m[1]) + m[2], text))


def _turned(name: str, own: str, link: str) -> str:
    target = _resolved(name, link)
    if target is None or not (ROOT / target).exists():
        return link  # MkDocs says that it leads nowhere
    there = target.removeprefix("docs/") if target.startswith("docs/") else _uri(target)
    return posixpath.relpath(there, posixpath.dirname(own) or ".")


def _leaving(name: str, text: str) -> set[str]:
    """The files outside ``docs`` that a page links to, by their place in the repository."""
    found: set[str] = set()

    def note(prose: str) -> str:
        found.update(t for m in LINK.finditer(prose) if (t := _resolved(name, m[1])) and not t.startswith("docs/"))
        return prose

    _outside_code(text if text else _page(name), note)
    return found


def _resolved(name: str, link: str) -> str | None:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(link)))
    return None if target.startswith("..") else target


def _uri(name: str) -> str:
    return f"files/{name}" if name.endswith(".md") else f"files/{name}.md"


def _page(name: str) -> str:
    place = ROOT / name
    if place.is_dir():
        inside = sorted(p.name for p in place.iterdir() if p.is_file() and not p.name.startswith("."))
        return f"# {name}\n\n" + "\n".join(f"- [{n}]({posixpath.basename(name)}/{n})" for n in inside) + "\n"
    text = place.read_text(encoding="utf-8")
    if place.suffix == ".md":
        return text
    language = LANGUAGES.get(place.suffix) or LANGUAGES.get(place.name, "text")
    return f'# {name}\n\n````{language} linenums="1"\n{text.rstrip()}\n````\n'


def _outside_code(text: str, change) -> str:  # type: ignore[no-untyped-def]
    """Apply ``change`` to everything but fenced blocks."""
    parts, last = [], 0
    for block in FENCED.finditer(text):
        parts += [change(text[last : block.start()]), block.group()]
        last = block.end()
    return "".join([*parts, change(text[last:])])
