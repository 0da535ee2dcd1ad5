"""From logits to probabilities, position by position, against transformers' own processors and warpers."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.core.context import Context
from outrider.core.noise import Noise
from outrider.core.sampling import Sampling, draw, standardise

SIZE = 12
PROMPTS = ([1, 2, 3, 2, 1], [7])


def context(prompts: tuple[list[int], ...] = PROMPTS) -> Context:
    made = Context(len(prompts), 16, torch.device("cpu"))
    for row, prompt in enumerate(prompts):
        made.admit(row, prompt)
    return made


def logits_of(seed: int, guesses: int = 3) -> tuple[Tensor, Tensor]:
    """Logits without ties, and guesses."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((2, guesses + 1, SIZE), generator=generator) * 2.5
    return logits, torch.randint(0, SIZE, (2, guesses), generator=generator)


def by_transformers(logits: Tensor, tail: Tensor, rules: list[tf.LogitsProcessor]) -> Tensor:
    """Every row and position on its own, behind exactly the prefix it stands behind."""
    result = torch.empty_like(logits)
    for row, prompt in enumerate(PROMPTS):
        for k in range(logits.shape[1]):
            ids = torch.tensor([[*prompt, *tail[row, :k].tolist()]])
            scores = logits[row : row + 1, k].clone()
            for rule in rules:
                scores = rule(ids, scores)
            result[row, k] = scores[0].softmax(-1)
    return result


CASES: dict[str, tuple[Sampling, list[tf.LogitsProcessor]]] = {
    "temperature": (Sampling(0.7), [tf.TemperatureLogitsWarper(0.7)]),
    "top-k": (Sampling(1.0, top_k=4), [tf.TopKLogitsWarper(4)]),
    "top-k 1": (Sampling(1.0, top_k=1), [tf.TopKLogitsWarper(1)]),
    "top-k beyond the vocabulary": (Sampling(1.0, top_k=500), []),
    "top-p": (Sampling(1.0, top_p=0.75), [tf.TopPLogitsWarper(0.75)]),
    "top-p tiny": (Sampling(1.0, top_p=1e-6), [tf.TopPLogitsWarper(1e-6)]),
    "min-p": (Sampling(1.0, min_p=0.15), [tf.MinPLogitsWarper(0.15)]),
    "repetition": (Sampling(1.0, repetition_penalty=1.7), [tf.RepetitionPenaltyLogitsProcessor(1.7)]),
    "repetition below one": (Sampling(1.0, repetition_penalty=0.6), [tf.RepetitionPenaltyLogitsProcessor(0.6)]),
    "all": (
        Sampling(0.8, top_k=9, top_p=0.9, min_p=0.01, repetition_penalty=1.3),
        [
            tf.RepetitionPenaltyLogitsProcessor(1.3),
            tf.TemperatureLogitsWarper(0.8),
            tf.TopKLogitsWarper(9),
            tf.TopPLogitsWarper(0.9),
            tf.MinPLogitsWarper(0.01),
        ],
    ),
    "a processor between penalty and temperature": (
        Sampling(0.5, repetition_penalty=1.3, processors=(tf.NoRepeatNGramLogitsProcessor(2),)),
        [
            tf.RepetitionPenaltyLogitsProcessor(1.3),
            tf.NoRepeatNGramLogitsProcessor(2),
            tf.TemperatureLogitsWarper(0.5),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**31))
def test_same_probabilities_as_transformers(name: str, seed: int) -> None:
    """Catches a filter cut one token off, options in another order, or a prefix without the guesses before it."""
    sampling, rules = CASES[name]
    logits, tail = logits_of(seed)
    got, expected = standardise(logits, sampling, context(), tail), by_transformers(logits, tail, rules)
    if sampling.processors:  # behind a guess that they forbid nothing is asked of them
        allowed = expected[:, :-1].gather(-1, tail[..., None])[..., 0] > 0
        reached = torch.nn.functional.pad(allowed.to(torch.int64).cumprod(-1), (1, 0), value=1).bool()
        got, expected = got[reached], expected[reached]
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=1e-5)


def test_processors_are_not_asked_about_what_they_forbade() -> None:
    """A constraint need not have an answer for a text it does not allow, nor for a row that has ended.

    Guesses of a drafter that knows no constraint stand in such texts: a trie would raise KeyError on them."""
    asked: list[list[int]] = []

    def only_even(ids: Tensor, scores: Tensor) -> Tensor:
        asked.append(ids[0].tolist())
        return scores.index_fill(-1, torch.arange(1, SIZE, 2), -torch.inf)

    logits, _ = logits_of(3)
    made, tail = context(), torch.tensor([[2, 3, 4], [2, 4, 6]])
    made.release(1)
    standardise(logits, Sampling(1.0, processors=(only_even,)), made, tail)
    prompt = PROMPTS[0]
    assert asked == [prompt, [*prompt, 2]]


@given(st.integers(0, 2**31))
def test_frequency_and_presence_count_the_output_only(seed: int) -> None:
    """Catches penalties that count the prompt, or miss guesses (the OpenAI definition has only the output)."""
    logits, tail = logits_of(seed)
    made = context()
    made.append(torch.tensor([[4, 4], [7, 0]]), torch.tensor([2, 1]))
    got = standardise(logits, Sampling(1.0, frequency_penalty=0.5, presence_penalty=0.25), made, tail)
    for row, written in enumerate(([4, 4], [7])):
        for k in range(4):
            output = [*written, *tail[row, :k].tolist()]
            expected = logits[row, k].clone()
            for token in set(output):
                expected[token] -= 0.5 * output.count(token) + 0.25
            torch.testing.assert_close(got[row, k], expected.softmax(-1))


@given(st.integers(0, 2**31))
def test_bias_is_added_to_the_logits(seed: int) -> None:
    """Catches a bias on the wrong token or applied after the softmax."""
    logits, tail = logits_of(seed)
    expected = logits.clone()
    expected[..., 3] += 2.0
    expected[..., 11] -= 4.0
    got = standardise(logits, Sampling(1.0, logit_bias={3: 2.0, 11: -4.0}), context(), tail)
    torch.testing.assert_close(got, expected.softmax(-1))


@given(st.lists(st.integers(-3, 3), min_size=SIZE, max_size=SIZE))
def test_argmax_is_a_one_hot_distribution(values: list[int]) -> None:
    """Catches greedy decoding as a second path: ties included, it is all mass on the first best token."""
    logits = torch.tensor(values, dtype=torch.float32).expand(2, 1, SIZE)
    got = standardise(logits, Sampling(), context(), torch.zeros((2, 0), dtype=torch.int64))
    assert torch.equal(got[0, 0], torch.nn.functional.one_hot(logits[0, 0].argmax(), SIZE).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_probabilities_are_float32_or_wider(dtype: torch.dtype) -> None:
    """Catches probabilities in the model's own half precision, where p/q is worth three digits."""
    logits, tail = logits_of(0)
    got = standardise(logits.to(dtype), Sampling(1.0, top_p=0.9), context(), tail)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(got.sum(-1), torch.ones_like(got[..., 0]))


def test_a_later_guess_is_never_seen_earlier() -> None:
    """Catches penalties that look ahead: changing the last guess must change no earlier position."""
    logits, tail = logits_of(5)
    other = tail.clone()
    other[:, -1] = (other[:, -1] + 1) % SIZE
    sampling = Sampling(1.0, repetition_penalty=1.5, frequency_penalty=1.0)
    one, two = (standardise(logits, sampling, context(), t) for t in (tail, other))
    assert torch.equal(one[:, :-1], two[:, :-1])
    assert not torch.equal(one[:, -1], two[:, -1])


@given(
    st.lists(st.integers(0, 3), min_size=6, max_size=6).filter(any), st.integers(0, 2**62), st.sampled_from([32, 64])
)
def test_draw_never_returns_a_token_of_weight_zero(weights: list[int], seed: int, bits: int) -> None:
    """Catches ties and overflows in the race that let an impossible token win."""
    dtype = torch.float32 if bits == 32 else torch.float64
    w = torch.tensor(weights, dtype=dtype).expand(1, 200, 6) * 1e-20
    tokens = draw(w, Noise(torch.tensor([seed])).race("token", torch.arange(200)[None], 6))
    assert all(weights[t] > 0 for t in tokens[0].tolist())


@given(st.integers(0, 2**62), st.floats(1e-6, 1e6))
def test_draw_needs_no_normalising(seed: int, scale: float) -> None:
    """Catches a draw that depends on the scale of its weights, which the residual's are."""
    w = torch.tensor([0.1, 0.4, 0.0, 0.5], dtype=torch.float64).expand(1, 50, 4)
    race = Noise(torch.tensor([seed])).race("token", torch.arange(50)[None], 4)
    assert torch.equal(draw(w, race), draw(w * scale, race))
