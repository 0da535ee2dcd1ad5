"""The program, and a small model that can chat, for the tests of the command line."""

from __future__ import annotations

from typing import Any

import library
import pytest
from command import Command

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{{ 'assistant: ' }}"


@pytest.fixture
def outrider(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Command:
    monkeypatch.setenv("COLUMNS", "200")
    return Command(monkeypatch, capsys)


@pytest.fixture(scope="session")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a model with a chat template and a limit of 128 tokens."""
    return str(library.save_llama(tmp_path_factory.mktemp("models") / "chatty", chat_template=TEMPLATE))
