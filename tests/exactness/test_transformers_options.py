"""Options that change greedy text mean what they mean in transformers, with guesses in between."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
import transformers as tf
from helpers import NEW_TOKENS, case, greedy, run, wrapped

from outrider.core.sampling import Sampling
from outrider.decoding.loop import Request
from outrider.decoding.stopping import Stopping

OPTIONS: dict[str, tuple[dict[str, Any], Sampling]] = {
    "repetition_penalty": ({"repetition_penalty": 1.4}, Sampling(repetition_penalty=1.4)),
    "no_repeat_ngram": (
        {"no_repeat_ngram_size": 2},
        Sampling(processors=(tf.NoRepeatNGramLogitsProcessor(2),)),
    ),
    "logit_bias": (
        {"sequence_bias": [[[5], 1.5], [[9], -3.0]]},
        Sampling(logit_bias={5: 1.5, 9: -3.0}),
    ),
}


@pytest.mark.parametrize("drafter", ["none", "self", "ngram"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("family", ["llama", "gpt2", "bart"])
def test_same_text_as_transformers(family: str, name: str, drafter: str) -> None:
    """Catches a penalty over the wrong tokens (prompt left out, guesses left out) or applied in the wrong order."""
    wanted, network = case(family), tiny.build(family)
    theirs, ours = OPTIONS[name]
    expected = []
    for request in wanted.requests:
        ids = torch.tensor([list(request.prompt)])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if request.source is not None:
            source = torch.tensor([list(request.source)])
            inputs = {"input_ids": source, "attention_mask": torch.ones_like(source), "decoder_input_ids": ids}
        output = network.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS, **theirs)
        expected.append(output[0, len(request.prompt) :].tolist())
    texts, _ = run(wanted.model, wanted.drafter(drafter), wanted.seeded(), 4, ours)
    assert texts == expected


@pytest.mark.parametrize("family", ["t5", "bloom", "opt", "bart"])
def test_wrapping_leaves_the_network_usable(family: str) -> None:
    """Catches per-row positions that break the model for its owner: transformers' generate gives what it gave."""
    wanted = case(family)
    run(wanted.model, wanted.drafter("copy"), wanted.requests)
    for request, text in zip(wanted.requests, wanted.expected, strict=True):
        assert greedy(wanted.model.model, request.prompt, request.source, wanted.eos)[0] == text


def test_a_draft_may_have_padding_rows_in_its_vocabulary() -> None:
    """Catches a vocabulary taken for granted: drafts with more or fewer (padding) rows than the target."""
    from outrider.drafters import ModelDrafter
    from outrider.models.transformers.model import HuggingFaceModel

    wanted = case("llama")
    for size in (tiny.VOCAB + 32, tiny.VOCAB - 32):
        other = tiny.build("llama", seed=1)
        other.resize_token_embeddings(size)
        prompt = [t for t in wanted.requests[0].prompt if t < size]
        request = Request((3, *prompt), Stopping(NEW_TOKENS), 0)
        # A smaller draft cannot read every token: keep the text within what both know.
        allowed = Sampling(temperature=1.0, logit_bias=dict.fromkeys(range(size, tiny.VOCAB), -1000000000.0))
        texts, trace = run(wrapped("llama"), ModelDrafter(HuggingFaceModel(other)), [request], 4, allowed)
        assert trace.drafter_error is None
        assert texts == run(wrapped("llama"), wanted.drafter("none"), [request], 0, allowed)[0]
