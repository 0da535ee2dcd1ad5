"""Compiled code in the cache: one process compiles, versions leave each other's alone, and a cache may be read-only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

from outrider.kernels.numba import code_cache

# A module with one function that is kept on disk; called once, it says whether it was compiled or read.
SCRIPT = """
from outrider.kernels.numba.code_cache import compiling, on_disk

@on_disk
def doubled(x):
    return x + x

with compiling("doubled", "numbers", seconds=9):
    assert doubled(21) == 42
print("read" if doubled.stats.cache_hits else "compiled")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "doubling.py"
    file.write_text(SCRIPT)
    return file


def start(script: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_of_two_processes_one_compiles(cache: Path, script: Path) -> None:
    """Two servers started at once on a new machine once compiled the same code for a minute, side by side."""
    both = [start(script), start(script)]
    told = [process.communicate(timeout=120) for process in both]
    assert sorted(out.strip() for out, _ in told) == ["compiled", "read"], told
    said = "".join(err for _, err in told)
    assert said.count("Compiling numbers for this CPU (once, about 9 seconds)") == 1


def test_who_waits_says_so(cache: Path, script: Path) -> None:
    place = code_cache.code_folder_in(cache)
    with code_cache.locked(place / ".doubled.lock", "not said"):
        other = start(script)
        assert other.stderr is not None
        assert other.stderr.readline() == "Waiting for another process that is compiling numbers\n"
    assert other.communicate(timeout=120)[0] == "compiled\n"


def test_versions_leave_each_others_code_alone(cache: Path) -> None:
    """Two environments with two versions in turn once removed each other's code at every start."""
    other, unused = cache / "compiled-of-another-version", cache / "compiled-long-ago"
    for folder in (other, unused):
        folder.mkdir(parents=True)
    os.utime(unused, (0, 0))
    assert code_cache.code_folder_in(cache).is_dir()
    assert other.is_dir(), "in use elsewhere, perhaps"
    assert not unused.exists(), "nobody has used it since 1970"


def test_empty_files_are_no_code(cache: Path, script: Path) -> None:
    """A power cut can leave files of no length, on which numba fails with a traceback at every start."""
    assert start(script).communicate(timeout=120)[0] == "compiled\n"
    for file in cache.rglob("*.nb[ic]"):
        file.write_bytes(b"")
    assert start(script).communicate(timeout=120)[0] == "compiled\n"
    assert start(script).communicate(timeout=120)[0] == "read\n"


def test_a_read_only_cache_is_read(
    cache: Path, script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code compiled when an image was built was compiled again in every process, as the cache could not be written."""
    assert start(script).communicate(timeout=120)[0] == "compiled\n"
    monkeypatch.setattr(code_cache, "writable", lambda _: False)
    code_cache.code_folder_in.cache_clear()
    assert cache not in code_cache.code_folder().parents
    with code_cache.compiling("doubled", "numbers", seconds=9):
        pass
    assert capsys.readouterr().err == "", "all is there"
    code_cache.code_folder_in.cache_clear()


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said "once", at every start."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "file/cache"))
    for _ in range(2):
        with code_cache.compiling("doubled", "numbers", seconds=9):
            pass
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"the cache at {tmp_path / 'file/cache'} cannot be written: compiling numbers at every start"
    )
    assert "set OUTRIDER_CACHE" in line


OVERLOADS = """
import sys, time
from numba.core.caching import IndexDataCacheFile
from outrider.kernels.numba.code_cache import on_disk

@on_disk
def twice(x):
    return x + x

class Slow(IndexDataCacheFile):
    def _load_index(self):
        found = super()._load_index()
        time.sleep(1.0)  # long enough for the other process to do the same
        return found

numbers = [float(text) if "." in text else int(text) for text in sys.argv[1:]]
if len(numbers) == 1:
    twice._cache._cache_file.__class__ = Slow
assert all(twice(number) == 2 * number for number in numbers)
print(sum(twice.stats.cache_hits.values()))
"""


def test_two_processes_that_save_at_once_keep_their_code_apart(cache: Path, tmp_path: Path) -> None:
    """numba gave two overloads one file name: a T5 in float32 ran the code for float16, and nobody was told."""
    file = tmp_path / "twice.py"
    file.write_text(OVERLOADS)
    both = [
        subprocess.Popen([sys.executable, str(file), argument], stdout=subprocess.PIPE, text=True)
        for argument in ("1", "0.25")
    ]
    assert [process.communicate(timeout=120)[0] for process in both] == ["0\n", "0\n"]
    read = subprocess.run([sys.executable, str(file), "1", "0.25"], capture_output=True, text=True, timeout=120)
    assert read.stdout == "2\n", read.stderr
