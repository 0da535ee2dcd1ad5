"""What a GGUF file says and transformers' reader passes over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import transformers as tf
from gguf import GGUFReader

import gguf_models
from outrider.errors import ModelCorrupt, ModelError
from outrider.models.hub import gguf, gguf_config, manifest, names
from outrider.models.hub.gguf_architectures import FACTORS, LONG_FACTORS, SHORT_FACTORS
from outrider.models.hub.gguf_config import rotation
from outrider.models.hub.gguf_keys import require_known_keys
from tiny_gguf import write_gguf

LLAMA_3 = {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
FILE = Path("model.gguf")


def factors(depth: int = 64, theta: float = 5e5) -> list[float]:
    """As Llama 3.2 has them, by transformers' own function."""
    config = tf.LlamaConfig(head_dim=depth, rope_parameters=LLAMA_3 | {"rope_theta": theta})
    scaled, _ = tf.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    return (theta ** (-torch.arange(0, depth, 2) / depth) / scaled).tolist()  # type: ignore[no-any-return]


def test_factors_of_llama_3() -> None:
    """Files of Llama 3.1 and later have them in a tensor that was passed over: long texts went wrong without a word."""
    said = {"general.architecture": "llama"}
    assert rotation(FILE, said, 5e5, {FACTORS: factors()}) == pytest.approx(LLAMA_3) and len(set(factors())) > 3
    assert rotation(FILE, said, 5e5, {}) == rotation(FILE, said, 5e5, {FACTORS: [1.0] * 32}) == {}
    with pytest.raises(ModelError, match=r"model\.gguf: its rotary positions are scaled .* safetensors"):
        rotation(FILE, said, 5e5, {FACTORS: [*factors()[:-1], 7.0]})


def test_kinds_of_scaling() -> None:
    said = {"general.architecture": "qwen2", "qwen2.rope.scaling.type": "linear", "qwen2.rope.scaling.factor": 4.0}
    first = {"general.architecture": "llama", "llama.rope.scale_linear": 4.0}
    assert rotation(FILE, said, 1e6, {}) == rotation(FILE, first, 1e4, {}) == {"rope_type": "linear", "factor": 4.0}
    said |= {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.original_context_length": 32768}
    assert rotation(FILE, said, 1e6, {}) == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768,
    }  # fmt: skip
    with pytest.raises(ModelError, match="longrope"):
        rotation(FILE, said | {"qwen2.rope.scaling.type": "longrope"}, 1e6, {})


def test_factors_of_longrope() -> None:
    """Files of Phi-3-128k and Phi-4-mini have them in two tensors and name no kind: they ran unscaled, and said other
    things from the first token on."""
    said = {
        "general.architecture": "phi3", "phi3.rope.scaling.original_context_length": 4096,
        "phi3.rope.scaling.attn_factor": 1.19,
    }  # fmt: skip
    given = {SHORT_FACTORS: [1.0, 1.1], LONG_FACTORS: [2.0, 9.0]}
    found = {
        "rope_type": "longrope", "short_factor": [1.0, 1.1], "long_factor": [2.0, 9.0], "attention_factor": 1.19,
        "original_max_position_embeddings": 4096,
    }  # fmt: skip
    assert rotation(FILE, said, 1e4, given) == rotation(FILE, said | {"phi3.rope.scaling.type": "longrope"}, 1e4, given)
    assert rotation(FILE, said, 1e4, given) == found
    for wrong, tensors in (
        (said, {LONG_FACTORS: [2.0, 9.0]}),
        ({"general.architecture": "llama"}, given),
        (said | {"phi3.rope.scaling.type": "linear"}, given),
    ):
        with pytest.raises(ModelError, match=r"rotary positions are scaled \(longrope\).* safetensors"):
            rotation(FILE, wrong, 1e4, tensors)


def gemma(layers: int, hidden: int, heads: int, depth: int, architecture: str) -> Any:
    said = {
        "context_length": 8192, "embedding_length": hidden, "feed_forward_length": 64, "block_count": layers,
        "attention.head_count": heads, "attention.layer_norm_rms_epsilon": 1e-6, "attention.key_length": depth,
        "attention.sliding_window": 1024,
    }  # fmt: skip
    metadata = {f"{architecture}.{name}": value for name, value in said.items()} | {
        "general.architecture": architecture
    }
    return gguf_config.read_config(FILE, metadata, {"token_embd.weight": (300, hidden)}, {})


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "depth", "architecture", "expected"),
    [
        (46, 4608, 32, 128, "gemma2", 144),
        (42, 3584, 16, 256, "gemma2", 256),
        (62, 5376, 32, 128, "gemma3", 168),
        (34, 2560, 8, 256, "gemma3", 256),
    ],
)
def test_what_gemmas_queries_are_scaled_by(
    layers: int, hidden: int, heads: int, depth: int, architecture: str, expected: int
) -> None:
    """No key says it, and all had that of the smaller models: the largest ones ran with other attention."""
    found = gemma(layers, hidden, heads, depth, architecture)
    assert found.query_pre_attn_scalar == expected and found.head_dim == depth and found.vocab_size == 300
    windows = [kind == "sliding_attention" for kind in found.layer_types]
    period = 2 if architecture == "gemma2" else 6
    assert windows == [(layer + 1) % period != 0 for layer in range(layers)] and found.sliding_window == 1024
    if architecture == "gemma2":
        assert (found.attn_logit_softcapping, found.final_logit_softcapping) == (50.0, 30.0)
    else:
        thetas = [found.rope_parameters[kind]["rope_theta"] for kind in ("full_attention", "sliding_attention")]
        assert thetas == [10000.0, 10000.0] and found.final_logit_softcapping is None


def test_keys_that_say_more(tmp_path: Path) -> None:
    """What a file says beside what all of its kind have is honoured, or refused in one line."""
    granite, olmo, phi = (gguf_models.built(name) for name in ("granite", "olmo2", "phi3"))
    plain = gguf_models.write(tmp_path / "a.gguf", granite, "granite")
    without = {"embedding_scale", "residual_scale", "logit_scale", "attention.scale"}
    header = gguf.read_header(plain)
    metadata = {name: value for name, value in header.metadata.items() if name.removeprefix("granite.") not in without}
    found = gguf_config.read_config(plain, metadata, header.shapes, {})
    scales = found.embedding_multiplier, found.residual_multiplier, found.logits_scaling, found.attention_multiplier
    assert scales == (1.0, 1.0, 1.0, 0.25), "as llama.cpp has it"
    for architecture, model, more, message in (
        ("granite", granite, {"rope.scaling.finetuned": False}, "a Granite without rotary positions"),
        ("olmo2", olmo, {"attention.sliding_window": 64}, "OLMo 3, whose layers have windows, is not read"),
        ("granite", granite, {"rope.dimension_count": 8}, "rotary positions for 8 of 16 numbers of a head"),
    ):
        file = gguf_models.write(tmp_path / "b.gguf", model, architecture, **more)
        header = gguf.read_header(file)
        with pytest.raises(ModelError, match=message) as error:
            gguf_config.read_config(file, header.metadata, header.shapes, header.factors)
        assert "safetensors files" in str(error.value) and "\n" not in str(error.value)
    file = gguf_models.write(tmp_path / "c.gguf", phi, "phi3")
    header = gguf.read_header(file)
    found = gguf_config.read_config(file, header.metadata, header.shapes, header.factors).rope_parameters
    assert found["partial_rotary_factor"] == 0.75 and found["long_factor"] == gguf_models.LONGROPE["long_factor"]


@pytest.mark.parametrize(
    ("architecture", "extra", "message"),
    [
        ("mamba7", None, "GGUF files of architecture 'mamba7' are not read here; use .* or a model of one of gemma, "),
        ("olmo2", "blk.0.ffn_gate_inp.weight", "'olmo2' with a tensor blk.0.ffn_gate_inp.weight is not read here; use"),
        ("llama", "blk.0.ffn_gate_inp.weight", "'llama' with a tensor blk.0.ffn_gate_inp.weight is not read here; use"),
        ("llama", "blk.weight", "'llama' with a tensor blk.weight is not read here; use"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_what_is_not_read(architecture: str, extra: str | None, message: str, tmp_path: Path) -> None:
    """It was told in the words of a class, without what to do about it."""
    file = write_gguf(tmp_path / "file.gguf", {"": "Q8_0"}, extra, architecture)
    with pytest.raises(ModelError, match=message) as error:
        names.directory(str(file))
    assert "safetensors files" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.usefixtures("cache")
def test_what_transformers_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a damaged gguf package it was said that llama is not read, beside a list in which llama stands."""

    def refused(*_: Any, **__: Any) -> Any:
        raise ValueError("Invalid version: 'N/A'\nand more")

    monkeypatch.setattr(tf.AutoConfig, "from_pretrained", refused)
    with pytest.raises(ModelError, match="transformers cannot read its config: Invalid version: 'N/A'$"):
        names.directory(str(write_gguf(tmp_path / "file.gguf", {"": "Q8_0"})))


@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [
        ("llama", "attention.scale", 0.5),
        ("llama", "attention.sliding_window", 32),
        ("llama", "attention.causal", False),
        ("llama", "expert_count", 8),
        ("llama", "rope.scaling.attn_factor", 1.19),
        ("qwen2", "logit_scale", 0.25),
        ("qwen3", "attention.value_length", 16),
        ("qwen2", "feed_forward_length", [64, 128]),
        ("llama", "attention.sliding_window", [32, 0]),
        ("qwen2", "rope.scaling.yarn_beta_fast", 16.0),
        ("phi3", "rope.scaling.attn_factor", 1.19),
        ("gemma3", "attn_logit_softcapping", 50.0),
    ],
)
def test_a_key_that_no_layer_here_honours(architecture: str, key: str, value: Any) -> None:
    """Another attention or other logits, without a word: such keys were passed over, and transformers' reader does."""
    said = {"general.architecture": architecture, f"{architecture}.context_length": 4096}
    if architecture == "qwen3":
        said["qwen3.attention.key_length"] = 32
    require_known_keys(FILE, said)
    with pytest.raises(ModelError, match=r"(?s)safetensors files$") as error:
        if key == "rope.scaling.attn_factor":
            rotation(FILE, said | {f"{architecture}.{key}": value}, 1e4, {})
        else:
            require_known_keys(FILE, said | {f"{architecture}.{key}": value})
    assert "\n" not in str(error.value) and (key in str(error.value) or "factor of attention" in str(error.value))


@pytest.mark.parametrize("size", [6, 20, 90, 1000, -1])
def test_a_file_that_was_cut_short(size: int, tmp_path: Path) -> None:
    """It was told in numpy's words: "When changing to a larger dtype, its size must be a divisor of ..."."""
    whole = write_gguf(tmp_path / "a.gguf").read_bytes()[:size]
    (tmp_path / "b.gguf").write_bytes(whole)
    with pytest.raises(ModelCorrupt, match=rf"b\.gguf: .* ends too early, after {len(whole)} bytes; get it again$"):
        gguf.read_header(tmp_path / "b.gguf")


@pytest.mark.parametrize("order", ["little", "big"])
def test_a_file_of_another_version(order: Literal["little", "big"], tmp_path: Path) -> None:
    """It was called truncated or damaged: getting it again gave the same file."""
    file = write_gguf(tmp_path / "a.gguf")
    file.write_bytes(b"GGUF" + (99).to_bytes(4, order) + file.read_bytes()[8:])
    with pytest.raises(ModelError, match="of GGUF version 99, which is not known here; known are 2, 3; get") as error:
        gguf.read_header(file)
    assert not isinstance(error.value, ModelCorrupt)


def test_a_tensor_of_a_type_that_is_not_known(tmp_path: Path) -> None:
    """Files of newer releases of llama.cpp have them; such a file was called truncated or damaged."""
    file = write_gguf(tmp_path / "a.gguf")
    written = GGUFReader(file).tensors[0].field
    place = written.offset + sum(part.nbytes for part in written.parts[:4])
    content = file.read_bytes()
    file.write_bytes(content[:place] + (99).to_bytes(4, "little") + content[place + 4 :])
    says = "has a tensor of type 99, which is not known here; quantise the model to one of Q4_0, Q4_1, .*, or get"
    with pytest.raises(ModelError, match=says) as error:
        gguf.read_header(file)
    assert not isinstance(error.value, ModelCorrupt)


def test_keys_without_effect() -> None:
    """What changes nothing is no reason to refuse a file: no experts, a window of all positions."""
    said = {
        "general.architecture": "llama", "llama.context_length": 4096, "llama.attention.sliding_window": 4096,
        "llama.expert_count": 0, "llama.vocab_size": 300, "llama.attention.causal": True, "llama.logit_scale": 1.0,
        "llama.rope.scaling.finetuned": True, "llama.attention.scale": 0.0, "other.logit_scale": 3.0,
        "llama.attention.key_length": 64, "llama.attention.value_length": 64,
        "llama.attention.layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    require_known_keys(FILE, said)


def test_keys_are_looked_at_when_a_file_is_read(tmp_path: Path) -> None:
    file = gguf_models.write(tmp_path / "a.gguf", gguf_models.built("qwen2"), "qwen2", logit_scale=0.25)
    header = gguf.read_header(file)
    with pytest.raises(ModelError, match=r"a\.gguf: qwen2\.logit_scale = 0\.25 is not read from GGUF files here; use"):
        gguf_config.read_config(file, header.metadata, header.shapes, header.factors)


def test_they_are_in_the_config(tmp_path: Path) -> None:
    """Of a file that is run as it is, and of one that is unpacked: both have the file's rotary positions."""
    file = write_gguf(tmp_path / "file.gguf", {"": "Q8_0"}, factors=factors(theta=1e4))
    header = gguf.read_header(file)
    assert header.weights == "Q8_0" and len(header.factors[FACTORS]) == 32
    for name, write in (("described", gguf.describe), ("converted", gguf.convert)):
        (tmp_path / name).mkdir()
        write(file, header, tmp_path / name)
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["rope_parameters"] == pytest.approx(LLAMA_3 | {"rope_theta": 1e4})
    weights = tf.AutoModelForCausalLM.from_pretrained(tmp_path / "converted").state_dict()
    assert all(not torch.equal(weight, torch.ones_like(weight)) for weight in weights.values())


@pytest.mark.usefixtures("cache")
def test_a_file_that_an_earlier_release_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings lacked what was passed over then, and would have been used for ever."""
    file = write_gguf(tmp_path / "file.gguf", {"": "Q8_0"}, factors=factors(theta=1e4))
    with monkeypatch.context() as earlier:
        earlier.setattr(manifest, "FORMAT", 1)
        earlier.setattr(gguf_config, "rotation", lambda *_: {})
        folder = names.directory(str(file))
    config = json.loads((names.directory(str(file)) / "config.json").read_text())
    written = (folder / "config.json").stat().st_mtime_ns
    assert config["rope_parameters"]["rope_type"] == "llama3" and names.directory(str(file)) == folder
    assert (folder / "config.json").stat().st_mtime_ns == written, "once is enough"
