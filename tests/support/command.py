"""The ``outrider`` program in this process, for tests: arguments and standard input in, everything it says out."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from outrider.cli.main import main


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Command:
    monkeypatch: pytest.MonkeyPatch
    capsys: Any

    def __call__(self, *words: str, stdin: bytes = b"") -> Said:
        self.capsys.readouterr()
        self.monkeypatch.setattr(sys, "argv", ["outrider", *words])
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        with pytest.raises(SystemExit) as ended:
            main()
        caught = self.capsys.readouterr()
        assert isinstance(ended.value.code, int) and "Traceback" not in caught.err
        return Said(ended.value.code, caught.out, caught.err)
