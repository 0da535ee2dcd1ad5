"""What a GGUF file says and transformers' reader passes over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers as tf

from outrider.errors import ModelError
from outrider.models.hub import gguf, gguf_config, manifest, names
from outrider.models.hub.gguf_config import rotation
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
    assert rotation(FILE, said, 5e5, factors()) == pytest.approx(LLAMA_3) and len(set(factors())) > 3
    assert rotation(FILE, said, 5e5, []) == rotation(FILE, said, 5e5, [1.0] * 32) == {}
    with pytest.raises(ModelError, match=r"model\.gguf: its rotary positions are scaled .* safetensors"):
        rotation(FILE, said, 5e5, [*factors()[:-1], 7.0])


def test_kinds_of_scaling() -> None:
    said = {"general.architecture": "qwen2", "qwen2.rope.scaling.type": "linear", "qwen2.rope.scaling.factor": 4.0}
    first = {"general.architecture": "llama", "llama.rope.scale_linear": 4.0}
    assert rotation(FILE, said, 1e6, []) == rotation(FILE, first, 1e4, []) == {"rope_type": "linear", "factor": 4.0}
    said |= {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.original_context_length": 32768}
    assert rotation(FILE, said, 1e6, []) == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768,
    }  # fmt: skip
    with pytest.raises(ModelError, match="longrope"):
        rotation(FILE, said | {"qwen2.rope.scaling.type": "longrope"}, 1e6, [])


def test_they_are_in_the_config(tmp_path: Path) -> None:
    """Of a file that is run as it is, and of one that is unpacked: both have the file's rotary positions."""
    file = write_gguf(tmp_path / "file.gguf", {"": "Q8_0"}, factors=factors(theta=1e4))
    header = gguf.read_header(file)
    assert header.weights == "Q8_0" and len(header.factors) == 32
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
