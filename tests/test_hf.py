"""Inside transformers' ``generate``: one changed line in an existing script, the same text."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import transformers as tf

import outrider
import tiny
from outrider.errors import BadOption
from outrider.models.transformers.model import HuggingFaceModel

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 10, 11]]


def inputs(family: str) -> dict[str, torch.Tensor]:
    """Two prompts; padding on the left, or for an encoder on the right."""
    longest = max(len(p) for p in PROMPTS)
    left = family in tiny.DECODER_ONLY
    rows, mask = [], []
    for prompt in PROMPTS:
        gap = [0] * (longest - len(prompt))
        rows.append(gap + prompt if left else prompt + gap)
        mask.append(gap + [1] * len(prompt) if left else [1] * len(prompt) + gap)
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}


@pytest.mark.parametrize(
    ("family", "draft"),
    [*product(["llama", "gpt2", "t5", "bart"], ["auto", "uniform", None]), ("llama", "model"), ("gpt2", "model")],
)
def test_greedy_batch(family: str, draft: Any) -> None:
    """Catches padding, masks or encoder outputs handed on wrongly: the sequences must be transformers' own."""
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 14, "repetition_penalty": 1.2, "eos_token_id": 17}
    expected = tiny.build(family).generate(**inputs(family), **options)
    if draft == "model":
        if family not in tiny.DECODER_ONLY:
            pytest.skip("refused: see test_a_draft_model_needs_an_encoder_of_its_own")
        draft = tiny.build(family, seed=1)
    got = tiny.build(family).generate(
        **inputs(family), **options, custom_generate=outrider.transformers_generate, draft=draft
    )
    assert got.tolist() == expected.tolist()


def test_a_draft_model_needs_an_encoder_of_its_own() -> None:
    """Catches a draft that reads the target's encoder output as if it were its own."""
    with pytest.raises(outrider.OutriderError, match="encoder"):
        tiny.build("t5").generate(
            **inputs("t5"),
            max_new_tokens=4,
            custom_generate=outrider.transformers_generate,
            draft=tiny.build("t5", seed=1),
        )


def test_the_callers_model_is_left_as_it_was() -> None:
    """Catches a call that freezes a model in training: no gradient would flow after the first sample."""
    model = tiny.build("llama").train().requires_grad_(True)
    model.generate(**inputs("llama"), max_new_tokens=4, custom_generate=outrider.transformers_generate)
    assert model.training and all(p.requires_grad for p in model.parameters())


def test_sampling_repeats_with_a_seed_and_with_torchs_own() -> None:
    """Catches a seed that is ignored, and a script's torch.manual_seed that no longer means anything."""
    model = tiny.build("llama")

    def sampled(**options: Any) -> list[list[int]]:
        ours = {"custom_generate": outrider.transformers_generate, "do_sample": True, "max_new_tokens": 12}
        return model.generate(**inputs("llama"), **ours, **options).tolist()

    assert sampled(seed=3) == sampled(seed=3) != sampled(seed=4)
    torch.manual_seed(1)
    first = sampled()
    assert first != sampled()
    torch.manual_seed(1)
    assert first == sampled()
    gumbel = [sampled(seed=3, coupling="gumbel", draft=draft) for draft in ("auto", "uniform", None)]
    assert gumbel[0] == gumbel[1] == gumbel[2]


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_a_row_samples_the_same_alone_and_beside_others(family: str) -> None:
    """The row's number was added to the seed: a prompt's text depended on its place, and seed 3 had seed 4's texts."""
    model = tiny.build(family)
    prompts = torch.tensor([[5, 6, 7], [8, 9, 10], [5, 6, 7]])

    def sampled(rows: list[int], seed: int) -> list[list[int]]:
        ours = {"custom_generate": outrider.transformers_generate, "do_sample": True, "coupling": "gumbel"}
        return model.generate(prompts[rows], **ours, seed=seed, min_new_tokens=8, max_new_tokens=8).tolist()

    together = sampled([0, 1, 2], 2**63 - 1)
    assert together[0] != together[2]
    assert sampled([1], 2**63 - 1) == together[1:2]
    assert sampled([0], 3) != sampled([1, 0], 2)[1:]


def test_return_dict_and_stopping() -> None:
    """Catches return_dict_in_generate and stopping criteria that are dropped."""
    model = tiny.build("llama")
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 14, "return_dict_in_generate": True}
    criteria = tf.StoppingCriteriaList([tf.MaxLengthCriteria(12)])
    ids = torch.tensor([PROMPTS[0]])
    expected = tiny.build("llama").generate(ids, **options, stopping_criteria=criteria)
    got = model.generate(ids, **options, stopping_criteria=criteria, custom_generate=outrider.transformers_generate)
    assert got.sequences.tolist() == expected.sequences.tolist()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_beams": 3}, "num_beams=3 is not supported.*beams="),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores=True is not supported"),
        ({"draft": "nobody"}, "draft must be one of"),
        ({"coupling": "loose"}, "coupling must be one of"),
    ],
)
def test_what_cannot_be_honoured_is_refused(options: dict[str, Any], says: str) -> None:
    """Catches an option of transformers' generate that is silently ignored."""
    with pytest.raises(BadOption, match=says):
        tiny.build("llama").generate(
            torch.tensor([[5, 6]]), max_new_tokens=3, custom_generate=outrider.transformers_generate, **options
        )


def test_a_draft_model_for_an_encoder_decoder_is_refused() -> None:
    """Catches a draft decoder that reads the target's encoder output as if it were its own."""
    with pytest.raises(BadOption, match="cannot draft for an encoder-decoder"):
        tiny.build("t5").generate(
            **inputs("t5"), max_new_tokens=3, custom_generate=outrider.transformers_generate, draft=tiny.build("t5", 1)
        )


def test_wrapping_twice() -> None:
    """Catches hooks and patches that pile up when one model is wrapped again and again."""
    network = tiny.build("opt")
    for _ in range(3):
        HuggingFaceModel(network)
    assert len(network.get_output_embeddings()._forward_pre_hooks) <= 1
    ids = torch.tensor([PROMPTS[0]])
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 8, "attention_mask": torch.ones_like(ids)}
    assert network.generate(ids, **options).tolist() == tiny.build("opt").generate(ids, **options).tolist()
