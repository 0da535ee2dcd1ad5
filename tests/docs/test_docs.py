"""Code in the documents is tested like code: examples run, commands parse, options exist, quotes are verbatim."""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import typer
from pages import ALL, DOCUMENTS, QUOTES, ROOT, Block, blocks, name_of, place_of, text_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from outrider.cli.main import app
from outrider.drafters import BUILT_IN
from outrider.models.engine.backends import BACKENDS
from outrider.models.transformers.families import FAMILIES
from outrider.runtime import cpu

REAL_MODELS = ("smollm2-135m", "t5-ende", "gpt-small", "HuggingFaceTB/SmolLM2-135M-Instruct")
WITH_EXAMPLES = [d for d in DOCUMENTS if any(b.language == "python" and b.kind != "quote" for b in blocks(d))]
SHELL = [line for block in ALL if block.language == "sh" for line in block.text.splitlines() if line.strip()]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
RECIPES = sorted((ROOT / "recipes").glob("*.py"))
CARDS = sorted((ROOT / "src" / "outrider" / "data").rglob("README.md"))
CLAIMED = [
    line.strip().removesuffix("\\") for card in CARDS for line in text_of(card).replace("\\\n", " ").splitlines()
]
COMMANDS = sorted({line for line in [*SHELL, *CLAIMED] if line.startswith("outrider ")})


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
        assert block.language in {"python", "sh", "text"}, f"{place_of(block)}: unknown language {block.language!r}"
        assert block.kind in {"", "file", "quote"}, f"{place_of(block)}: unknown kind {block.kind!r}"


@pytest.mark.parametrize("document", WITH_EXAMPLES, ids=name_of)
def test_examples_run(document: Path, tiny: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a scratch folder, with a cache of its own; what a page adds to a table is taken out again."""
    if any('"numba"' in block.text for block in blocks(document)) and not cpu.facts().fuses_multiplication:
        pytest.skip("this CPU has no fused multiplication")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before, namespace = set(sys.modules), {"__name__": "example"}
    with patch.dict(BACKENDS), patch.dict(BUILT_IN), patch.dict(FAMILIES):
        for block in blocks(document):
            if block.language != "python" or block.kind == "quote":
                continue
            text = block.text
            for name in REAL_MODELS:
                text = text.replace(f'"{name}"', repr(tiny))
            if block.kind == "file":
                (tmp_path / block.name).write_text(text, encoding="utf-8")
            else:  # as many lines before it as there are in the document, so that a traceback names the right one
                exec(compile("\n" * (block.line - 1) + text, place_of(block), "exec"), namespace)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("block", QUOTES, ids=place_of)
def test_quotations_are_verbatim(block: Block) -> None:
    """algorithm.md explains the code as it is: whoever changes a quoted line changes the page."""
    source = (ROOT / block.name).read_text(encoding="utf-8")
    assert block.text in source, f"{place_of(block)}: this is no longer in {block.name}:\n{block.text}"


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
    (tmp_path / "prompts.txt").write_text("The end\n", encoding="utf-8")
    path, words = split(line)
    short = ["--target", tiny, "--max-new-tokens", "6"] + (["--repeats", "1"] if path == ("demo",) else [])
    result = CliRunner().invoke(app, [*path, *words, *short])
    assert result.exit_code == 0, f"{line}: exit code {result.exit_code}\n{result.output}\n{result.exception!r}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_options_exist(document: Path) -> None:
    known = {name for command in TREE.values() for o in command.params for name in (*o.opts, *o.secondary_opts)}
    known |= {"--help", "--nproc-per-node", "--now"}  # of torchrun and systemctl
    known |= {"--backend", "--profile", "--constraint", "--data"}  # of guidellm
    for line in text_of(document).partition("## What others call it")[0].splitlines():
        of_recipes = {name for recipe in RECIPES if recipe.name in line for name in OPTION.findall(text_of(recipe))}
        for option in OPTION.findall(line):
            found = option in known or option in of_recipes
            assert found, f"{name_of(document)} mentions {option}, which no command of outrider has"


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", text_of(ROOT / "Makefile"), flags=re.MULTILINE))
    for document in DOCUMENTS:
        text = text_of(document)
        for target in re.findall(r"(?:`|^)make ([a-z]+)", text, flags=re.MULTILINE):
            assert target in targets, f"{name_of(document)}: the Makefile has no target {target}"


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
