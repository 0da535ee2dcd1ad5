"""The documents are tested like code: examples run, commands parse, links lead somewhere, quotes are verbatim.

A fenced block says by its first line what it is:

    ```python               an example: run, one namespace per document, with a tiny model in place of the named ones
    ```python file=NAME     a file the reader writes: saved, so that later examples can import it
    ```python quote=PATH    a quotation: must stand in that source file, character for character
    ```sh                   commands for a shell: every ``outrider`` and ``make`` line must be a valid one
"""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

import outrider
from outrider.cli.main import app
from outrider.drafters import built_in
from outrider.options import Options
from outrider.trace import PHASES, Record, Stats

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
REAL_MODELS = ("smollm2-135m", "t5-ende", "gpt-small", "HuggingFaceTB/SmolLM2-135M-Instruct")


@dataclass(frozen=True)
class Block:
    document: Path
    line: int  # of the first line inside
    language: str
    kind: str  # "", file or quote
    name: str
    text: str


def blocks(document: Path) -> Iterator[Block]:
    lines = document.read_text(encoding="utf-8").splitlines()
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
    return re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


ALL = [block for document in DOCUMENTS for block in blocks(document)]
QUOTES = [block for block in ALL if block.kind == "quote"]
SHELL = [line for block in ALL if block.language == "sh" for line in block.text.splitlines() if line.strip()]
CARDS = sorted((ROOT / "src" / "outrider" / "data").rglob("README.md"))
CLAIMED = [
    line.strip().removesuffix("\\")
    for card in CARDS
    for line in card.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
]
COMMANDS = sorted({line for line in [*SHELL, *CLAIMED] if line.startswith("outrider ")})


def named(block: Block) -> str:
    return f"{block.document.name}:{block.line}"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Llama of two layers over bytes, with a chat template: saved, so that it is loaded as users do."""
    place = tmp_path_factory.mktemp("tiny")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate([*letters, "<s>", "</s>"])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=1024, initializer_range=0.3, bos_token_id=None, eos_token_id=len(letters) + 1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return str(place)


# --- Python ------------------------------------------------------------------------------------------


def test_every_block_is_of_a_known_kind() -> None:
    for block in ALL:
        assert block.language in {"python", "sh", "text"}, f"{named(block)}: unknown language {block.language!r}"
        assert block.kind in {"", "file", "quote"}, f"{named(block)}: unknown kind {block.kind!r}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_examples_run(document: Path, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before, namespace = set(sys.modules), {"__name__": "example"}
    for block in blocks(document):
        if block.language != "python" or block.kind == "quote":
            continue
        text = block.text
        for name in REAL_MODELS:
            text = text.replace(f'"{name}"', repr(tiny))
        if block.kind == "file":
            (tmp_path / block.name).write_text(text, encoding="utf-8")
        else:  # as many lines before it as there are in the document, so that a traceback names the right one
            exec(compile("\n" * (block.line - 1) + text, named(block), "exec"), namespace)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("block", QUOTES, ids=named)
def test_quotations_are_verbatim(block: Block) -> None:
    """algorithm.md explains the code as it is: whoever changes a quoted line changes the page."""
    source = (ROOT / block.name).read_text(encoding="utf-8")
    assert block.text in source, f"{named(block)}: this is no longer in {block.name}:\n{block.text}"


# --- the command line --------------------------------------------------------------------------------


def command_tree(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from command_tree(child, (*path, name))


TREE = dict(command_tree(typer.main.get_command(app)))


def split(line: str) -> tuple[tuple[str, ...], list[str]]:
    """``outrider models pull X --force`` -> ("models", "pull"), ["X", "--force"]."""
    words, path = shlex.split(line, comments=True)[1:], ()
    while words and (*path, words[0]) in TREE:
        path = (*path, words.pop(0))
    return path, words


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_parse(line: str) -> None:
    path, words = split(line)
    assert path, f"no such command: {line}"
    assert not hasattr(TREE[path], "commands"), f"{line}: name one of {', '.join(TREE[path].commands)}"
    TREE[path].make_context(" ".join(path), words)  # parses; raises for what it does not know


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith(("outrider generate", "outrider demo"))])
def test_commands_run(line: str, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the reader has written the files that the documents have him write."""
    for block in ALL:
        if block.kind == "file":
            (tmp_path / block.name).write_text(block.text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "The end"}\n', encoding="utf-8")
    path, words = split(line)
    short = ["--target", tiny, "--max-new-tokens", "6"] + (["--repeats", "1"] if path == ("demo",) else [])
    result = CliRunner().invoke(app, [*path, *words, *short])
    assert result.exit_code == 0, f"{line}: exit code {result.exit_code}\n{result.output}\n{result.exception!r}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_options_exist(document: Path) -> None:
    known = {name for command in TREE.values() for o in command.params for name in (*o.opts, *o.secondary_opts)}
    known.add("--help")
    text = document.read_text(encoding="utf-8").partition("## What others call it")[0]
    for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text):
        assert option in known, f"{document.name} mentions {option}, which no command of outrider has"


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for target in re.findall(r"(?:`|^)make ([a-z]+)", text, flags=re.MULTILINE):
            assert target in targets, f"{document.name}: the Makefile has no target {target}"


# --- links -------------------------------------------------------------------------------------------


def anchors(document: Path) -> set[str]:
    """The fragments GitHub gives to headings: lower case, punctuation dropped, spaces to hyphens."""
    headings = re.findall(r"^#+ (.*)$", prose(document), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{document.name}: {link} leads nowhere"
        assert ROOT in target.parents, f"{document.name}: {link} leads out of the repository"
        if anchor:
            assert anchor in anchors(target), f"{document.name}: {link}: no such heading in {target.name}"


# --- what must not be forgotten ----------------------------------------------------------------------


def test_glossary_defines_every_statistic() -> None:
    defined = re.findall(r"^\| `(\w+)` \|", GLOSSARY, flags=re.MULTILINE)
    for name in [f.name for f in fields(Stats)] + [f.name for f in fields(Record)] + [*PHASES, "prefill"]:
        assert name in defined, f"docs/glossary.md does not define {name}"


def test_glossary_has_one_definition_per_statistic() -> None:
    table = GLOSSARY.partition("## Statistics")[2].partition("### Fields of a record")[0]
    defined = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)
    assert sorted(defined) == sorted(f.name for f in fields(Stats))


def test_readme_names_every_option_and_drafter() -> None:
    wanted = [f.name for f in fields(Options)] + list(signature(outrider.load).parameters)
    wanted.remove("target")
    for name in wanted:
        assert f"`{name}`" in README, f"README.md does not name the option {name}"
    for name in built_in():
        assert f'`"{name}"`' in README, f"README.md does not name the drafter {name}"


def test_readme_promises_no_figures() -> None:
    """A speed or an acceptance rate belongs to a machine and a prompt: `make demo` prints them, the README does not."""
    found = re.findall(r"\d[\d.,]*\s*(?:x\b|×|%|times\b|tok|tokens per second|tokens/s)", README)
    assert not found, f"README.md has figures: {found}"


def test_documents_name_no_machine() -> None:
    for document in DOCUMENTS:
        found = re.findall(r"(?<![\w./])/(?:home|root|tmp|work|Users|mnt)\b\S*", document.read_text(encoding="utf-8"))
        assert not found, f"{document.name}: {found}"


# --- the tests themselves ----------------------------------------------------------------------------


def test_blocks_are_found(tmp_path: Path) -> None:
    """If the parser found nothing, everything above would pass."""
    page = tmp_path / "page.md"
    page.write_text(
        textwrap.dedent("""\
            text
            ```python quote=a/b.py
            x = 1

            y = 2
            ```
            ```sh
            make demo
            ```
            """),
        encoding="utf-8",
    )
    first, second = blocks(page)
    assert (first.language, first.kind, first.name, first.line) == ("python", "quote", "a/b.py", 3)
    assert first.text == "x = 1\n\ny = 2\n"
    assert (second.language, second.kind, second.text) == ("sh", "", "make demo\n")
    assert len(QUOTES) >= 8 and len(COMMANDS) >= 8
    assert sum(block.language == "python" and block.kind != "quote" for block in ALL) >= 6
