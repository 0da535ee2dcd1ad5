"""transformers' processors as sampling options: the same distribution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf

import tiny
from outrider.context import Context
from outrider.hf.processors import BatchProcessor, RowInputs, sampling_of
from outrider.sampling import standardise

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
