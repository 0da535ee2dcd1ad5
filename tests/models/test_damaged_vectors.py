"""Checkpoints whose vectors have other lengths than the config says: compiled code checks no bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

import library

pytest.importorskip("numba")

from models.test_engines import SIZES
from outrider.errors import ModelCorrupt
from outrider.models.engine.choice import Kernels
from outrider.models.hub import loading
from outrider.runtime import cpu

pytestmark = [
    pytest.mark.usefixtures("cache"),
    pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication"),
]

QWEN: dict[str, Any] = SIZES | {"num_key_value_heads": 2, "head_dim": 16}
BUILT = {
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**QWEN, attention_bias=True)),
    "olmo2": lambda: tf.Olmo2ForCausalLM(tf.Olmo2Config(**SIZES)),
    "t5": lambda: tf.T5ForConditionalGeneration(
        tf.T5Config(vocab_size=96, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0)
    ),
}
VECTORS = [
    ("qwen3", "q_norm.weight"), ("qwen3", "k_norm.weight"), ("qwen3", "input_layernorm.weight"),
    ("qwen3", "q_proj.bias"), ("qwen3", "o_proj.bias"), ("olmo2", "q_norm.weight"), ("olmo2", "model.norm.weight"),
    ("olmo2", "post_feedforward_layernorm.weight"), ("t5", "layer.0.layer_norm.weight"),
    ("t5", "final_layer_norm.weight"), ("t5", "relative_attention_bias.weight"),
]  # fmt: skip


@pytest.mark.parametrize("longer", [True, False])
@pytest.mark.parametrize(
    ("name", "vector", "weights"),
    [(*each, weights) for each in VECTORS for weights in ("full", "int4") if each[0] != "t5" or weights == "full"],
)
def test_a_vector_of_another_length_is_refused(
    name: str, vector: str, weights: str, longer: bool, tmp_path: Path
) -> None:
    """Norms longer than their rows were written behind them, shorter ones and biases were read beyond their ends."""
    torch.manual_seed(0)
    BUILT[name]().to(torch.bfloat16).save_pretrained(tmp_path)
    library.tokenizer().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {key: found.clone() for key, found in load_file(file).items()}
    changed = [key for key in tensors if key.endswith(vector)]
    for key in changed:
        tensors[key] = torch.cat([tensors[key]] * 5, -1) if longer else tensors[key][..., :1].contiguous()
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ModelCorrupt, match=rf"{vector} is \(.*\), and the config says \(.*\); the checkpoint is"):
        loading.load(str(tmp_path), "cpu", kernels=Kernels("numba", weights))
    assert changed
