"""What is prepared for an engine: once, again when the checkpoint changes, and refused where it cannot be right."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import cpus
import library
import outrider
from outrider.cli.main import app
from outrider.errors import BadOption, ModelCorrupt, ModelError
from outrider.models.engine.choice import Kernels, chosen_engine
from outrider.runtime import cpu
from outrider.runtime.cpu import CpuFacts

pytest.importorskip("numba")

from outrider.models.engine.prepared import RECORD
from outrider.models.engine.weight_files import WEIGHTS

pytestmark = [
    pytest.mark.usefixtures("cache"),
    pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication"),
]

in_eight_bits = partial(library.prepared, engine="numba", weights="int8")


def test_the_text_of_torch(narrow: Path) -> None:
    """Catches any part of the way from a directory to a text that differs by engine."""
    by_torch, by_numba = (
        outrider.load(str(narrow), engine=engine, dtype="float32", device="cpu")
        .generate("the cat", max_new_tokens=24, eos=[])
        .tokens
        for engine in ("torch", "numba")
    )
    assert by_numba == by_torch


@pytest.mark.parametrize("weights", ["full", "int8"])
@pytest.mark.parametrize("draft", ["copy", "ngram", "uniform", "MODEL"])
def test_one_text_with_every_draft(narrow: Path, tmp_path: Path, draft: str, weights: str) -> None:
    """Catches a draft loaded for another engine, and speculation that shows in the text."""
    if draft == "MODEL":
        draft = str(library.save_llama(tmp_path / "draft", seed=0))
    llm = outrider.load(str(narrow), draft, "cpu", "float32", engine="numba", weights=weights)
    for options in ({}, {"temperature": 1.0, "seed": 3, "coupling": "gumbel"}):
        plain = llm.with_draft(None).generate(["the cat", "a"], max_new_tokens=32, **options)
        for gamma in (1, 4, 8):
            found = llm.generate(["the cat", "a"], max_new_tokens=32, gamma=gamma, **options)
            assert [out.tokens for out in found] == [out.tokens for out in plain]


def test_written_once(folder: Path, cache: Path) -> None:
    config = tf.AutoConfig.from_pretrained(folder)
    first = in_eight_bits(folder, config)
    written = (first.folder / WEIGHTS).stat().st_mtime_ns
    again = in_eight_bits(folder, config)
    assert again.folder == first.folder
    assert (again.folder / WEIGHTS).stat().st_mtime_ns == written
    assert first.known("any", "here", lambda: True)
    assert in_eight_bits(folder, config).known("any", "here", lambda: False), "a fact is found out once"
    assert not in_eight_bits(folder, config).known("any", "elsewhere", lambda: False)


def test_written_again_for_another_checkpoint(folder: Path, cache: Path) -> None:
    """Catches old weights run under a new model's name, and old files that nobody ever removes."""
    config = tf.AutoConfig.from_pretrained(folder)
    old = in_eight_bits(folder, config)
    kept = library.prepared(folder, config, "numba", "int4")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] += 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    new = in_eight_bits(folder, config)
    assert torch.equal(new.tensor("norms")[-1], tensors["model.norm.weight"])
    assert not old.folder.exists()
    assert kept.folder.exists()


def test_a_tensor_nobody_reads(folder: Path) -> None:
    """Catches a model run without a part of it."""
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"q_norm.*engine='torch'"):
        outrider.load(str(folder), device="cpu", weights="int8")
    assert not list((folder.parent / "cache").glob(f"*/{RECORD}")), "nothing half made is left"


def test_weights_that_are_no_bfloat16(narrow: Path) -> None:
    """Catches a model that is rounded on its way, and says other things."""
    tensors = {name: tensor.float() for name, tensor in load_file(narrow / "model.safetensors").items()}
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] += 2**-20
    save_file(tensors, narrow / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj.*no bfloat16.*with weights='int8'"):
        outrider.load(str(narrow), engine="numba", device="cpu")


def test_a_config_that_does_not_fit_the_weights(narrow: Path) -> None:
    """Catches layers that read beyond their weights."""
    config = json.loads((narrow / "config.json").read_text())
    (narrow / "config.json").write_text(json.dumps(config | {"intermediate_size": 128}))
    with pytest.raises(ModelCorrupt, match=r"gate_proj.*\(64, 32\).*\(128, 32\)"):
        outrider.load(str(narrow), engine="numba", device="cpu")


def test_auto_goes_on_to_torch(narrow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a model that cannot be loaded at all because one engine cannot have it."""
    monkeypatch.setattr("outrider.models.engine.choice.WORTH_FILES", 0)
    tensors = {name: tensor.float() for name, tensor in load_file(narrow / "model.safetensors").items()}
    tensors["model.norm.bias"] = torch.zeros(32)
    save_file(tensors, narrow / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(UserWarning, match=r"is run by torch, not by numba: .*model\.norm\.bias"):
        llm = outrider.load(str(narrow), device="cpu")
    assert llm.target.model.facts.engine == "torch"


def test_facts_are_found_out_once_and_not_lost(folder: Path) -> None:
    """Catches a process that writes over what another has found out."""
    config = tf.AutoConfig.from_pretrained(folder)
    one, other = (in_eight_bits(folder, config) for _ in range(2))
    assert one.known("width_costs", "two threads", lambda: {"2": 1.5}) == {"2": 1.5}
    assert other.known("width_costs", "three threads", lambda: {"2": 1.2}) == {"2": 1.2}
    assert other.known("width_costs", "two threads", lambda: {"2": 9.9}) == {"2": 1.5}
    assert in_eight_bits(folder, config).known("width_costs", "two threads", lambda: None) == {"2": 1.5}


def test_what_is_checked_once_is_said_in_plain_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It said "Finding out any width for this CPU", which was a riddle."""
    in_eight_bits(folder, tf.AutoConfig.from_pretrained(folder)).known("any_width", "here", lambda: True)
    assert "Checking batch invariance on this CPU (once)" in capsys.readouterr().err


def test_facts_that_cannot_be_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches costs that are measured anew in every process, and with them texts that differ for one seed."""
    prepared = in_eight_bits(folder, tf.AutoConfig.from_pretrained(folder))

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("outrider.models.engine.prepared.write_record", refused)
    assert prepared.known("any_width", "here", lambda: True) is True
    assert prepared.known("width_costs", "here", lambda: {"2": 1.7}, otherwise={"2": 1.2}) == {"2": 1.2}


def test_costs_never_fall() -> None:
    from outrider.models.width_costs import monotone

    assert monotone({1: 1.0, 2: 0.97, 4: 1.42, 3: 1.44}) == {1: 1.0, 2: 1.0, 3: 1.45, 4: 1.45}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "jax"}, "engine must be one of auto, numba, torch"),
        ({"weights": "int3"}, "weights must be one of full, int8"),
        ({"weights": "int8", "engine": "torch"}, "leave the engine 'torch' out"),
        ({"engine": "onnxruntime"}, "engine='onnxruntime' was removed; leave it out, or use weights='int8'"),
        ({"weights": "int4", "dtype": "float16"}, "it computes in float32, not float16"),
        ({"weights": "int8", "dtype": "bfloat16"}, "choose the dtype float32, or leave the dtype out"),
        ({"engine": "numba", "dtype": "float16"}, "it does not round weights, and these are in float32"),
        ({"engine": "numba", "dtype": "bfloat16"}, "it computes in float32, not bfloat16"),
    ],
)
def test_refused(folder: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        outrider.load(str(folder), **options)


def test_families_without_packed_layers(tmp_path: Path) -> None:
    """Catches an option that is dropped because the model cannot have it."""
    folder = library.save_t5(tmp_path / "t5")
    with pytest.raises(BadOption, match="'t5' have no layers here"):
        outrider.load(str(folder), device="cpu", weights="int8")


def test_bfloat16_where_the_cpu_has_none(folder: Path) -> None:
    """Catches a setting that makes a model slow, and on some CPUs wrong, without a word."""
    with cpu.using(cpus.N1), pytest.warns(UserWarning, match=r"no instructions for bfloat16: .* leave the dtype out"):
        outrider.load(str(folder), "none", "cpu", "bfloat16")


@pytest.mark.parametrize("facts", [cpus.AMX, cpus.A72], ids=lambda facts: facts.name)
def test_a_dtype_that_costs_the_quick_engine(narrow: Path, facts: CpuFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for a dtype made a model several times slower without a word: numba was left out."""
    monkeypatch.setattr("outrider.models.engine.choice.WORTH_FILES", 0)
    with cpu.using(facts), pytest.warns(UserWarning, match="only torch computes in float16 here, .* than numba"):
        outrider.load(str(narrow), "none", "cpu", "float16")


def test_no_trace_of_torchs_own(folder: Path) -> None:
    """torch's first product in bfloat16 showed twenty lines of its C++ functions, on a CPU without instructions."""
    code = f"import outrider; outrider.load({str(folder)!r}, None, 'cpu', 'bfloat16').generate('the', max_new_tokens=3)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "frame #" not in done.stderr and "mkldnn" not in done.stderr


def test_what_auto_chooses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU numba; torch for small models, other devices, and what numba does not compute in."""
    config, cpu, large = tf.AutoConfig.from_pretrained(folder), torch.device("cpu"), 1e9
    auto = Kernels("auto")
    assert chosen_engine(auto, config, cpu, torch.float32, large) == "numba"
    assert chosen_engine(auto, config, cpu, torch.float16, large) == "torch"  # of weights in float32
    config.dtype = torch.bfloat16
    assert chosen_engine(auto, config, cpu, torch.float32, size=1e6) == "torch"
    assert chosen_engine(auto, config, torch.device("cuda"), torch.float32, large) == "torch"
    assert chosen_engine(auto, config, cpu, torch.float32, large) == "numba"
    assert chosen_engine(auto, config, cpu, torch.bfloat16, large, settled=False) == "numba"
    assert chosen_engine(auto, config, cpu, torch.bfloat16, large) == "numba"
    assert chosen_engine(auto, config, cpu, torch.float64, large) == "torch"
    config.intermediate_size = 72
    assert chosen_engine(auto, config, cpu, torch.float32, large) == "torch"
    config.intermediate_size = 64
    monkeypatch.setattr("outrider.models.engine.choice.find_spec", lambda name: None)
    assert chosen_engine(auto, config, cpu, torch.float32, large) == "torch"
    with pytest.raises(BadOption, match=r"pip install '\.\[cpu\]'"):
        chosen_engine(Kernels("auto", "int8"), config, cpu, torch.float32, large)


def test_warm(folder: Path, cache: Path) -> None:
    result = CliRunner().invoke(app, ["warm", str(folder), "--weights", "int8", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert Path(told["path"]).parent == cache
    assert "int8" in told["engine"]
    assert json.loads((Path(told["path"]) / RECORD).read_text())["any_width"]


def test_the_certificate_names_the_engine(folder: Path) -> None:
    from outrider.certificate.conditions import conditions

    told = conditions(outrider.load(str(folder), device="cpu", weights="int8"), slots=1)
    assert "numba" in told["engine"] and "int8" in told["engine"]
    assert told["any_width"] in (True, False)
    assert told["weights"] == "int8"
    assert conditions(outrider.load(str(folder)), slots=1)["engine"] == "torch"
