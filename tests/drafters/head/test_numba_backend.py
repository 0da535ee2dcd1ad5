"""The numba backend: drafts made in one call, and the same head in numpy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("numba")

import numpy as np

from outrider.core import noise
from outrider.core.noise import Noise, counter_of
from outrider.core.protocols import Shape
from outrider.drafters.head import Head, HeadConfig
from outrider.drafters.head.backend import OutputRows
from outrider.drafters.head.backends import numpy_backend
from outrider.drafters.head.backends.numba_backend import Draw, NumbaBackend, NumbaWeights, table_of
from outrider.drafters.head.backends.numpy_backend import NumpyWeights
from outrider.drafters.head.choice import choose_for_one_row

if choose_for_one_row().backend != "numba":
    pytest.skip("this CPU has no products of bytes", allow_module_level=True)

from outrider.kernels.numba import race
from outrider.models.engine import quantised
from outrider.models.engine.panel_rows import PackedRows

pytestmark = pytest.mark.cpu_paths

SHAPES = {
    "all": HeadConfig("feature", 64, 96, 2, layers=(1, 2, -1), heads=(4, 2), window=20),
    "odd sizes": HeadConfig("feature", 72, 40, 1, layers=(1, -1), heads=(6, 3), window=9),
    "neither attention nor other layers": HeadConfig("feature", 48, 64, 1),
}


TOKENS = torch.arange(0, 90, 9 / 5).long()[:50]  # of 90 tokens, those the heads have logits for


def made(config: HeadConfig) -> tuple[Head, OutputRows]:
    torch.manual_seed(1)
    head = Head(config)
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    return head.eval().requires_grad_(False), OutputRows(torch.randn(90, config.hidden_size), TOKENS)


def _never() -> Any:
    raise AssertionError("nothing here has several rows")


def begun(weights: NumpyWeights | NumbaWeights) -> Any:
    config = weights.config
    row = weights.start(1, Shape(40, 5), several=_never)
    torch.manual_seed(2)
    states, tokens = torch.randn(12, len(config.layers), config.hidden_size), torch.randn(12, config.hidden_size)
    row.read(states[:5], tokens[:5], 0)
    row.guess(None)
    row.read(states[3:], tokens[3:], 3)  # what was guessed is taken back
    return row


@pytest.mark.parametrize("name", SHAPES)
def test_guesses_are_those_of_the_same_head_in_numpy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches keys at the wrong place, a norm left out, or a window that is not the head's."""
    monkeypatch.setattr(numpy_backend, "product_with", lambda w: lambda x: x @ w.detach().float().t())
    head, output = made(SHAPES[name])
    rows = [begun(NumpyWeights(head, output)), begun(NumbaWeights(head, output))]
    token: Tensor | None = None
    for _ in range(4):
        exact, found = (row.guess(token) for row in rows)
        assert torch.corrcoef(torch.cat([exact, found]))[0, 1] > 0.99
        token = torch.randn(1, head.config.hidden_size)


@pytest.mark.parametrize("name", SHAPES)
def test_a_draft_in_one_call_is_guess_after_guess(name: str) -> None:
    """Catches a token read from the wrong place, a state of the guess before, and a draft that goes on too long."""
    head, output = made(SHAPES[name])
    embedding = torch.randn(90, head.config.hidden_size)
    weights = NumbaWeights(head, output)
    one, other = (begun(weights) for _ in range(2))
    expected, chances, token, chance = [], [], None, 1.0
    for _ in range(5):
        logits = one.guess(token)
        expected.append(int(TOKENS[logits.argmax()]))
        chance *= float(logits.softmax(-1).max())
        chances.append(chance)
        token = embedding[expected[-1]][None]
    assert other.guesses(table_of(embedding), [0.0] * 5)[0].tolist() == expected
    assert other.position == one.position and np.allclose(other.x, one.x, atol=1e-5)
    for most in (1, 3):
        again = begun(weights)
        floors = [0.0] * most + [chances[most - 1] * 1.01] + [0.0] * (4 - most)
        assert again.guesses(table_of(embedding), floors)[0].tolist() == expected[:most]
    for ends_behind, made_then in ((expected[0], expected[:1]), (89, expected)):
        found, _ = begun(weights).guesses(table_of(embedding), [0.0] * 5, ends_behind=ends_behind)
        assert found.tolist() == made_then


def test_embeddings_of_packed_weights_are_read_in_the_same_call() -> None:
    """Heads beside the default model, whose weights have four bits, made every guess in a call of its own, drawn by
    torch: only embeddings of sixteen bits were known to compiled code. Three guesses took half as long again."""
    head, output = made(SHAPES["all"])
    matrix = quantised.matrix_of(torch.randn(90, head.config.hidden_size), quantised.in_eight_bits)
    packed = PackedRows(matrix, 0, 90, head.config.hidden_size)
    table = table_of(packed)
    assert table is not None
    weights = NumbaWeights(head, output)
    expected, _ = begun(weights).guesses(table_of(packed[torch.arange(90)]), [0.0] * 5)
    found, _ = begun(weights).guesses(table, [0.0] * 5, holding=packed)
    assert found.tolist() == expected.tolist()
    assert len(set(expected.tolist())) > 1, "or it would not matter what is read"


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_tokens_are_drawn_as_noise_says(temperature: float) -> None:
    """Catches a draft that draws from another distribution than the one it shows, or with other noise."""
    head, output = made(SHAPES["all"])
    embedding = torch.randn(90, head.config.hidden_size)
    weights, counter = NumbaWeights(head, output), counter_of(TOKENS)
    differing = 0
    for seed in range(12):
        streams, at = Noise(torch.tensor([seed])), torch.arange(7, 11)[None]
        one, other = (begun(weights) for _ in range(2))
        draw = Draw(temperature, streams.keys("token", at)[0])
        found, q = other.guesses(table_of(embedding), [0.0] * 4, draw)
        assert q is not None
        token: Tensor | None = None
        for k in range(4):
            exact = (one.guess(token) / temperature).softmax(-1)
            assert torch.allclose(q[k], exact[0], atol=1e-5)
            winner = streams.winner("token", at[:, k : k + 1], q[None, k : k + 1], counter)
            assert int(found[k]) == int(TOKENS[winner])
            differing += int(winner) != int(q[k].argmax())
            token = embedding[found[k]][None]
    assert differing > 5, "or the likeliest would always do"


def test_a_head_that_gives_no_numbers_draws_one_of_its_tokens() -> None:
    """Fifty logits in four items are thirteen each and none in the last: nobody there won against what is no number,
    and a token behind the last was looked up."""
    head, output = made(SHAPES["all"])
    head.join.weight.data.fill_(3e38)
    embedding, draws = torch.randn(90, head.config.hidden_size), Noise(torch.tensor([0]))
    for tokens in (TOKENS, TOKENS[:49], TOKENS[:33]):
        row = begun(NumbaWeights(head, OutputRows(torch.randn(90, head.config.hidden_size), tokens)))
        draw = Draw(1.0, draws.keys("token", torch.arange(4)[None])[0])
        found, _ = row.guesses(table_of(embedding), [0.0] * 4, draw)
        assert set(found.tolist()) <= set(tokens.tolist())


@pytest.mark.parametrize("flat", [0.0, 1.0, 8.0])
def test_a_compiled_race_has_the_same_winner_to_the_bit(flat: float) -> None:
    """Catches an arrival that is rounded differently: two processes would then write two texts for one seed."""
    drawn = torch.Generator().manual_seed(3)
    counter = counter_of(torch.arange(2000)).numpy()
    for _ in range(200):
        weights = (torch.randn(2000, generator=drawn) * flat).softmax(-1).numpy()
        key = int(torch.randint(-(2**62), 2**62, (), generator=drawn))
        assert race.first(weights, counter, key) == noise.first_to_arrive(weights, counter, key)
    for _ in range(500):  # every arrival by itself
        bits = torch.randint(0, 2**31, (64,), generator=drawn, dtype=torch.int64).to(torch.int32).numpy()
        exact = np.float32(0.7) / noise.exponential(noise.open_uniform(bits, np), np)
        assert np.array_equal([race.exponential(np.float32(0.7), np.uint32(b)) for b in bits], exact)


def test_a_compiled_race_that_is_nearly_a_tie_has_the_same_winner() -> None:
    """Catches arrivals that are computed strictly alone and not inside the race, whose options they would inherit."""
    drawn, counter = torch.Generator().manual_seed(4), counter_of(torch.arange(2)).numpy()
    for _ in range(300):
        key = int(torch.randint(-(2**62), 2**62, (), generator=drawn))
        low, high = np.float32(1e-12), np.float32(1e6)  # of the second, with which it loses and wins
        while (middle := np.float32(np.sqrt(low * high))) not in (low, high):
            winner = noise.first_to_arrive(np.array([0.7, middle], np.float32), counter, key)
            low, high = (low, middle) if winner else (middle, high)
        for _ in range(6):
            for weight in (low, high):
                weights = np.array([0.7, weight], np.float32)
                assert race.first(weights, counter, key) == noise.first_to_arrive(weights, counter, key)
            low, high = np.nextafter(low, np.float32(0)), np.nextafter(high, np.float32(np.inf))


@pytest.mark.parametrize("guesses", [3, 5])
def test_a_draft_beyond_the_cache_is_refused_before_compiled_code_runs(guesses: int) -> None:
    """Compiled code checks no bounds: a draft one position too long wrote into whatever memory came next."""
    head, output = made(SHAPES["all"])
    row = NumbaWeights(head, output).start(1, Shape(12, 5), several=_never)
    assert isinstance(row, NumbaBackend)
    room = np.zeros((row.keys.shape[0] + 1, *row.keys.shape[1:]), np.float32)  # what follows the cache in memory
    row.keys = room[:-1]
    states, tokens = torch.randn(11, 3, 64), torch.randn(11, 64)
    row.read(states, tokens, 0)  # up to position 10 of 0..11
    before = room.copy()
    with pytest.raises(IndexError, match=f"draft of {guesses} guesses behind position 10 .* has 12"):
        row.guesses(table_of(torch.randn(90, 64)), [0.0] * guesses)
    assert np.array_equal(room, before)
    row.read(states, tokens, 0)
    assert len(row.guesses(table_of(torch.randn(90, 64)), [0.0] * 2)[0]) == 2, "there is room for two"
