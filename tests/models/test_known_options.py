"""What a config asks for and an engine does not compute is refused by the choice of the engine, never passed over."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from outrider.errors import BadOption
from outrider.models.engine.backends import BACKENDS
from outrider.models.engine.choice import Kernels, chosen_engine
from outrider.models.engine.known_options import unknown_option
from outrider.models.hub.plain_settings import Settings
from outrider.models.llama_layer import LLAMA
from outrider.models.transformers.families import FAMILIES

CPU = torch.device("cpu")


def chosen(config: Any, engine: str = "auto") -> str:
    config.dtype = torch.bfloat16
    return chosen_engine(Kernels(engine), config, CPU, torch.float32, 1e9, tried=False)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.models.engine.choice.find_spec", lambda name: name)


LONG = {"rope_type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48, "rope_theta": 1e4}
KNOWN: dict[str, Any] = {
    "llama": tf.LlamaConfig(),
    "mistral": tf.MistralConfig(),
    "mistral, no window": tf.MistralConfig(sliding_window=None),
    "qwen2": tf.Qwen2Config(use_sliding_window=True, sliding_window=64, max_window_layers=3),
    "qwen3": tf.Qwen3Config(attention_bias=True),
    "phi3": tf.Phi3Config(sliding_window=2047),
    "granite": tf.GraniteConfig(embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0),
    "smollm3": tf.SmolLM3Config(no_rope_layer_interval=3),
    "olmo2": tf.Olmo2Config(),
    "gemma": tf.GemmaConfig(),
    "gemma2": tf.Gemma2Config(attn_logit_softcapping=None),
    "gemma3": tf.Gemma3TextConfig(),
    "phi3's long texts": tf.Phi3Config(rope_parameters=LONG, max_position_embeddings=131072),
    "dynamic": tf.LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
    "an option of nobody's": tf.LlamaConfig(made_with="a tool", is_llama_config=True),
    "llama3": tf.LlamaConfig(
        rope_parameters={
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_theta": 5e5,
        }
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_options_that_the_compiled_layers_compute(name: str) -> None:
    """Catches a check that sends a model of a known family to torch."""
    assert chosen(KNOWN[name], "numba") == "numba"
    assert chosen(KNOWN[name]) == "numba"


REFUSED: dict[str, tuple[Any, str]] = {
    "a kind of rotary positions of nobody's": (
        tf.LlamaConfig(rope_parameters={"rope_type": "proportional", "factor": 2.0, "rope_theta": 1e4}),
        "rotary positions of type 'proportional'",
    ),
    "partly rotary, where the family is not": (
        tf.LlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        "rotary positions with partial_rotary_factor 0.5",
    ),
    "sections of rotary positions": (
        tf.Qwen2Config(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]}),
        "rotary positions with mrope_section",
    ),
    "another activation": (tf.LlamaConfig(hidden_act="relu"), "models of type 'llama' have no layers here"),
    "attention in both directions": (
        tf.GemmaConfig(use_bidirectional_attention=True), "no option use_bidirectional_attention, which is True"
    ),
    "an odd number of rotary positions": (
        tf.Phi3Config(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.27}),
        "rotary positions of 25 numbers of 96",
    ),
    "mixtures of experts": (tf.MixtralConfig(), "models of type 'mixtral' have no layers here"),
    "mixtures of Qwen's": (tf.Qwen3MoeConfig(), "models of type 'qwen3_moe' have no layers here"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_they_do_not_compute(name: str) -> None:
    """One clear line where the engine was asked for; torch where it was not."""
    config, message = REFUSED[name]
    with pytest.raises(BadOption, match=message) as error:
        chosen(config, "numba")
    assert "leave it out" in str(error.value) and "\n" not in str(error.value)
    assert chosen(config) == "torch"


class Grown(tf.LlamaConfig):  # type: ignore[misc]
    """A Llama's config as a later release might have it: with an option that changes the layers."""

    def __init__(self, sinks: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sinks = sinks


def test_an_option_of_a_later_release() -> None:
    """A list of what to refuse would not have it: everything is refused that is not known."""
    assert chosen(Grown(), "numba") == "numba"
    with pytest.raises(BadOption, match="its layers have no option sinks, which is 4 in config.json"):
        chosen(Grown(sinks=4), "numba")


OTHERS = [name for name, family in FAMILIES.items() if family.design and not family.design.is_llamas]


@pytest.mark.parametrize("name", OTHERS)
def test_other_engines_run_a_llamas_layers_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their graphs would pass over norms and multipliers."""
    monkeypatch.setitem(BACKENDS, "mine", replace(BACKENDS["numba"], designs=False))
    config = tf.AutoConfig.for_model(name)
    with pytest.raises(BadOption, match=f"models of type '{name}' have no layers here"):
        chosen(config, "mine")


def test_a_converted_model_says_all_itself(tmp_path: Path) -> None:
    """Its config is read without transformers' class: nothing there says what the defaults are."""
    said = {"model_type": "llama", "hidden_act": "silu", "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    harmless = {"unk_token_id": 0, "_model_name_or_path": "a"}
    for more, expected in ((harmless, None), ({"sinks": 4}, "sinks, which is 4"), ({"sinks": None}, None)):
        (tmp_path / "config.json").write_text(json.dumps(said | more))
        found = unknown_option(Settings(tmp_path / "config.json"), LLAMA)
        assert found is None if expected is None else found is not None and expected in found
