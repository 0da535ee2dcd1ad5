"""Every link leads somewhere, every name that is linked is defined there, and every page can be found."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from pages import DOCS, DOCUMENTS, HISTORY, PRESENT, ROOT, anchors, links, name_of, prose, text_of

sys.path.insert(0, str(ROOT / ".ci"))
import docs_site


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    for _, link in links(document):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{name_of(document)}: {link} leads nowhere"
        assert ROOT in target.parents, f"{name_of(document)}: {link} leads out of the repository"
        if anchor:
            assert anchor in anchors(target), f"{name_of(document)}: {link}: no such heading in {target.name}"


def defined_in(source: str) -> set[str]:
    """Functions, classes, methods and names that are assigned, at any depth."""
    defined = re.findall(r"^\s*(?:async )?(?:def|class) (\w+)", source, flags=re.MULTILINE)
    assigned = re.findall(r"^\s*(\w+)(?:: [^=\n]+)? = ", source, flags=re.MULTILINE)
    return {*defined, *assigned}


@pytest.mark.parametrize("document", PRESENT, ids=name_of)
def test_linked_names_are_defined_there(document: Path) -> None:
    """The architecture page names the function at each stage: whoever moves one changes the page."""
    for says, link in links(document):
        name = re.fullmatch(r"`([A-Za-z_][\w.]*)`", says)
        if name and link.endswith(".py") and not name[1].endswith(".py"):
            source = text_of((document.parent / link).resolve())
            for part in name[1].split("."):
                assert part in defined_in(source), f"{name_of(document)}: {name[1]} is not defined in {link}"


@pytest.mark.parametrize("document", PRESENT, ids=name_of)
def test_files_named_by_their_place_exist(document: Path) -> None:
    """Tests moved from tests/decoding to tests/planning, and three tables went on naming the old place."""
    for path in re.findall(r"`(?:python )?((?:tests|recipes|examples|src|docs)/[\w./-]*)", prose(document)):
        assert "YYYY" in path or (ROOT / path).exists(), f"{name_of(document)}: there is no {path}"


def test_links_say_the_name_of_their_file() -> None:
    """Modules were renamed, and links went on calling them types.py, matching.py and half.py."""
    for document in PRESENT:
        for says, link in links(document):
            shown = says.strip("`")
            if re.fullmatch(r"[\w/]+\.(py|md|json)", shown):
                assert link.partition("#")[0].endswith(shown.removeprefix("docs/")), (
                    f"{name_of(document)}: [{says}]({link})"
                )


def test_documents_named_in_sources_exist() -> None:
    """Docstrings and errors send the reader to pages: a page that moves must not leave them behind."""
    for folder in ("src", "tests", "recipes", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            for named in re.findall(r"\bdocs/[\w./-]+\.(?:md|json|svg)\b", text_of(path)):
                assert path.parent.name == "docs" or (ROOT / named).exists(), f"{path.name}: there is no {named}"


# --- the site ----------------------------------------------------------------------------------------


def navigated() -> list[str]:
    nav = text_of(ROOT / "mkdocs.yml").partition("\nnav:\n")[2].partition("\n\n")[0]
    return re.findall(r"([\w./-]+\.md)$", nav, flags=re.MULTILINE)


def test_every_page_is_in_the_navigation() -> None:
    pages = {d.relative_to(DOCS).as_posix() for d in DOCUMENTS if DOCS in d.parents and d not in HISTORY}
    listed = navigated()
    assert len(listed) == len(set(listed))
    named = pages | {"decisions/index.md"} | {f"files/{name}" for name in docs_site.ALWAYS}
    assert set(listed) == named


def test_every_decision_is_in_the_index() -> None:
    decisions = sorted(path.name for path in (DOCS / "decisions").glob("*.md") if path.name != "index.md")
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d-[a-z0-9-]+\.md", name) for name in decisions), decisions
    index = text_of(DOCS / "decisions" / "index.md")
    listed = re.findall(r"^- \[(.*)\]\(([\w.-]+)\)$", index, flags=re.MULTILINE)
    assert sorted(name for _, name in listed) == decisions, "docs/decisions/index.md must list every decision once"
    for title, name in listed:
        assert text_of(DOCS / "decisions" / name).startswith(f"# {title}\n\n{name[:10]}\n"), name


def test_every_measurement_is_in_the_index() -> None:
    for path in (DOCS / "measured").glob("*.md"):
        if path.name != "index.md":
            assert f"]({path.name})" in text_of(DOCS / "measured" / "index.md"), path.name
            assert re.search(r"`(?:outrider|python) |^(?:outrider|python) ", text_of(path), flags=re.MULTILINE), (
                f"docs/measured/{path.name} names no command that produces its figures"
            )


def test_the_site_has_the_files_that_pages_link_to(tmp_path: Path) -> None:
    docs_site.lay_out(tmp_path / "pages")
    page = text_of(tmp_path / "pages" / "architecture.md")
    assert "](files/src/outrider/core/algorithm.py.md)" in page and "](../src" not in page
    assert 'linenums="1"' in text_of(tmp_path / "pages/files/src/outrider/core/algorithm.py.md")
    assert "](algorithm.md)" in page  # pages are linked as pages
    for written in (tmp_path / "pages").rglob("*.md"):
        for link in docs_site.LINK.findall(docs_site.outside_code(text_of(written), str)):
            assert "`" in link or (written.parent / link).exists(), f"{written.relative_to(tmp_path)}: {link}"


def test_the_site_refuses_a_link_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_site, "content", lambda name: "[there](../src/outrider/nowhere.py)")
    with pytest.raises(SystemExit, match="nowhere.py leads nowhere"):
        docs_site.turned("docs/index.md")
    monkeypatch.setattr(docs_site, "content", lambda name: "```text\n[there](nowhere.md)\n```\n")
    assert docs_site.turned("docs/index.md")[1] == []  # not within code
