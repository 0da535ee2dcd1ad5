"""Tiny models that are served, loaded once for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import outrider
from library import save_llama
from outrider.llm import LLM
from serving import Served, serving

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("served") / "target", seed=3, chat_template=TEMPLATE)


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("served") / "draft", seed=4)


@pytest.fixture(scope="session")
def llm(target: Path, draft: Path) -> LLM:
    """A target with a model that drafts for it: its guesses are drawn, so every option has a say in them."""
    return outrider.load(str(target), str(draft), "cpu", "float32", width=5)


@pytest.fixture(scope="session")
def served(llm: LLM) -> Iterator[Served]:
    with serving(llm) as server:
        yield server
