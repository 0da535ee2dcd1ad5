"""Models on the hub: asked for once, fetched once; a mistyped name is told at once. Only the network is replaced."""

from __future__ import annotations

import fnmatch
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import library
import pytest

import outrider
from outrider.errors import ModelCorrupt, ModelNotFound, PullFailed
from outrider.models.hub import names
from outrider.models.hub.safetensors_files import INDEX


class Hub:
    """What the hub has, where it puts it, and what was asked of it."""

    def __init__(self, files: Path, local: Path) -> None:
        self.files, self.local = files, local
        self.asked: list[str] = []
        self.fetched: list[str] = []

    def info(self, name: str) -> SimpleNamespace:
        self.asked.append(name)
        names = [str(path.relative_to(self.files)) for path in self.files.rglob("*") if path.is_file()]
        return SimpleNamespace(sha="0" * 40, siblings=[SimpleNamespace(rfilename=name) for name in names])

    def download(self, allow: list[str], ignore: list[str], local_only: bool) -> str:
        if local_only and not self.local.is_dir():
            raise FileNotFoundError("not in the cache")
        self.local.mkdir(exist_ok=True)
        for path in self.files.rglob("*"):
            name = str(path.relative_to(self.files))
            wanted = any(fnmatch.fnmatch(name, one) for one in allow)
            wanted = wanted and not any(fnmatch.fnmatch(name, one) for one in ignore)
            if path.is_file() and wanted and not local_only and not (self.local / name).exists():
                self.fetched.append(name)
                shutil.copy(path, self.local / name)
        return str(self.local)


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub(library.save_llama(tmp_path / "remote"), tmp_path / "local")
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda self, name, **_: found.info(name))

    def download(name: str, **options: Any) -> str:
        ignored, local = options.get("ignore_patterns", []), options.get("local_files_only", False)
        return found.download(options["allow_patterns"], ignored, local)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return found


def unreachable(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[str]:
    """The hub does not answer -> how often it was asked, by any way there is."""
    asked: list[str] = []

    def fail(self: object, method: str, url: object, *_: object, **__: object) -> None:
        asked.append(f"{method} {url}")
        raise error

    client = type(huggingface_hub.utils.get_session())
    monkeypatch.setattr(client, "request", fail)
    monkeypatch.setattr(client, "send", lambda self, request, **_: fail(self, request.method, request.url))
    return asked


def test_a_mistyped_name_is_told_at_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a network it took half a minute and twelve lines, as every file was tried for six times."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    asked = unreachable(monkeypatch, ConnectionError("Name or service not known"))
    with pytest.raises(ModelNotFound) as caught:
        outrider.load("smoll-model")
    assert len([url for url in asked if "smoll-model" in url]) == 1, asked
    said = str(caught.value)
    assert "\n" not in said and len(said) < 250
    assert "'smoll-model'" in said and "Name or service not known" in said and "did you mean smollm2-135m" in said
    assert capfd.readouterr().err == ""


def test_no_question_for_what_cannot_be_an_id(cache: Path, remote: Hub) -> None:
    with pytest.raises(ModelNotFound, match=r"not a hub id.*known names|did you mean"):
        outrider.load("what is this?")
    assert remote.asked == []


def test_everything_is_fetched_once(cache: Path, remote: Hub) -> None:
    """Weights and tokenizer were asked for by one library and then again by the next."""
    (remote.files / "original").mkdir()
    (remote.files / "original/model.safetensors").write_bytes(b"the same in another format")
    (remote.files / "pytorch_model.bin").write_bytes(b"pickled")
    (remote.files / "modeling.py").write_text("raise SystemExit('code that was not trusted')")
    llm = outrider.load("org/model", "none", device="cpu")
    assert llm.generate([5, 6, 7], max_new_tokens=2).tokens
    expected = {path.name for path in remote.files.iterdir() if path.suffix in (".json", ".safetensors", ".jinja")}
    assert sorted(remote.fetched) == sorted(expected), "each file once, none that is not needed"
    assert remote.asked == ["org/model"]


def test_the_index_says_what_is_fetched(cache: Path, remote: Hub) -> None:
    """Some models lie on the hub twice, in two formats of several GB each."""
    (remote.files / "model.safetensors").rename(remote.files / "model-00001-of-00001.safetensors")
    (remote.files / INDEX).write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    (remote.files / "consolidated.safetensors").write_bytes(b"the same once more")
    folder = names.directory("org/model")
    assert {path.name for path in folder.glob("*.safetensors")} == {"model-00001-of-00001.safetensors"}


def test_what_was_fetched_before_is_used_offline(cache: Path, remote: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    names.directory("org/model")

    def offline(self: object, name: str, **_: object) -> None:
        raise huggingface_hub.errors.OfflineModeIsEnabled("offline")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", offline)
    assert names.directory("org/model") == remote.local
    (remote.local / "model.safetensors").unlink()
    with pytest.raises(ModelCorrupt, match="no weights"):
        names.directory("org/model")
    shutil.rmtree(remote.local)
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE is set"):
        names.directory("org/model")


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [("RepositoryNotFoundError", ModelNotFound, "hub has no such model"), ("GatedRepoError", PullFailed, "auth login")],
)
def test_models_the_hub_does_not_give(
    cache: Path, remote: Hub, monkeypatch: pytest.MonkeyPatch, kind: str, error: type[Exception], says: str
) -> None:
    def refuse(self: object, name: str, **_: object) -> None:
        failure = getattr(huggingface_hub.errors, kind)
        raise failure.__new__(failure)  # made by the client from a response

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)
    with pytest.raises(error, match=says):
        names.directory("org/model")
    assert not remote.local.exists()


def test_a_download_that_breaks_off(cache: Path, remote: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Callable[..., str]:
        raise OSError("connection reset")

    monkeypatch.setattr("huggingface_hub.snapshot_download", broken)
    with pytest.raises(PullFailed, match=r"'org/model' cannot be fetched .*connection reset.*try again"):
        names.directory("org/model")
