"""The real default model: greedy text is the same for every drafter, and with Gumbel coupling sampled text too."""

from __future__ import annotations

import pytest

import outrider
from outrider.drafters import ModelDrafter, Ngram, NgramTable, built_in
from outrider.errors import ModelNotFound
from outrider.models.hub import names

NAME = "smollm2-135m"
CONVERSATION = [{"role": "user", "content": "Repeat this twice: the quick brown fox jumps over the lazy dog."}]


@pytest.fixture(scope="module")
def plain() -> outrider.LLM:
    try:
        names.resolve(NAME, pull=False)
    except ModelNotFound as error:
        pytest.skip(str(error))
    return outrider.load(NAME, draft=None)


@pytest.fixture(scope="module")
def expected(plain: outrider.LLM) -> list[int]:
    tokens: list[int] = plain.chat(CONVERSATION, max_new_tokens=20).tokens
    return tokens


@pytest.mark.parametrize("name", ["copy", "ngram", "uniform", "auto", "table", "self"])
def test_greedy_with_every_drafter(plain: outrider.LLM, expected: list[int], name: str) -> None:
    """Catches what tiny models cannot show: grouped heads, tied weights, bfloat16, a vocabulary of 49,152."""
    others = {
        "table": lambda: Ngram(NgramTable.fit([expected], plain.target.model.vocab_size)),
        "self": lambda: ModelDrafter(plain.target.model),
    }
    drafter = others[name]() if name in others else built_in()[name]
    output = outrider.LLM(plain.target, drafter).chat(CONVERSATION, max_new_tokens=20, gamma=3)
    assert output.stats.drafter_error is None
    assert output.tokens == expected


def test_sampled_text_does_not_depend_on_the_drafter(plain: outrider.LLM) -> None:
    """Catches noise or rounding that lets a drafter show in sampled text."""
    options = {"max_new_tokens": 10, "gamma": 3, "temperature": 0.9, "top_p": 0.9, "coupling": "gumbel", "seed": 11}
    speculative = outrider.LLM(plain.target, built_in()["auto"])
    assert speculative.chat(CONVERSATION, **options).tokens == plain.chat(CONVERSATION, **options).tokens


def test_it_answers(plain: outrider.LLM, expected: list[int]) -> None:
    """Catches a model that loads but was converted wrongly: it repeats the sentence it was asked to repeat."""
    assert "quick brown fox" in plain.decode(expected).lower()
