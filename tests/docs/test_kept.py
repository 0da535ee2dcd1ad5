"""What must not be forgotten: options, statistics, licences, messages and folders are in the documents as in code."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import fields
from functools import cache
from inspect import signature

import pytest
from pages import DOCS, DOCUMENTS, ROOT, name_of, text_of

import outrider
from outrider.drafters import BUILT_IN
from outrider.models.engine.backends import BACKENDS
from outrider.options import Options
from outrider.report.kinds import KINDS
from outrider.trace import PHASES, Record, Stats

sys.path.insert(0, str(ROOT / ".ci"))
import package_layers

PACKAGE = ROOT / "src" / "outrider"
README, GLOSSARY = text_of(ROOT / "README.md"), text_of(DOCS / "glossary.md")


def test_glossary_defines_every_statistic() -> None:
    defined = re.findall(r"^\| `(\w+)` \|", GLOSSARY, flags=re.MULTILINE)
    for name in [f.name for f in fields(Stats)] + [f.name for f in fields(Record)] + [*PHASES, "prefill"]:
        assert name in defined, f"docs/glossary.md does not define {name}"


def test_glossary_has_one_definition_per_statistic() -> None:
    table = GLOSSARY.partition("## Statistics")[2].partition("### Fields of a record")[0]
    defined = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)
    assert sorted(defined) == sorted(f.name for f in fields(Stats))


def test_every_option_and_drafter_is_named() -> None:
    page, drafters = text_of(DOCS / "python.md"), text_of(DOCS / "drafters.md")
    wanted = [f.name for f in fields(Options)] + list(signature(outrider.load).parameters)
    wanted.remove("target")
    for name in wanted:
        assert f"`{name}`" in page, f"docs/python.md does not name the option {name}"
    for name in BUILT_IN:
        assert f'`"{name}"`' in drafters, f"docs/drafters.md does not name the drafter {name}"
    for name in ("auto", *BACKENDS, "torch"):
        assert f'`"{name}"`' in page, f"docs/python.md does not name the engine {name}"


def test_every_kind_of_result_is_in_the_page_of_reports() -> None:
    """The help of `outrider report` left out two of them; it follows the table now, and so must the page."""
    page = text_of(DOCS / "report.md")
    for kind in KINDS:
        row = f"| `{kind.name}` | {', '.join(f'`outrider {command}`' for command in kind.written_by)} |"
        assert row in page, f"docs/report.md has no row that begins with {row}"


def test_every_public_name_is_in_the_reference() -> None:
    listed = set(re.findall(r"^::: ([\w.]+)$", text_of(DOCS / "reference.md"), flags=re.MULTILINE))
    for name in outrider.__all__:
        if name != "__version__" and (thing := getattr(outrider, name)) is not outrider.OutriderError:
            home = f"{thing.__module__}.{thing.__qualname__}"
            assert home in listed, f"docs/reference.md does not have {home}"
    assert "outrider.errors" in listed


QUESTIONS = {
    "Where is acceptance decided?": "core/verification/maximal.py",
    "Where does rollback happen?": "models/session.py",
    "How is gamma chosen?": "planning/policies.py",
    "How is a drafter added?": "adding-a-drafter.md",
    "Which kernel runs a layer on this CPU?": "models/engine/choice.py",
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_a_newcomer_asks_first_is_answered(question: str) -> None:
    """In one paragraph of the architecture page, with a link to the very place."""
    answers = [line for line in text_of(DOCS / "architecture.md").splitlines() if f"**{question}**" in line]
    assert len(answers) == 1
    assert QUESTIONS[question] in answers[0]


def test_readme_is_short() -> None:
    assert len(README.splitlines()) < 120, "the README is for a first look; the rest is for the site"


def test_readme_promises_no_figures() -> None:
    """A speed or an acceptance rate belongs to a machine and a prompt: `make demo` prints them, the README does not."""
    found = re.findall(r"\d[\d.,]*\s*(?:x\b|×|%|times\b|tok|tokens per second|tokens/s)", README)
    assert not found, f"README.md has figures: {found}"


def test_licences_of_all_that_is_shipped_are_named() -> None:
    """The card of t5-ende says that its weights are for research and tests, and the README did not."""
    shipped = [card.parent.name for card in (PACKAGE / "data").rglob("README.md")]
    assert shipped
    for where in (README.partition("## Licences")[2], text_of(DOCS / "install.md").partition("## Licences")[2]):
        for card in (PACKAGE / "data").rglob("README.md"):
            assert f"{card.relative_to(ROOT).as_posix()})" in where, f"no licence of {card.parent.name}"
    for card in (PACKAGE / "data").rglob("README.md"):
        assert re.search(r"Apache-2\.0|for research and tests|CC BY", text_of(card)), f"{card} names no licence"


def test_documents_name_no_machine() -> None:
    for document in DOCUMENTS:
        found = re.findall(r"(?<![\w./])/(?:home|root|tmp|work|Users|mnt)\b\S*", text_of(document))
        assert not found, f"{name_of(document)}: {found}"


# --- the picture -------------------------------------------------------------------------------------


def test_the_picture_is_of_the_layers() -> None:
    assert text_of(package_layers.PICTURE) == package_layers.drawn(), "run `python .ci/package_layers.py`"


def test_every_folder_is_in_the_picture() -> None:
    """The layers in pyproject.toml list every folder and module of the package, and the picture says what it is for."""
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("_")}
    drawn = set(re.findall(r'<text class="part"[^>]*>([\w.]+)</text>', text_of(package_layers.PICTURE)))
    assert drawn == folders | modules
    assert drawn == set(package_layers.JOBS), "say in JOBS of .ci/package_layers.py what each is for"


# --- messages ----------------------------------------------------------------------------------------


@cache
def messages() -> tuple[str, ...]:
    """Every string in the sources; what is filled in is a line break, which no message has."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(v.value if isinstance(v, ast.Constant) else "\n" for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return tuple(found)


def said(symptom: str) -> bool:
    """Whether a message of the code has this in it; "..." is what a message fills in."""
    pattern = re.compile(r"[\s\S]*".join(re.escape(part.strip()) for part in symptom.split("...")))
    return any(pattern.search(message) for message in messages())


def test_symptoms_are_messages_of_the_code() -> None:
    rows = re.findall(r"^\| (.*?) \| .* \| .* \|$", text_of(DOCS / "troubleshooting.md"), flags=re.MULTILINE)
    symptoms = [
        part for row in rows if re.fullmatch(r"`[^`]*`(, `[^`]*`)*", row) for part in re.findall(r"`([^`]*)`", row)
    ]
    assert len(symptoms) > 30
    for symptom in symptoms:
        assert said(symptom), f"docs/troubleshooting.md: no message says {symptom!r}"
    assert not said("a message that ... nobody writes")
