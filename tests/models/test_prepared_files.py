"""Prepared files on the disk: damaged, in the way, without space, in a cache that cannot be written, interrupted."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers as tf
from safetensors.torch import save_file
from typer.testing import CliRunner

import library
import outrider
from outrider.cli.main import app
from outrider.errors import ModelError
from outrider.runtime import cpu

pytest.importorskip("numba")

from outrider.models.engine.prepared import RECORD
from outrider.models.engine.weight_files import WEIGHTS
from outrider.models.hub.making import Space
from outrider.models.hub.safetensors_files import INDEX

pytestmark = [
    pytest.mark.usefixtures("cache"),
    pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication"),
]

in_eight_bits = partial(library.prepared, engine="numba", weights="int8")


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "weights cut short": (WEIGHTS, _cut),
    "no weights": (WEIGHTS, Path.unlink),
    "record cut short": (RECORD, lambda file: file.write_text("{")),
    "empty record": (RECORD, lambda file: file.write_text("")),
    "a list for a record": (RECORD, lambda file: file.write_text("[]")),
    "no record": (RECORD, Path.unlink),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_damaged_is_written_again(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged prepared.json once blamed the model's own directory; beyond the end of weights there is no error."""
    config = tf.AutoConfig.from_pretrained(folder)
    first = in_eight_bits(folder, config)
    whole = (first.folder / WEIGHTS).read_bytes()
    file, damage = DAMAGE[name]
    damage(first.folder / file)
    again = in_eight_bits(folder, config)
    assert again.folder == first.folder and again.record == first.record
    assert (again.folder / WEIGHTS).read_bytes() == whole
    assert f"{first.folder} is damaged and is written again" in capsys.readouterr().err


def test_another_model_is_not_blocked(folder: Path, tmp_path: Path) -> None:
    """One damaged prepared.json in the cache once kept every other model from being prepared."""
    config = tf.AutoConfig.from_pretrained(folder)
    (in_eight_bits(folder, config).folder / RECORD).write_text("{")
    other = library.save_llama(tmp_path / "other", seed=1)
    assert in_eight_bits(other, config).folder.is_dir()


def test_the_index_says_which_files_are_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """consolidated.safetensors beside an index holds the same weights under other names: no engine wanted them."""
    model = tf.LlamaForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert (folder / INDEX).is_file() and len(list(folder.glob("model-*.safetensors"))) > 1
    save_file({"layers.0.attention.wq.weight": torch.ones(8)}, folder / "consolidated.safetensors")
    prepared = in_eight_bits(folder, model.config)
    assert torch.equal(prepared.tensor("norms")[-1], model.model.norm.weight)
    (folder / "consolidated.safetensors").write_bytes(b"cut short")  # none of ours
    assert in_eight_bits(folder, model.config).folder == prepared.folder
    llm = outrider.load(str(folder), "none", device="cpu", weights="int8")
    assert "numba" in llm.target.model.facts.engine


@pytest.mark.parametrize("weights", ["bfloat16", "float16", "int8", "int4"])
def test_space_is_asked_for_as_it_is_used(tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times a checkpoint's size was asked for, where it is written once at most."""
    config = tf.LlamaConfig(
        vocab_size=4096, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False, dtype="bfloat16",
    )  # fmt: skip
    tf.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "model")
    asked: list[int] = []
    require = Space.require
    monkeypatch.setattr(Space, "require", lambda self, needed: (asked.append(needed), require(self, needed))[1])
    written = library.prepared(tmp_path / "model", config, "numba", weights).bytes
    assert written <= asked[-1] <= 1.2 * written + 1_500_000


def test_a_cache_that_cannot_be_written(
    narrow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A raw UserWarning with an errno in it did not say that the cache was meant, nor what to set."""
    monkeypatch.setattr("outrider.models.engine.choice.WORTH_FILES", 0)
    (tmp_path / "file").touch()
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "file/cache"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        llm = outrider.load(str(narrow), "none", device="cpu", dtype="float32")
    assert llm.target.model.facts.engine == "torch"
    told = [line for line in capsys.readouterr().err.splitlines() if "cache" in line]
    assert len(told) == 1
    assert f"the cache at {tmp_path / 'file/cache'} cannot be written" in told[0]
    assert "run by torch" in told[0] and "set OUTRIDER_CACHE" in told[0]


def test_control_c_says_what_was_kept(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after a minute of work said "interrupted": whether the minute was lost, one could not know."""
    run = CliRunner().invoke
    monkeypatch.setattr("outrider.models.engine.prepared.make_files", _interrupted)
    early = run(app, ["warm", str(folder), "--weights", "int8"])
    assert early.exit_code == 130 and "nothing was finished yet" in early.stderr
    monkeypatch.undo()
    monkeypatch.setenv("OUTRIDER_CACHE", str(cache))
    monkeypatch.setattr("outrider.llm.LLM.generate", _interrupted)
    late = run(app, ["warm", str(folder), "--weights", "int8"])
    assert late.exit_code == 130
    assert f"kept in {cache}: numba, int8" in late.stderr and "the same command goes on" in late.stderr


def _interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_what_was_prepared_from_a_directory_that_is_gone_is_removed(folder: Path, tmp_path: Path) -> None:
    """Files of models that nobody has any more once stayed for ever."""
    config = tf.AutoConfig.from_pretrained(folder)
    gone = library.prepared(library.save_llama(tmp_path / "gone"), config, "numba", "int4")
    shutil.rmtree(tmp_path / "gone")
    in_eight_bits(folder, config)
    assert not gone.folder.exists()


def test_no_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("usage", (), {"free": 10})())
    with pytest.raises(ModelError, match="OUTRIDER_CACHE"):
        outrider.load(str(folder), device="cpu", weights="int8")
