"""Every option of transformers' generate by Outrider's loop: its own tokens, in batches with padding."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers as tf
from calls import PROMPTS, alike, batch, call, plain, through

import tiny
from outrider.errors import BadOption

END = 17
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 14}


def odd_rows_only_low(row: int, tokens: torch.Tensor) -> list[int]:
    """A constraint that depends on the row."""
    return list(range(40, 60)) if row == 1 else list(range(2, 96))


class LastTokenLess:
    """A processor of a user's own, a function of its row."""

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.scatter_add(1, ids[:, -1:], torch.full((len(ids), 1), -3.0))


OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "eos": {"eos_token_id": END},
    "several eos": {"eos_token_id": [END, 40, 41, 42], "pad_token_id": 3},
    "max_length": {"max_new_tokens": None, "max_length": 12},
    "min_length": {"eos_token_id": list(range(20, 80)), "min_length": 11},
    "min_new_tokens": {"eos_token_id": list(range(20, 80)), "min_new_tokens": 5},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 3.0},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": [[t] for t in range(50, 90)]},
    "sequence_bias": {"sequence_bias": {(7,): 4.0, (20, 21): 30.0}},
    "suppress_tokens": {"suppress_tokens": list(range(30, 70))},
    "begin_suppress_tokens": {"begin_suppress_tokens": list(range(3, 90))},
    "forced_bos_token_id": {"forced_bos_token_id": 9},
    "forced_eos_token_id": {"forced_eos_token_id": 9},
    "exponential_decay_length_penalty": {"eos_token_id": END, "exponential_decay_length_penalty": (3, 1.6)},
    "renormalize_logits": {"renormalize_logits": True, "no_repeat_ngram_size": 3},
    "watermark": {"watermarking_config": tf.WatermarkingConfig(bias=4.0)},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": odd_rows_only_low},
    "logits_processor": {"logits_processor": [LastTokenLess()]},
    "max_time": {"max_time": 0.0, "eos_token_id": END},
    "all at once": {
        "repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "bad_words_ids": [[50], [51, 52]], "min_new_tokens": 4,
        "eos_token_id": list(range(60, 80)), "suppress_tokens": [4, 5], "logits_processor": [LastTokenLess()],
    },
}  # fmt: skip
REPETITION = {
    "repetition_penalty", "no_repeat_ngram_size", "encoder_repetition_penalty", "encoder_no_repeat_ngram_size",
    "renormalize_logits", "all at once",
}  # fmt: skip
"""Options to which transformers shows the padding as if it were text."""


@pytest.mark.parametrize("draft", ["auto", "uniform"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_greedy(family: str, name: str, draft: str) -> None:
    """Catches an option that is dropped, that counts without the padding, or that gives one row another's part.

    Encoder rules crashed in batches; a constraint saw row 0 for every row; lengths were refused beside padding."""
    options = {**GREEDY, **copy.deepcopy(OPTIONS[name])}
    inputs = batch(family) if name not in REPETITION else alike(family)
    assert through(family, inputs, **options, draft=draft) == plain(family, inputs, **options)


@pytest.mark.parametrize("name", sorted(REPETITION))
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_padding_is_no_repetition(family: str, name: str) -> None:
    """To transformers the padding of a row is text that is repeated; here a row's penalties are those of it alone."""
    options = {**GREEDY, **copy.deepcopy(OPTIONS[name])}
    rows = through(family, **options)
    for row, prompt in enumerate(PROMPTS):
        alone = plain(family, {"input_ids": torch.tensor([prompt])}, **options)[0]
        start = batch(family)["input_ids"].shape[1] if family == "llama" else 1
        new = alone[len(prompt) if family == "llama" else 1 :]
        assert rows[row][start : start + len(new)] == new


@pytest.mark.parametrize("family", ["gpt2", "mistral", "gemma2", "bloom", "opt", "bart", "marian"])
def test_families(family: str) -> None:
    """Catches positions, windows or masks of a family that Outrider gets wrong in a padded batch."""
    options = {**GREEDY, **OPTIONS["several eos"], "min_new_tokens": 4, "suppress_tokens": [4, 5]}
    assert through(family, **options) == plain(family, **options)


@pytest.mark.parametrize("family", ["llama", "bart"])
def test_several_sequences(family: str) -> None:
    """Catches rows of num_return_sequences that read a neighbour's source: top_k=1 leaves one text, all alike."""
    options = {"do_sample": True, "top_k": 1, "max_new_tokens": 9, "num_return_sequences": 2, "eos_token_id": END}
    options |= {"encoder_repetition_penalty": 2.0}
    inputs = alike(family)
    # Not num_return_sequences for transformers itself: some versions give the penalty to the wrong rows.
    twice = {name: given.repeat_interleave(2, 0) for name, given in inputs.items()}
    expected = plain(family, twice, **(options | {"num_return_sequences": 1}))
    assert through(family, inputs, **options) == expected


def test_returned_as_a_dictionary() -> None:
    """Catches return_dict_in_generate that is dropped."""
    options: dict[str, Any] = {**GREEDY, "return_dict_in_generate": True}
    expected = tiny.build("llama").generate(**batch("llama"), **options)
    got = call(tiny.build("llama"), batch("llama"), **options)
    assert type(got) is type(expected) and got.sequences.tolist() == expected.sequences.tolist()


class Longer:
    """A stopping criterion of a user's own that counts tokens."""

    def __init__(self, most: int) -> None:
        self.most, self.scores = most, []

    def __call__(self, ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.scores.append(scores)
        return torch.full((len(ids),), ids.shape[1] >= self.most)


@pytest.mark.parametrize("most", [9, 12, 30])
def test_lengths_are_counted_with_padding(most: int) -> None:
    """A user's length criterion counted without the padding: transformers stopped at 9 tokens, Outrider at 13.

    One of transformers' own replaces max_new_tokens, also where it is longer."""
    for criterion in (tf.MaxLengthCriteria(most), Longer(most)):
        options = {**GREEDY, "stopping_criteria": tf.StoppingCriteriaList([criterion]), "eos_token_id": 95}
        assert through("llama", **options) == plain("llama", **options)


def test_criteria_get_the_scores_that_transformers_gives() -> None:
    """None, without output_scores: what asks for them is refused before a criterion could miss them."""
    seen = []
    for run in (plain, through):
        criterion = Longer(10)
        run("llama", **GREEDY, stopping_criteria=tf.StoppingCriteriaList([criterion]))
        seen.append(set(criterion.scores))
    assert seen == [{None}, {None}]


class Counts:
    """Keeps a state: every call counts."""

    calls = 0

    def __call__(self, ids: torch.Tensor, values: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return values + self.calls if isinstance(values, torch.Tensor) else torch.full((len(ids),), self.calls > 2)


class FirstRowOnly:
    """Knows rows by their place in the batch."""

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[0, 5] = 100.0
        return scores


class NeedsAllRows:
    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + ids[2, :1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"logits_processor": [Counts()]}, "Counts answers differently"),
        ({"logits_processor": [FirstRowOnly()]}, "FirstRowOnly answers differently"),
        ({"logits_processor": [NeedsAllRows()]}, "NeedsAllRows failed when it was shown single rows"),
        ({"stopping_criteria": [Counts()]}, "Counts answers differently"),
        (
            {"watermarking_config": tf.SynthIDTextWatermarkingConfig(ngram_len=3, keys=[1, 2, 3])},
            "SynthIDTextWatermarkLogitsProcessor keeps a state",
        ),
    ],
)
def test_state_and_neighbours_are_refused(options: dict[str, Any], says: str) -> None:
    """A processor that counts its calls, or knows rows by their place, was called out of order: another text."""
    with pytest.raises(BadOption, match=says):
        through("llama", **GREEDY, **copy.deepcopy(options))


def test_a_constraint_is_never_shown_what_it_forbids() -> None:
    """Guesses that a constraint forbids were shown to it: a trie had no entry for them and raised."""

    def grows(row: int, tokens: torch.Tensor) -> list[int]:
        known = tokens[8:].tolist()
        assert known == list(range(30, 30 + len(known)))
        return [30 + len(known)]

    options = {**GREEDY, "prefix_allowed_tokens_fn": grows}
    assert through("llama", **options, draft="uniform") == plain("llama", **options)


def test_seeds_of_64_bits() -> None:
    """seed=2**63-1 with two rows overflowed."""
    assert len(through("llama", do_sample=True, max_new_tokens=4, seed=2**63 - 1)) == len(PROMPTS)
