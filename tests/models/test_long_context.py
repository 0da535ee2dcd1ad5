"""Long texts by the compiled engine: transformers' function, and bits that depend on nothing but the text."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor

import cpus
import library
import outrider
from outrider.core.protocols import Admission, Shape, admit_all
from outrider.errors import BadOption
from outrider.models.engine.choice import Kernels
from outrider.models.engine_protocol import Wanted
from outrider.models.transformers.model import HuggingFaceModel
from outrider.runtime import cpu
from outrider.runtime.cpu import CpuFacts

pytest.importorskip("numba")

from models.test_engines import ROUNDING, SIZES, off_by, rounded
from outrider.kernels.numba.attention_room import TILE
from outrider.kernels.numba.thread_team import ThreadTeam
from outrider.models.engine.model import EngineModel
from outrider.models.engine.numba_engine import NumbaEngine, kv_cache_default
from outrider.models.hub import loading

pytestmark = [
    pytest.mark.cpu_paths,
    pytest.mark.usefixtures("cache"),
    pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication"),
]

LENGTH = 2 * TILE + 40
TEXT = torch.randint(3, 96, (1, LENGTH), generator=torch.Generator().manual_seed(5))
FORMATS = [
    ("bfloat16", "float32"),
    ("bfloat16", "bfloat16"),
    pytest.param(
        "bfloat16",
        "float16",
        marks=[
            pytest.mark.skipif(not cpu.facts().converts_half, reason="this CPU has no float16"),
            pytest.mark.skipif(cpu.facts().computes_in_half, reason="this CPU computes in float16: the next one"),
        ],
    ),
    pytest.param(
        "float16",
        "float16",
        marks=pytest.mark.skipif(not cpu.facts().computes_in_half, reason="this CPU does not compute in float16"),
    ),
]
"""Weights, and keys and values: each compiles the layers anew, so not all pairs."""

LONG = {"max_position_embeddings": 2 * LENGTH, "initializer_range": 0.2}
BUILT: dict[str, Any] = {
    "three heads share keys": lambda: tf.LlamaForCausalLM(
        tf.LlamaConfig(
            **SIZES | {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 20} | LONG
        )
    ),
    "a window": lambda: tf.MistralForCausalLM(
        tf.MistralConfig(**SIZES | LONG, num_key_value_heads=2, sliding_window=TILE + 30)
    ),
}


def opened(name: str, folder: Path, weights: str, kv_cache_dtype: str) -> tuple[Any, EngineModel]:
    torch.manual_seed(0)
    model = rounded(BUILT[name]())
    deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    config = tf.AutoConfig.from_pretrained(folder)
    engine = NumbaEngine(library.prepared(folder, config, "numba", weights), config, kv_cache_dtype)
    return model, EngineModel(engine, config, tf.GenerationConfig.from_model_config(config))


def whole(model: Any) -> Tensor:
    """Logits of the whole text in one run."""
    session = model.start(1, Shape(LENGTH + 8, LENGTH, fixed=False))
    session.admit(0, TEXT[0, :1].tolist())
    found: Tensor = session.score(TEXT[:, 1:])
    return found


def behind(model: EngineModel, length: int, guesses: int) -> Tensor:
    """Logits of the last token of a prefix and of tokens behind it."""
    session = model.start(1, Shape(LENGTH + 8, 9, fixed=False))
    session.admit(0, TEXT[0, :length].tolist())
    return session.score(TEXT[:, length : length + guesses])


@pytest.mark.parametrize(("weights", "kv_cache_dtype"), FORMATS)
def test_prefixes_are_copied_to_the_bit(weights: str, kv_cache_dtype: str, tmp_path: Path) -> None:
    """Of any length: sixteen keys are one block, and clearing behind a copied part of one cleared some of its keys."""
    _, model = opened("a window", tmp_path / "model", weights, kv_cache_dtype)
    session = model.start(2, Shape(LENGTH + 8, 9, fixed=False))
    session.share_prefixes = True
    session.admit(0, TEXT[0, :100].tolist())
    session.release(0)
    other = (TEXT[0, :80] + 1).clamp(max=95).tolist()
    for length in (17, 31, 32, 33, 40, 47, 63, 79):
        prompt = TEXT[0, :length].tolist() + other[length:]
        plain = model.start(2, Shape(LENGTH + 8, 9, fixed=False))
        for each in (session, plain):
            each.admit(1, prompt)
        found, expected = (each.score(TEXT[:, :4].expand(2, -1))[1] for each in (session, plain))
        assert torch.equal(found, expected), length
        session.release(1)
        session.forget(1)
    assert session.reused >= 17 + 31 + 32


@pytest.mark.parametrize(("weights", "kv_cache_dtype"), FORMATS)
@pytest.mark.parametrize("name", BUILT)
def test_bits_depend_on_the_text_alone(name: str, weights: str, kv_cache_dtype: str, tmp_path: Path) -> None:
    """Widths, prefill chunks, threads and rows beside, where contexts cross the borders of tiles."""
    _, model = opened(name, tmp_path / "model", weights, kv_cache_dtype)
    assert model.facts.batch_invariant and model.facts.capacity_invariant
    expected = whole(model)
    engine = model.engine
    assert isinstance(engine, NumbaEngine)
    for threads, chunk in ((1, 128), (2, 16), (5, 512)):
        engine.threads, engine._team, engine.prefill_tokens = threads, ThreadTeam(threads), chunk
        for length, guesses in ((TILE - 1, 3), (TILE, 0), (TILE + 1, 8), (2 * TILE + 20, 1)):
            found = behind(model, length, guesses)
            assert torch.equal(found, expected[:, length - 1 : length + guesses]), (threads, chunk, length)
    session = model.start(3, Shape(LENGTH + 8, 9, fixed=False))
    lengths = [2 * TILE + 5, 9, TILE + 2]
    admit_all(session, [Admission(row, TEXT[0, :length].tolist()) for row, length in enumerate(lengths)])
    beside = session.score(torch.cat([TEXT[:, length : length + 4] for length in lengths]))
    for row, length in enumerate(lengths):
        assert torch.equal(beside[row], expected[0, length - 1 : length + 4])


@pytest.mark.parametrize(("weights", "kv_cache_dtype"), FORMATS)
@pytest.mark.parametrize("name", BUILT)
def test_the_function_of_transformers(name: str, weights: str, kv_cache_dtype: str, tmp_path: Path) -> None:
    """To float32 where all is float32; keys and values of 16 bits are as near as these are."""
    reference, model = opened(name, tmp_path / "model", weights, kv_cache_dtype)
    expected = HuggingFaceModel(reference.double())
    limit = {"float32": ROUNDING, "bfloat16": 3e-2, "float16": 1e-2}[kv_cache_dtype]
    error = off_by(whole(model), whole(expected))
    assert error < limit
    assert kv_cache_dtype == "float32" or error > ROUNDING / 10, "these are not 16 bits"


@pytest.mark.parametrize(("weights", "kv_cache_dtype"), FORMATS[:1] + FORMATS[-1:])
def test_rows_that_change_places_take_their_keys_along(weights: str, kv_cache_dtype: str, tmp_path: Path) -> None:
    """Keys lie in blocks: a move of the positions in use alone would cut the last block in two."""
    _, model = opened("three heads share keys", tmp_path / "model", weights, kv_cache_dtype)
    expected = whole(model)
    lengths = [TILE + 7, 21]
    session = model.start(2, Shape(LENGTH + 8, 9, fixed=False))
    admit_all(session, [Admission(row, TEXT[0, :length].tolist()) for row, length in enumerate(lengths)])
    session.cache.reorder(torch.tensor([1, 1]), 20)
    cache = session.cache.select(torch.tensor([1, 0]))
    for rows in (session.cache, cache):
        positions = torch.tensor([[20, 21], [20, 21]])
        found = model.engine.run(TEXT[:, 20:22].expand(2, -1), positions, rows, Wanted())
        assert found.logits is not None
        assert all(torch.equal(found.logits[row], expected[0, 20:22]) for row in range(2))


def test_a_format_that_cannot_be_had_is_an_error(tmp_path: Path) -> None:
    """Never dropped silently: torch has a KV cache of its own."""
    with pytest.raises(BadOption, match="kv_cache_dtype must be one of auto, float32, bfloat16, float16, got 'int4'"):
        Kernels(kv_cache_dtype="int4")
    folder = library.save_llama(tmp_path / "model")
    with pytest.raises(BadOption, match="kv_cache_dtype 'bfloat16' cannot be used: .* is run by torch"):
        outrider.load(str(folder), None, "cpu", engine="torch", kv_cache_dtype="bfloat16")


def test_float32_that_was_asked_for_is_float32_for_keys_and_values_too(tmp_path: Path) -> None:
    """Catches a dtype that reaches products only: by AMX keys and values would be rounded to bfloat16 all the same."""
    folder = library.save_llama(tmp_path / "model")
    model = tf.AutoModelForCausalLM.from_pretrained(folder)
    model.to(torch.bfloat16).save_pretrained(folder)
    stored = {}
    for dtype in ("float32", "bfloat16"):
        found = loading.load(str(folder), "cpu", dtype, kernels=Kernels("numba")).model
        assert isinstance(found, EngineModel) and isinstance(found.engine, NumbaEngine)
        stored[dtype] = found.engine.kv_cache_dtype
    assert stored == {dtype: kv_cache_default(dtype) for dtype in stored}


@pytest.mark.parametrize(
    ("facts", "bfloat16", "packed"),
    [
        (cpus.AMX, "bfloat16", "bfloat16"),
        (cpus.VNNI, "float16", "float16"),
        (cpus.AVX2, "float16", "float16"),
        (cpus.GENERIC, "float32", "float32"),
        (cpus.N1, "float32", "float16"),
        (cpus.A72, "float16", "float16"),
    ],
    ids=lambda value: value.name if isinstance(value, CpuFacts) else value,
)
def test_what_keys_and_values_are_stored_in(facts: CpuFacts, bfloat16: str, packed: str) -> None:
    """Sixteen bits where they are read at once, and never less than was asked for with float32."""
    with cpu.using(facts):
        assert [kv_cache_default(weights) for weights in ("bfloat16", "int4", "float32")] == [
            bfloat16, packed, "float32"
        ]  # fmt: skip
