"""transformers' processors as sampling options: the same distribution."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import tiny
import torch
import transformers as tf

from outrider.core.context import Context
from outrider.core.sampling import standardise
from outrider.hf.processors import BatchProcessor, RowInputs, sampling_of

IDS = torch.tensor([[5, 6, 7, 5, 6, 7], [9, 10, 11, 12, 11, 12]])

OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {"top_k": 0},
    "defaults": {},
    "temperature": {"temperature": 0.6, "top_k": 0},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.7, "top_k": 0},
    "top_p of one token": {"top_p": 0.0, "top_k": 0},
    "min_p": {"min_p": 0.1},
    "typical_p": {"typical_p": 0.6},
    "epsilon_cutoff": {"epsilon_cutoff": 0.02},
    "eta_cutoff": {"eta_cutoff": 0.05},
    "renormalize_logits": {"renormalize_logits": True, "top_p": 0.8},
    "watermark": {"watermarking_config": tf.WatermarkingConfig(bias=3.0), "top_p": 0.9},
    "penalty": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "temperature": 0.8, "top_p": 0.9, "min_p": 0.02},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_distribution(name: str) -> None:
    """Catches a warper that is dropped, applied twice, or applied in another order than transformers does."""
    model = tiny.build("llama")
    config, _ = model._prepare_generation_config(None, do_sample=True, max_new_tokens=9, **OPTIONS[name])
    model._prepare_special_tokens(config, True, device=torch.device("cpu"), batch_size=2)
    processors = model._get_logits_processor(config, input_ids_seq_length=6, encoder_input_ids=IDS, device="cpu")
    logits = torch.randn((2, 1, tiny.VOCAB)) * 3
    expected = processors(IDS, logits[:, 0].clone()).softmax(-1)
    context = Context(2, 16, torch.device("cpu"))
    for row, ids in enumerate(IDS.tolist()):
        context.admit(row, ids)
    rows = [RowInputs(IDS[row, :0], IDS[row]) for row in range(2)]
    sampling = sampling_of(processors, True, IDS, rows, tiny.VOCAB)
    got = standardise(logits, sampling, context, IDS[:, :0])[:, 0]
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=1e-5)


def test_the_usual_ones_become_options() -> None:
    """Called row by row they were the slowest part of sampling: those Outrider has are its own."""
    usual = tf.LogitsProcessorList(
        [
            tf.RepetitionPenaltyLogitsProcessor(1.2),
            tf.TemperatureLogitsWarper(0.7),
            tf.TopKLogitsWarper(9),
            tf.TopPLogitsWarper(0.9),
        ]
    )
    rows = [RowInputs(IDS[0, :0], None)]
    found = sampling_of(usual, True, IDS[:1], rows, tiny.VOCAB)
    assert (found.repetition_penalty, found.temperature, found.top_k, found.top_p) == (1.2, 0.7, 9, 0.9)
    assert not found.processors
    between = tf.LogitsProcessorList([*usual[:1], tf.SuppressTokensLogitsProcessor([3]), *usual[1:]])
    found = sampling_of(between, True, IDS[:1], rows, tiny.VOCAB)
    assert found.top_p == 0.9 and isinstance(found.processors[0], BatchProcessor)


def alone(ids: torch.Tensor = IDS[:1]) -> list[RowInputs]:
    return [RowInputs(row[:0], None) for row in ids]


def test_normalisation_in_the_middle_is_kept() -> None:
    """It changes nothing in front of softmax; a penalty behind it sees other logits. It was dropped anywhere."""
    middle = [tf.LogitNormalization(), tf.RepetitionPenaltyLogitsProcessor(1.5), tf.TopPLogitsWarper(0.9)]
    logits = torch.linspace(-3, 3, tiny.VOCAB).repeat(1, 1, 1)
    logits[..., 5:8] = torch.tensor([2.0, 4.0, 6.0])
    context = Context(1, 16, torch.device("cpu"))
    context.admit(0, IDS[0].tolist())
    found = sampling_of(middle, True, IDS[:1], alone(), tiny.VOCAB)
    got = standardise(logits, found, context, IDS[:1, :0])[:, 0]
    expected = tf.LogitsProcessorList(middle)(IDS[:1], logits[:, 0].clone()).softmax(-1)
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=1e-5)
    behind = [tf.TopKLogitsWarper(5), tf.LogitNormalization(), tf.TopPLogitsWarper(0.9), tf.LogitNormalization()]
    found = sampling_of(behind, True, IDS[:1], alone(), tiny.VOCAB)
    assert (found.top_k, found.top_p, found.processors) == (5, 0.9, ())
    assert not sampling_of(behind[3:], False, IDS[:1], alone(), tiny.VOCAB).processors


def test_prompt_ignore_length_counts_padding() -> None:
    """The row is shown without its padding; counted with it, the length reached into the text that is penalised."""
    padding, text = [0, 0, 0], [9, 10, 11]
    rule = tf.RepetitionPenaltyLogitsProcessor(2.0, prompt_ignore_length=4)
    ids = torch.tensor([padding + text])
    found = sampling_of([rule], False, ids, [RowInputs(ids[0, :3], None)], tiny.VOCAB)
    assert isinstance(found.processors[0], BatchProcessor)
    scores = torch.ones((1, tiny.VOCAB))
    changed = found.processors[0].of_row(0)(ids[:, 3:], scores.clone()) != scores
    assert changed.nonzero()[:, 1].tolist() == [10, 11]
    assert rule.prompt_ignore_length == 4


def test_lengths_become_an_option() -> None:
    """min_new_tokens was a processor: called row by row, it searched the vocabulary for the end, and on a GPU no step
    could be recorded."""
    rules = [
        tf.RepetitionPenaltyLogitsProcessor(1.2),
        tf.MinLengthLogitsProcessor(8, [3, 4]),
        tf.MinNewTokensLengthLogitsProcessor(6, 3, [3, 4]),
        tf.TopKLogitsWarper(9),
    ]
    found = sampling_of(rules, True, IDS, alone(IDS), tiny.VOCAB)
    assert (found.min_tokens, set(found.withheld), found.processors, found.top_k) == (3, {3, 4}, (), 9)
    assert found.adjusts
    assert not sampling_of(rules[1:2], True, torch.cat([IDS, IDS], 1), alone(IDS), tiny.VOCAB).min_tokens
    other = [rules[2], tf.MinLengthLogitsProcessor(8, [5])]
    found = sampling_of(other, True, IDS, alone(IDS), tiny.VOCAB)
    assert set(found.withheld) == {3, 4} and found.processors


def test_no_end_before_its_length() -> None:
    """Every position by the tokens before it, guesses included, row by row."""
    logits = torch.zeros((2, 3, tiny.VOCAB))
    context = Context(2, 16, torch.device("cpu"))
    for row, ids in enumerate(IDS.tolist()):
        context.admit(row, ids)
    context.append(torch.tensor([[7], [8]]), torch.tensor([1, 0]))
    found = sampling_of([tf.MinNewTokensLengthLogitsProcessor(6, 2, 3)], True, IDS, alone(IDS), tiny.VOCAB)
    p = standardise(logits, found, context, torch.tensor([[5, 5], [5, 5]]))
    assert (p[..., 3] > 0).tolist() == [[False, True, True], [False, False, True]]


class Keeps:
    """Counts its calls in a list."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.lock: Any = None
        self.model = torch.nn.Linear(1, 1)

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen.append(ids.shape[1])
        assert self.model.weight is SHARED[0]
        return scores


SHARED: list[Any] = []


def test_a_trial_leaves_no_trace() -> None:
    """The trial was a shallow copy: its calls stood in the caller's own list. Models inside are not copied."""
    own = Keeps()
    SHARED[:] = [own.model.weight]
    sampling_of([own], False, IDS, alone(IDS), tiny.VOCAB)
    assert own.seen == []
    own.lock = threading.Lock()  # cannot be copied in depth
    assert sampling_of([own], False, IDS, alone(IDS), tiny.VOCAB).processors
