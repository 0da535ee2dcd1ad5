"""What each name of a model means: short names, hub ids, directories and GGUF files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from outrider.errors import ModelCorrupt, ModelNotFound, PullFailed
from outrider.models.hub import checksums, gguf, manifest, names
from outrider.runtime.cache_dir import cache_dir
from tiny_gguf import NAME, TEMPLATE, leftovers

# --- names -----------------------------------------------------------------------------------------


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("OUTRIDER_CACHE", raising=False)
    assert cache_dir() == tmp_path / "home/.cache/outrider"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg/outrider"
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"


@pytest.mark.parametrize("name", ["gpt2", "distilgpt2", "HuggingFaceTB/SmolLM2-135M-Instruct", "org/smollm2-135m"])
def test_hub_ids_come_back_unchanged(name: str, cache: Path) -> None:
    assert names.resolve(name) == name


@pytest.mark.parametrize("name", ["./nowhere", "../nowhere", "/no/where", "~/nowhere-at-all", "a/b/c", "x.gguf"])
def test_a_missing_path_is_named(name: str, cache: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file or directory") as caught:
        names.resolve(name)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["smollm2-135", "smolm2-135m", "SmolLM2-135M", "smollm-135m", "smollm2"])
def test_a_misspelt_name_gets_a_suggestion(name: str, cache: Path) -> None:
    for ask in (names.resolve, names.pull):
        with pytest.raises(ModelNotFound, match=r"did you mean smollm2-135m\?"):
            ask(name)


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_refused(name: str, cache: Path) -> None:
    with pytest.raises(ModelNotFound):
        names.resolve(name)


def test_nothing_is_fetched_unless_asked_for(cache: Path, tiny_gguf: Path) -> None:
    for name in (NAME, str(tiny_gguf)):
        with pytest.raises(ModelNotFound, match="outrider models pull"):
            names.resolve(name, pull=False)
    assert not cache.exists()


def test_a_hub_id_cannot_be_pulled(cache: Path) -> None:
    with pytest.raises(ModelNotFound, match="cannot be pulled"):
        names.pull("org/model")


# --- local directories -----------------------------------------------------------------------------


@pytest.fixture
def directory(converted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(converted, tmp_path / "mine"))


def test_a_directory_is_itself(directory: Path) -> None:
    assert names.resolve(str(directory)) == directory


def test_a_directory_without_a_model(directory: Path, tiny_gguf: Path) -> None:
    (directory / "config.json").unlink()
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        names.resolve(str(directory))
    shutil.copy(tiny_gguf, directory)
    with pytest.raises(ModelNotFound, match=r"name the file: .*tiny\.gguf"):
        names.resolve(str(directory))


def test_only_safetensors(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(ModelCorrupt, match=r"pytorch_model\.bin.*safetensors is required.*save_pretrained"):
        names.resolve(str(directory))
    with pytest.raises(ModelNotFound, match="is a file"):
        names.resolve(str(directory / "pytorch_model.bin"))


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_safetensors(directory: Path, keep: int) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(ModelCorrupt, match=r"model\.safetensors"):
        names.resolve(str(directory))


def test_a_missing_shard(directory: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelCorrupt, match="model-00002-of-00002"):
        names.resolve(str(directory))


# --- GGUF files ------------------------------------------------------------------------------------


def test_a_gguf_file_becomes_a_model(cache: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way with the real converter: weights, tying, ends of text, template; then never again."""
    import torch
    from transformers import AutoModelForCausalLM

    path = names.resolve(str(tiny_gguf))
    assert isinstance(path, Path) and path.parent == cache
    manifest.check(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    assert model.dtype == torch.bfloat16
    assert model.lm_head.weight is model.model.embed_tokens.weight
    expected = next(t for t in gguf_tensors(tiny_gguf) if t.name == "token_embd.weight").data
    assert torch.equal(model.lm_head.weight, torch.tensor(expected).to(torch.bfloat16))
    # The file's eos is <|endoftext|>, but its chat template ends a turn with <|im_end|>.
    assert model.generation_config.eos_token_id == model.config.eos_token_id == [0, 2]
    assert torch.isfinite(model(torch.tensor([[5, 6, 7]])).logits).all()

    monkeypatch.setattr(gguf, "convert", None)
    elsewhere = Path(shutil.copy(tiny_gguf, cache.parent / "moved.gguf"))
    assert names.resolve(str(elsewhere)) == path
    assert [model.licence for model in manifest.installed()] == ["mit"]


def test_a_gguf_file_is_read_once(
    cache: Path, tiny_gguf: Path, tmp_path: Path, quick_convert: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every load once read the whole file, several GB, only to know its name in the cache."""
    mine = Path(shutil.copy(tiny_gguf, tmp_path / "mine.gguf"))
    read: list[Path] = []
    known = checksums.sha256
    monkeypatch.setattr(checksums, "sha256", lambda path: (read.append(path), known(path))[1])
    first = names.resolve(str(mine))
    assert read == [mine]
    assert names.resolve(str(mine)) == names.pull(str(mine)) == first
    assert read == [mine], "size, time and inode are as they were"
    os.utime(mine, ns=(0, 12345))
    assert names.resolve(str(mine)) == first
    assert read == [mine, mine], "read again when its time has changed"
    for record in (cache / checksums.FOLDER).iterdir():
        record.write_text("{")
    assert names.resolve(str(mine)) == first
    assert len(read) == 3, "a damaged record is none"


def gguf_tensors(path: Path) -> list[object]:
    from gguf import GGUFReader

    return list(GGUFReader(path).tensors)


def test_the_tokenizer_is_the_files(converted: Path) -> None:
    """transformers' own reading drops the digit rule, and in 5.17 ends every text with <|im_start|>."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert tokenizer.eos_token == "<|endoftext|>" and tokenizer.pad_token == "<|im_end|>"
    assert tokenizer.chat_template == TEMPLATE and tokenizer.model_max_length == 64
    assert tokenizer.tokenize("he  12") == ["he", "ĠĠ", "1", "2"]
    assert tokenizer.tokenize("a<|im_end|>hell") == ["a", "<|im_end|>", "he", "ll"]
    for text in ("Hello , world .", " x", "a\n\n\tb  7", "é ▁ 日本"):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text
    assert tokenizer.decode([2, *tokenizer("a")["input_ids"]], skip_special_tokens=True) == "a"


@pytest.mark.parametrize("keep", [0, 3, 200, 3000, -1])
def test_a_truncated_gguf_file(cache: Path, tiny_gguf: Path, tmp_path: Path, keep: int) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_gguf.read_bytes()[:keep])
    with pytest.raises(ModelCorrupt, match=r"cut\.gguf.*get it again"):
        names.resolve(str(cut))
    assert leftovers(cache) == []


def test_a_file_that_is_not_gguf(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<html>Sign in to download</html>")
    with pytest.raises(ModelCorrupt, match="not a GGUF file"):
        names.resolve(str(tmp_path / "page.gguf"))
    assert leftovers(cache) == []


def test_a_model_that_cannot_be_converted(cache: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("GGUF model with architecture martian is not supported yet.")

    monkeypatch.setattr(gguf, "convert_files", fail)
    with pytest.raises(PullFailed, match="martian"):
        names.resolve(str(tiny_gguf))
    assert leftovers(cache) == []
