"""Models run by onnxruntime: the same function as transformers', and the same bits with and without guesses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor

import tiny
from helpers import case, run
from outrider.drafters import Nothing
from outrider.models.huggingface import HuggingFaceModel
from outrider.testing import check_session
from outrider.types import Shape

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from exactness.test_bits import Recording
from models.test_lean import TEXT, scored
from outrider.models.any_width import bits_do_not_depend_on_width
from outrider.models.onnx_files import prepare
from outrider.models.onnx_model import OnnxModel, OnnxSession, Outline

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 256, "initializer_range": 0.4,
}  # fmt: skip
BUILT = {
    "llama": lambda: tiny.build("llama"),
    "mistral, a window": lambda: tiny.build("mistral"),
    "qwen2, biases": lambda: _with_biases(tiny.build("qwen2")),
    "tied": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=True)),
    "a head each": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES)),
    "biases": lambda: _with_biases(
        tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES, num_key_value_heads=1, attention_bias=True, mlp_bias=True))
    ),
    "stretched positions": lambda: tf.LlamaForCausalLM(
        tf.LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4})
    ),
    "a window in one layer": lambda: tf.Qwen2ForCausalLM(
        tf.Qwen2Config(**SIZES, num_key_value_heads=2, sliding_window=6, use_sliding_window=True, max_window_layers=1)
    ),
}


def _with_biases(model: Any) -> Any:
    """Biases start as zeros, which nobody would miss."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data = torch.randn(parameter.shape, generator=generator)
    return model


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))


def by_onnxruntime(model: Any, folder: Path, int8: bool = False) -> OnnxModel:
    model.save_pretrained(folder)
    config = tf.AutoConfig.from_pretrained(folder)
    return OnnxModel(Outline(config, tf.GenerationConfig.from_model_config(config)), prepare(folder, config, int8))


@pytest.mark.parametrize("name", BUILT)
def test_the_same_function_as_transformers(name: str, tmp_path: Path) -> None:
    """Catches heads in the wrong order, a rotation the wrong way round, a lost bias, a window that is not seen."""
    torch.manual_seed(0)
    model = BUILT[name]()
    expected = scored(HuggingFaceModel(model))
    found = scored(by_onnxruntime(model, tmp_path / "model"))
    assert torch.allclose(found, expected, atol=5e-5)


@pytest.mark.parametrize("name", ["llama", "a head each"])
def test_sessions_keep_their_contract(name: str, tmp_path: Path) -> None:
    """Catches keys written at another row's place, a fork that shares memory, a rollback that is none."""
    check_session(by_onnxruntime(BUILT[name](), tmp_path / "model").start)


def test_states_are_those_of_transformers(tmp_path: Path) -> None:
    """Catches a head that reads another layer than the one it was trained on."""
    model = BUILT["llama"]()
    layers = (0, 1, 2, -1)
    sessions = [other.start(1, Shape(64, 5)) for other in (HuggingFaceModel(model), by_onnxruntime(model, tmp_path))]
    for session in sessions:
        session.keep_states(layers)
        session.admit(0, TEXT)
        session.score(torch.tensor([[5, 6]]))
    expected, found = (session.states[:, : len(TEXT) + 2] for session in sessions)
    assert torch.allclose(found, expected, atol=5e-5)
    assert len({float(found[0, 3, k].sum()) for k in range(3)}) == 3


@pytest.mark.parametrize("int8", [False, True])
def test_logits_are_bit_identical_with_and_without_guesses(int8: bool, tmp_path: Path) -> None:
    """Catches kernels whose bits depend on how many rows there are, taken for ones whose do not."""
    wanted = case("llama")
    model = by_onnxruntime(tiny.build("llama"), tmp_path, int8)
    assert model.any_width, "not wrong, but then this test compares constant widths only"
    plain, speculative = Recording(model), Recording(model)
    texts, _ = run(plain, Nothing(), wanted.requests, 0)
    again, trace = run(speculative, wanted.drafter("table"), wanted.requests, 6)
    assert again == texts
    assert int8 or sum(record.accepted for record in trace.records) > 0
    for row, request in enumerate(wanted.requests):
        for position in range(len(request.prompt), len(request.prompt) + len(texts[row])):
            assert torch.equal(speculative.seen[row, position], plain.seen[row, position]), (row, position)


def test_eight_bits_are_near(tmp_path: Path) -> None:
    model = BUILT["qwen2, biases"]()
    expected, found = scored(HuggingFaceModel(model)), scored(by_onnxruntime(model, tmp_path, int8=True))
    assert 0 < (found - expected).norm() < 0.1 * expected.norm()


def test_runs_are_narrow_where_bits_allow_it(tmp_path: Path) -> None:
    """Catches padding that is run for nothing, and a model that is found to need it and runs without."""
    model = by_onnxruntime(BUILT["llama"](), tmp_path)
    widths: list[int] = []
    ran = OnnxSession._feed

    def watched(self: OnnxSession, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        widths.append(tokens.shape[1])
        return ran(self, tokens, positions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OnnxSession, "_feed", watched)
        for any_width in (True, False):
            model.any_width = any_width
            session = model.start(1, Shape(64, 5))
            session.admit(0, TEXT)
            session.score(torch.tensor([[1, 2]]))
    assert widths == [3, 5]


class Fickle(OnnxSession):
    """Rounds otherwise where a run has exactly four rows."""

    def _feed(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        logits, hidden = super()._feed(tokens, positions)
        return (logits * (1 + 2**-20) if tokens.shape[1] == 4 else logits), hidden


def test_bits_that_depend_on_the_width_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = by_onnxruntime(BUILT["llama"](), tmp_path)
    assert bits_do_not_depend_on_width(model)
    monkeypatch.setattr(model, "start", lambda rows, shape: Fickle(model, rows, shape))
    assert not bits_do_not_depend_on_width(model)
