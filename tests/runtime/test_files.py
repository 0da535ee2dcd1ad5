"""Files written whole or not at all, whatever happens, and locks that say what they wait for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.runtime import files


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What reaches the disk, in order: inodes that are flushed, and inodes that are renamed."""
    seen: list[tuple[str, int]] = []
    fsync, replace = os.fsync, os.replace

    def flushed(descriptor: int) -> None:
        seen.append(("flush", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    def renamed(made: Path, final: Path) -> None:
        seen.append(("rename", os.stat(made).st_ino))
        replace(made, final)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    return seen


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, events: list[tuple[str, int]]) -> None:
    """After a power cut a renamed file that was never flushed can be empty under its final name."""
    files.write_whole(tmp_path / "record.json", "{}\n")
    made = (tmp_path / "record.json").stat().st_ino
    assert events == [("flush", made), ("rename", made), ("flush", tmp_path.stat().st_ino)]
    assert (tmp_path / "record.json").read_text() == "{}\n"
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_directory_is_on_the_disk_before_it_has_its_name(tmp_path: Path, events: list[tuple[str, int]]) -> None:
    made = tmp_path / "stage"
    (made / "inner").mkdir(parents=True)
    (made / "inner/weights").write_bytes(b"1234")
    inodes = {path.stat().st_ino for path in (made, made / "inner", made / "inner/weights")}
    files.replace_whole(made, tmp_path / "final")
    *flushed, renamed, last = events
    assert {inode for _, inode in flushed} == inodes and {kind for kind, _ in flushed} == {"flush"}
    assert renamed == ("rename", (tmp_path / "final").stat().st_ino)
    assert last == ("flush", tmp_path.stat().st_ino)


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk shows itself at the flush: the old content must stay, and no draft beside it."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    files.write_whole(tmp_path / "record.json", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_whole(tmp_path / "record.json", "new")
    assert (tmp_path / "record.json").read_text() == "old"
    assert os.listdir(tmp_path) == ["record.json"]


def test_the_second_process_waits_and_says_so(tmp_path: Path) -> None:
    code = "import sys, pathlib; from outrider.runtime import files\n" \
        "with files.locked(pathlib.Path(sys.argv[1]), 'Waiting for the other'): print('mine', flush=True)"  # fmt: skip
    with files.locked(tmp_path / "lock", "not said"):
        other = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "lock")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert other.stderr is not None
        assert other.stderr.readline() == "Waiting for the other\n"  # and not yet inside
        assert other.poll() is None
    assert other.communicate(timeout=60)[0] == "mine\n"
