"""T5-like models compiled by numba: transformers' function, and the same bits alone, beside others and with guesses."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor

import library
import tiny
from helpers import case, run
from outrider.core.protocols import Admission, Shape
from outrider.drafters import Nothing
from outrider.errors import BadOption, PromptError
from outrider.models.transformers.model import HuggingFaceModel
from outrider.runtime import cpu
from outrider.testing import check_session

pytest.importorskip("numba")

from exactness.test_bits import Recording
from models.test_engines import ROUNDING, off_by, rounded, with_fma
from outrider.kernels.numba import t5
from outrider.models.engine.backends import BACKENDS
from outrider.models.engine.model import EngineModel
from outrider.models.engine_protocol import Wanted

pytestmark = [pytest.mark.cpu_paths, pytest.mark.usefixtures("cache"), with_fma]

half = pytest.param(
    "float16", marks=pytest.mark.skipif(not cpu.facts().computes_in_half, reason="this CPU does not compute in float16")
)

SIZES: dict[str, Any] = {
    "vocab_size": 101, "d_model": 64, "d_ff": 96, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 3, "d_kv": 16,
}  # fmt: skip
BUILT = {
    "v1.0: relu, tied, scaled": lambda: tf.T5ForConditionalGeneration(tf.T5Config(**SIZES)),
    "v1.1: gated, an output layer of its own": lambda: tiny.build("t5"),
    "v1.1: not scaled": lambda: tf.T5ForConditionalGeneration(
        tf.T5Config(**SIZES, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    ),
    "mt5": lambda: tiny.build("mt5"),
    "mt5: gated": lambda: tf.MT5ForConditionalGeneration(tf.MT5Config(**SIZES, feed_forward_proj="gated-gelu")),
    "heads of 80, more panels than threads": lambda: tf.T5ForConditionalGeneration(
        tf.T5Config(**SIZES | {"d_model": 160, "d_kv": 80, "d_ff": 400}, feed_forward_proj="gated-silu")
    ),
}
SOURCES = [[5, 6, 7, 8, 9], [(7 * place + 3) % 96 for place in range(150)], [11], [3, 4, 5, 6, 7, 8, 9, 10, 12]]
"""One of them longer than the distance from which on relative positions are all alike."""

TEXTS = [[0, 5, 6], [0], [0, *((5 * place + 4) % 96 for place in range(140))], [0, 9]]
SHAPE = Shape(256, 9, source_capacity=160, fixed=False)


def by_numba(model: Any, folder: Path, weights: str = "bfloat16") -> EngineModel:
    """The model, saved in bfloat16 and loaded for the engine."""
    deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    config = tf.AutoConfig.from_pretrained(folder)
    opened = BACKENDS["numba"].open(library.prepared(folder, config, "numba", weights), config)
    return EngineModel(opened, config, tf.GenerationConfig.from_model_config(config))


def built(name: str) -> Any:
    torch.manual_seed(0)
    return rounded(BUILT[name]())


def scored(model: Any, rows: list[int], guesses: int = 8) -> Tensor:
    """Logits of some of the rows, all together, behind their texts and behind guesses -> [rows, guesses + 1, V]."""
    session = model.start(len(rows), SHAPE)
    session.admit_all([Admission(place, TEXTS[row], SOURCES[row]) for place, row in enumerate(rows)])
    tails = [[row + 3 + place for place in range(guesses)] for row in rows]
    return session.score(torch.tensor(tails, dtype=torch.int64).view(len(rows), guesses))


@pytest.mark.parametrize("name", BUILT)
def test_the_same_function_as_transformers(name: str, tmp_path: Path) -> None:
    """Catches heads in the wrong order, positions counted the wrong way round, a scale that is left out; and AMX that
    is left to Llama-like models."""
    model = built(name)
    expected = scored(HuggingFaceModel(deepcopy(model).double()), [0, 1, 2, 3])
    ours = by_numba(model, tmp_path / "model")
    assert off_by(scored(ours, [0, 1, 2, 3]), expected) < ROUNDING
    assert ("with AMX" in ours.facts.engine) == cpu.facts().has_amx


@pytest.mark.skipif(not cpu.facts().computes_in_half, reason="this CPU does not compute in float16")
def test_float16_is_near(tmp_path: Path) -> None:
    model = built("v1.1: not scaled")
    expected = scored(HuggingFaceModel(deepcopy(model).double()), [0, 1, 2, 3])
    assert 0 < off_by(scored(by_numba(model, tmp_path / "model", "float16"), [0, 1, 2, 3]), expected) < 0.01


@pytest.mark.parametrize("weights", ["bfloat16", half])
@pytest.mark.parametrize("name", ["mt5: gated", "heads of 80, more panels than threads"])
def test_bits_are_those_of_the_row_alone(name: str, weights: str, tmp_path: Path) -> None:
    """Catches sums that depend on neighbours, on the width of a run, or on what was encoded together."""
    model = by_numba(built(name), tmp_path / "model", weights)
    assert model.facts.batch_invariant and model.facts.capacity_invariant and model.facts.encoder_decoder
    alone = [scored(model, [row])[0] for row in range(4)]
    for rows in ([0, 1, 2, 3], [3, 2], [1, 0, 3], [2, 2, 2, 1, 0]):
        for guesses in (0, 1, 4, 8):
            found = scored(model, rows, guesses)
            assert all(torch.equal(found[k], alone[row][: guesses + 1]) for k, row in enumerate(rows)), (rows, guesses)


@pytest.mark.parametrize("weights", ["bfloat16", half])
def test_logits_are_bit_identical_with_and_without_guesses(weights: str, tmp_path: Path) -> None:
    """Every emitted token's logits, by the product's own loop, with rows that end and others that follow."""
    wanted, model = case("t5"), by_numba(rounded(tiny.build("t5")), tmp_path, weights)
    plain, speculative = Recording(model), Recording(model)  # type: ignore[arg-type]
    texts, _ = run(plain, Nothing(), wanted.requests, 0)
    again, trace = run(speculative, wanted.drafter("table"), wanted.requests, 6)
    assert again == texts and sum(record.accepted for record in trace.records) > 0
    for row, request in enumerate(wanted.requests):
        for position in range(len(request.prompt), len(request.prompt) + len(texts[row])):
            assert torch.equal(speculative.seen[row, position], plain.seen[row, position]), (row, position)


def test_an_empty_source_is_refused(tmp_path: Path) -> None:
    """A product of no rows never ended, and Ctrl-C did not reach it."""
    model = by_numba(built("mt5"), tmp_path)
    for sources in ([[]], [[], [5, 6]], [torch.empty(0, 32)]):
        session = model.start(2, SHAPE)
        with pytest.raises(PromptError, match="a source is empty"):
            session.admit_all([Admission(row, [0], source) for row, source in enumerate(sources)])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["v1.0: relu, tied, scaled", "mt5"])
def test_sessions_keep_their_contract(name: str, tmp_path: Path) -> None:
    """Catches keys written at another row's place, a fork that shares memory, a source that stays behind."""
    check_session(by_numba(built(name), tmp_path / "model").start, encoder_decoder=True)


@pytest.mark.parametrize("name", ["v1.0: relu, tied, scaled", "mt5: gated"])
def test_states_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Catches a head that reads another layer than the one it was trained on, or a state that is scaled."""
    model, layers = built(name), (0, 1, -1)
    sessions = [
        other.start(1, SHAPE) for other in (HuggingFaceModel(deepcopy(model).double()), by_numba(model, tmp_path))
    ]
    for session in sessions:
        session.keep_states(layers)
        session.admit(0, TEXTS[0], SOURCES[0])
        session.score(torch.tensor([[5, 6]]))
    expected, found = (session.states[:, : len(TEXTS[0]) + 2] for session in sessions)  # type: ignore[index]
    assert all(off_by(found[:, :, k], expected[:, :, k]) < ROUNDING for k in range(len(layers)))
    assert off_by(sessions[1].hidden, sessions[0].hidden) < ROUNDING  # type: ignore[arg-type]


def test_finished_output_of_an_encoder(tmp_path: Path) -> None:
    model = built("mt5: gated")
    engine, given = by_numba(model, tmp_path), model.eval().get_encoder()(torch.tensor([SOURCES[0]]))[0][0]
    sessions = [engine.start(2, SHAPE) for _ in range(2)]
    for session, source in zip(sessions, (given.detach(), SOURCES[0]), strict=True):
        session.admit_all([Admission(0, TEXTS[0], source), Admission(1, TEXTS[1], SOURCES[2])])
    one, other = (session.score(torch.tensor([[5], [6]])) for session in sessions)
    assert off_by(one, other) < ROUNDING and torch.equal(one[1], other[1])


def test_guesses_of_one_run_are_those_of_many(tmp_path: Path) -> None:
    """A draft model's guesses took a run of Python around each: now one compiled run writes them, whatever is pending.

    Rows have one or more tokens pending, one has ended, and tokens that the target does not have are never guessed.
    """
    model = by_numba(built("v1.1: not scaled"), tmp_path)
    sessions = [model.start(4, SHAPE) for _ in range(2)]
    choosable = 70
    for session in sessions:
        session.admit_all([Admission(row, TEXTS[row], SOURCES[row]) for row in range(4)])
        session.release(3)
    for turn in range(3):
        fused = sessions[0].guess(3, choosable)
        logits, expected = sessions[1].score(torch.zeros((4, 0), dtype=torch.int64))[:, -1:], []
        for guess in range(3):
            expected.append(logits[..., :choosable].argmax(-1))
            logits = sessions[1].extend(expected[-1]) if guess < 2 else logits
        wanted = torch.cat(expected, 1)
        assert fused is not None and torch.equal(fused[:3], wanted[:3])
        assert int(fused.max()) < choosable
        kept = torch.cat([wanted[:, :2], torch.full((4, 1), 5 + turn)], 1)  # all, some or none of them are right
        counts = torch.tensor([3, 1 + turn, 2, 1])
        for session in sessions:
            session.commit(kept, counts, follows=False)
    ends = [session.score(torch.zeros((4, 2), dtype=torch.int64))[:3] for session in sessions]
    assert torch.equal(*ends)


def test_guesses_that_are_drawn_are_those_of_one_run_each(tmp_path: Path) -> None:
    """Above temperature 0 every guess of a draft model went through the session: the same logits without it."""
    model = by_numba(built("v1.1: not scaled"), tmp_path)
    sessions = [model.start(3, SHAPE) for _ in range(2)]
    for session in sessions:
        session.admit_all([Admission(row, TEXTS[row], SOURCES[row]) for row in range(3)])
    for turn in range(2):
        seen: list[Tensor] = []

        def lowest(guess: int, logits: Tensor) -> Tensor:
            seen.append(logits.clone())  # noqa: B023
            return logits.argmin(-1)

        drawn = sessions[0].guess_chosen(3, lowest)
        logits = [sessions[1].score(torch.zeros((3, 0), dtype=torch.int64))[:, -1:]]
        for _ in range(2):
            logits.append(sessions[1].extend(logits[-1].argmin(-1)))
        assert torch.equal(torch.stack(seen, 1), torch.cat(logits, 1))
        assert drawn is not None and torch.equal(drawn, torch.cat(logits, 1).argmin(-1))
        for session in sessions:
            session.commit(drawn, torch.tensor([3, 1 + turn, 2]), follows=False)
    sessions[0].release(1)
    assert sessions[0].guess_chosen(2, lowest) is None, "rows that are empty have no logits to draw from"


def test_a_draft_that_is_not_asked_encodes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred sentences were encoded for a draft that was asked for no guess: a fifth of all time."""
    model = by_numba(built("mt5: gated"), tmp_path)
    expected = scored(model, [0, 1, 3], 2)
    read, encode = [], model.engine.encode
    monkeypatch.setattr(model.engine, "encode", lambda given, cache: [read.append(sorted(given)), encode(given, cache)])
    session = model.start(4, SHAPE)
    session.read_late()
    session.admit_all([Admission(row, [0], SOURCES[row]) for row in range(3)])
    session.release(2)
    session.commit(torch.full((4, 1), 5), torch.ones(4, dtype=torch.int64))
    assert read == [], "nothing was run"
    session.admit_all([Admission(row, TEXTS[kind], SOURCES[kind]) for row, kind in enumerate((0, 1, 3))])
    found = session.score(torch.tensor([[kind + 3, kind + 4] for kind in (0, 1, 3, 0)]))
    assert read == [[0, 1, 2]] and torch.equal(found[:3], expected)


def test_a_row_that_has_ended_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred sentences most had ended long before the last, and all went through every run."""
    model = by_numba(built("mt5: gated"), tmp_path)
    every = scored(model, [0, 1, 2, 3], 2)
    session = model.start(4, SHAPE)
    session.admit_all([Admission(row, TEXTS[row], SOURCES[row]) for row in range(4)])
    session.release(0)
    session.release(2)
    tokens, layers = set[int](), t5.t5_layers

    def counted(stack: Any, given: Any) -> None:
        tokens.add(len(given.tokens))
        layers(stack, given)

    monkeypatch.setattr(t5, "t5_layers", counted)
    found = session.score(torch.tensor([[row + 3, row + 4] for row in range(4)]))
    assert tokens == {6} and torch.equal(found[[1, 3]], every[[1, 3]])


@pytest.fixture
def three_threads() -> Iterator[None]:
    """More than there may be cores: threads come late, and take over from each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_threads_that_share_an_engine(tmp_path: Path) -> None:
    """Catches work done twice or not at all, helpers that see another run's buffers, bits that depend on who did it."""
    model = by_numba(built("heads of 80, more panels than threads"), tmp_path)
    assert model.engine.threads == 3
    expected = [scored(model, [row]) for row in range(4)]
    torch.set_num_threads(1)
    alone = by_numba(built("heads of 80, more panels than threads"), tmp_path)
    assert all(torch.equal(scored(alone, [row]), expected[row]) for row in range(4))
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            for found, one in zip(pool.map(lambda row: scored(model, [row]), range(4)), expected, strict=True):
                assert torch.equal(found, one)


def test_nothing_outside_a_buffer_is_reached(tmp_path: Path) -> None:
    """Compiled code writes by address: what does not fit must not get that far."""
    engine = by_numba(built("mt5"), tmp_path).engine
    cache, tokens = engine.allocate(2, Shape(16, 4, source_capacity=8)), torch.zeros((2, 2), dtype=torch.int64)
    for wrong in ([[14, 15], [15, 16]], [[0, 1], [-1, 0]]):
        with pytest.raises(IndexError, match="positions"):
            engine.run(tokens, torch.tensor(wrong), cache, Wanted())
    with pytest.raises(IndexError, match="rows"):
        engine.run(tokens[:1].view(2, 1)[[0, 1, 1]], torch.zeros((3, 1), dtype=torch.int64), cache, Wanted())
    with pytest.raises(IndexError, match="source"):
        engine.encode({0: [5] * 9}, cache)
    with pytest.raises(IndexError, match="rows"):
        engine.encode({2: [5]}, cache)
    with pytest.raises(BadOption, match="source"):
        engine.encode({1: torch.zeros((3, 16))}, cache)
    engine.encode({1: [5] * 8}, cache)
    kept = [buffer.clone() for pair in cache.cross.buffers() for buffer in pair]
    assert all(not buffer[0].any() and bool(buffer[1, :, -1].any()) for buffer in kept)
