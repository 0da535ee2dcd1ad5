"""Models run by other engines than torch: transformers' function, and the same bits with and without guesses."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor

import library
import tiny
from helpers import case, run
from outrider.core.protocols import Shape
from outrider.drafters import Nothing
from outrider.models.transformers.model import HuggingFaceModel
from outrider.runtime import cpu
from outrider.testing import check_session

pytest.importorskip("numba")

from exactness.test_bits import Recording
from models.test_lean import TEXT, scored
from outrider.models.batch_invariance import bits_do_not_depend_on_width
from outrider.models.cached_session import CachedSession
from outrider.models.engine.backends import BACKENDS
from outrider.models.engine.model import EngineModel
from outrider.models.engine_protocol import Wanted

pytestmark = [pytest.mark.cpu_paths, pytest.mark.usefixtures("cache")]

with_fma = pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication")
ENGINES = [pytest.param("numba", marks=with_fma)]

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 256, "initializer_range": 0.4,
}  # fmt: skip
WIDE: dict[str, Any] = SIZES | {
    "vocab_size": 101, "hidden_size": 160, "intermediate_size": 1600, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 80,  # one block of 64 and one of 16
}  # fmt: skip
"""Large enough for every way through the compiled layers: blocks of a head, items of several panels, uneven ends."""

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
    "wide": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**WIDE)),
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


def rounded(model: Any) -> Any:
    """With weights that are bfloat16, as which numba keeps them, in float32."""
    for parameter in model.parameters():  # not buffers: rotations are computed in float32
        parameter.data = parameter.data.to(torch.bfloat16).to(torch.float32)
    return model


def run_by(
    engine: str, model: Any, folder: Path, weights: str = "bfloat16", kv_cache_dtype: str = "float32"
) -> EngineModel:
    """The model, saved in bfloat16 and loaded for an engine."""
    deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    config = tf.AutoConfig.from_pretrained(folder)
    # numba in float32 arithmetic: test_half.py has it in float16, test_long_context.py keys and values in 16 bits
    prepared = library.prepared(folder, config, engine, weights)
    stored = {"kv_cache_dtype": kv_cache_dtype} if BACKENDS[engine].kv_cache_dtypes else {}
    opened = BACKENDS[engine].open(prepared, config, **stored)
    return EngineModel(opened, config, tf.GenerationConfig.from_model_config(config))


ROUNDING = 1e-4 if cpu.facts().has_amx else 2e-5
"""More than float32 does to any of these models (1e-6 to 4e-6 was seen), or AMX, which reads inputs of 17 bits, and far
less than any mistake."""


def off_by(found: Tensor, expected: Tensor) -> float:
    """Relative error over all numbers together."""
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", BUILT)
def test_the_same_function_as_transformers(name: str, engine: str, tmp_path: Path) -> None:
    """Catches heads in the wrong order, a rotation the wrong way round, a lost bias, a window that is not seen.

    Compared with float64: transformers' own float32 is as far from that as an engine's, in another direction on every
    CPU, and a bound on the distance between the two held on one CPU only.
    """
    torch.manual_seed(0)
    model = rounded(BUILT[name]())
    expected = scored(HuggingFaceModel(deepcopy(model).double()))
    found = scored(run_by(engine, model, tmp_path / "model"))
    assert off_by(found, expected) < ROUNDING


@with_fma
@pytest.mark.parametrize("name", ["tied", "a head each", "wide"])
def test_rows_looked_up_in_panels(name: str, tmp_path: Path) -> None:
    """Catches a row of another token, and an embedding that is kept twice."""
    torch.manual_seed(0)
    model = rounded(BUILT[name]())
    found = run_by("numba", model, tmp_path / "model")
    tokens = torch.randperm(found.vocab_size).view(1, -1)
    for kept, layer in ((found.embedding, model.get_input_embeddings()), (found.unembedding, model.lm_head)):
        assert torch.equal(kept[tokens], layer.weight[tokens]) and torch.equal(kept[:9], layer.weight[:9])
        assert kept.shape == layer.weight.shape and kept.dtype == torch.float32
    places = found.prepared.record["places"]
    assert (places["embedding"] == places["output"]) == (name == "tied")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["llama", "a head each"])
def test_sessions_keep_their_contract(name: str, engine: str, tmp_path: Path) -> None:
    """Catches keys written at another row's place, a fork that shares memory, a rollback that is none."""
    check_session(run_by(engine, BUILT[name](), tmp_path / "model").start)


@pytest.fixture
def three_threads() -> Iterator[None]:
    """More than there may be cores: threads come late, and take over from each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@with_fma
@pytest.mark.usefixtures("three_threads")
def test_threads_that_share_an_engine(tmp_path: Path) -> None:
    """Catches work done twice or not at all, helpers that see another run's buffers, bits that depend on who did it."""
    torch.manual_seed(0)
    model = run_by("numba", rounded(BUILT["wide"]()), tmp_path)
    assert model.engine.threads == 3 and model.facts.batch_invariant
    texts = [[token % 101 for token in range(start, start + 40)] for start in range(4)]

    def logits(text: list[int]) -> Tensor:
        session = model.start(1, Shape(64, 9))
        session.admit(0, text[:32])
        tails = [torch.tensor([text[32 : 32 + guesses]], dtype=torch.int64) for guesses in (0, 3, 8)]
        return torch.cat([session.score(tail) for tail in tails], 1)

    expected = [logits(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for found, alone in zip(pool.map(logits, texts), expected, strict=True):
                assert torch.equal(found, alone)


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_written_behind_the_cache(engine: str, tmp_path: Path) -> None:
    """Compiled code writes wherever it is told to: a position behind the last would be another tensor's memory."""
    model = run_by(engine, rounded(BUILT["llama"]()), tmp_path)
    cache = model.engine.allocate(1, Shape(8, 9))
    with pytest.raises((IndexError, RuntimeError)):
        model.engine.run(torch.zeros((1, 2), dtype=torch.int64), torch.tensor([[7, 8]]), cache, Wanted())


@pytest.mark.parametrize("engine", ENGINES)
def test_states_are_those_of_transformers(engine: str, tmp_path: Path) -> None:
    """Catches a head that reads another layer than the one it was trained on."""
    model = rounded(BUILT["llama"]())
    layers = (0, 1, 2, -1)
    others = HuggingFaceModel(deepcopy(model).double()), run_by(engine, model, tmp_path)
    sessions = [other.start(1, Shape(64, 5)) for other in others]
    for session in sessions:
        session.keep_states(layers)
        session.admit(0, TEXT)
        session.score(torch.tensor([[5, 6]]))
    expected, found = (session.states[:, : len(TEXT) + 2] for session in sessions)
    assert all(off_by(found[:, :, k], expected[:, :, k]) < ROUNDING for k in range(len(layers)))
    assert len({float(found[0, 3, k].sum()) for k in range(3)}) == 3


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
@pytest.mark.parametrize("engine", ENGINES)
def test_logits_are_bit_identical_with_and_without_guesses(engine: str, weights: str, tmp_path: Path) -> None:
    """Catches kernels whose bits depend on how many rows there are, taken for ones whose do not."""
    wanted = case("llama")
    model = run_by(engine, rounded(tiny.build("llama")), tmp_path, weights)
    assert model.facts.batch_invariant, "not wrong, but then this test compares constant widths only"
    plain, speculative = Recording(model), Recording(model)
    texts, _ = run(plain, Nothing(), wanted.requests, 0)
    again, trace = run(speculative, wanted.drafter("table"), wanted.requests, 6)
    assert again == texts
    assert weights == "int8" or sum(record.accepted for record in trace.records) > 0
    for row, request in enumerate(wanted.requests):
        for position in range(len(request.prompt), len(request.prompt) + len(texts[row])):
            assert torch.equal(speculative.seen[row, position], plain.seen[row, position]), (row, position)


@with_fma
def test_runs_are_narrow_where_bits_allow_it(tmp_path: Path) -> None:
    """Catches padding that is run for nothing, and a model that is found to need it and runs without."""
    model = run_by("numba", BUILT["llama"](), tmp_path)
    widths: list[int] = []
    ran = CachedSession._feed

    def watched(self: CachedSession, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        widths.append(tokens.shape[1])
        return ran(self, tokens, positions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CachedSession, "_feed", watched)
        for invariant in (True, False):
            model.facts = replace(model.facts, batch_invariant=invariant)
            session = model.start(1, Shape(64, 5))
            session.admit(0, TEXT)
            session.score(torch.tensor([[1, 2]]))
    assert widths == [3, 5]


class Fickle(CachedSession):
    """Rounds otherwise where a run has exactly four rows."""

    def _feed(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        logits, hidden = super()._feed(tokens, positions)
        return (logits * (1 + 2**-20) if tokens.shape[1] == 4 else logits), hidden


@with_fma
def test_bits_that_depend_on_the_width_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = run_by("numba", BUILT["llama"](), tmp_path)
    assert bits_do_not_depend_on_width(model)
    monkeypatch.setattr(model, "start", lambda rows, shape: Fickle(model, rows, shape))
    assert not bits_do_not_depend_on_width(model)
