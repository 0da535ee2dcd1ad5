"""Models that were saved in float32 or float16, by numba: their weights as they are, and the same bits at any width."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import library
import outrider
from outrider.models.transformers.model import HuggingFaceModel
from outrider.runtime import cpu

pytest.importorskip("numba")

from models.test_engines import BUILT, ROUNDING, off_by
from models.test_lean import scored
from models.test_t5_engine import BUILT as T5_BUILT
from models.test_t5_engine import scored as t5_scored
from outrider.models.batch_invariance import bits_do_not_depend_on_width
from outrider.models.engine.backends import BACKENDS, Asked
from outrider.models.engine.model import EngineModel

pytestmark = [
    pytest.mark.cpu_paths,
    pytest.mark.usefixtures("cache"),
    pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication"),
]

SAVED = [torch.float32, torch.float16]
in_half = pytest.mark.skipif(not cpu.facts().computes_in_half, reason="this CPU does not compute in float16")


def saved_in(dtype: torch.dtype, model: Any, folder: Path, weights: str = "float32") -> tuple[Any, EngineModel]:
    """The model with weights of this dtype, in float64; and the same, saved and loaded for the engine."""
    narrow = deepcopy(model).to(dtype)
    narrow.save_pretrained(folder)
    config = tf.AutoConfig.from_pretrained(folder)
    opened = BACKENDS["numba"].open(library.prepared(folder, config, "numba", weights), config)
    exact = deepcopy(model)  # not buffers: rotations are computed in float32
    for whole, given in zip(exact.parameters(), narrow.parameters(), strict=True):
        whole.data = given.data.double()
    return exact.double(), EngineModel(opened, config, tf.GenerationConfig.from_model_config(config))


@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize("name", ["tied", "biases", "wide"])
def test_the_same_function_as_transformers(name: str, saved: torch.dtype, tmp_path: Path) -> None:
    """They were left to torch, which runs nine tokens for one."""
    torch.manual_seed(0)
    exact, model = saved_in(saved, BUILT[name](), tmp_path / "model")
    assert off_by(scored(model), scored(HuggingFaceModel(exact))) < ROUNDING
    assert model.facts.engine.endswith("float32 weights") and model.facts.batch_invariant
    assert bits_do_not_depend_on_width(model)
    tokens = torch.randperm(model.vocab_size).view(1, -1)
    for kept, layer in ((model.embedding, exact.get_input_embeddings()), (model.unembedding, exact.lm_head)):
        assert torch.equal(kept[tokens].double(), layer.weight[tokens])


@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize("name", ["v1.0: relu, tied, scaled", "mt5: gated"])
def test_encoder_decoder_models(name: str, saved: torch.dtype, tmp_path: Path) -> None:
    """Most T5 models were saved in float32."""
    torch.manual_seed(0)
    exact, model = saved_in(saved, T5_BUILT[name](), tmp_path / "model")
    assert off_by(t5_scored(model, [0, 1, 2, 3]), t5_scored(HuggingFaceModel(exact), [0, 1, 2, 3])) < ROUNDING
    alone = [t5_scored(model, [row])[0] for row in range(4)]
    assert all(torch.equal(found, alone[row]) for row, found in enumerate(t5_scored(model, [0, 1, 2, 3])))


@in_half
@pytest.mark.parametrize("name", ["tied", "a head each"])
def test_float16_weights_in_float16(name: str, tmp_path: Path) -> None:
    """The embedding is as it was saved where it is not the output layer, which is scaled."""
    torch.manual_seed(0)
    exact, model = saved_in(torch.float16, BUILT[name](), tmp_path / "model", "float16")
    assert 0 < off_by(scored(model), scored(HuggingFaceModel(exact))) < 0.01
    tokens = torch.randperm(model.vocab_size).view(1, -1)
    assert torch.equal(model.embedding[tokens].double(), exact.get_input_embeddings().weight[tokens])


@pytest.mark.parametrize("saved", SAVED)
def test_the_same_text_with_and_without_guesses(
    saved: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.models.engine.choice.WORTH_FILES", 0)
    folder = library.save_llama(tmp_path / "model")
    tf.AutoModelForCausalLM.from_pretrained(folder, dtype=saved).save_pretrained(folder)
    llm = outrider.load(str(folder), "copy", "cpu", "float32")
    assert llm.target.model.facts.engine.startswith("numba")
    prompt = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
    plain, speculative = (llm.generate(prompt, gamma=gamma, max_new_tokens=40) for gamma in (0, 4))
    assert speculative.tokens == plain.tokens and speculative.trace.runs < plain.trace.runs


@pytest.mark.parametrize(
    ("saved", "weights"),
    [("bfloat16", "bfloat16"), ("float32", "float32"), ("float16", "float32"), (None, "float32")],
)
def test_the_format_follows_what_was_saved(saved: str | None, weights: str) -> None:
    config = tf.LlamaConfig(dtype=saved)
    assert BACKENDS["numba"].weights(Asked(config, torch.float32)) == weights
    assert BACKENDS["numba"].obstacle(Asked(config, torch.float32)) is None
