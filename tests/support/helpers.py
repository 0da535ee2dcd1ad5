"""What several test directories share: running the product, and transformers' own answer beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from transformers import PreTrainedModel

import tiny
from outrider.core.protocols import Drafter, LanguageModel, Verifier
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import ModelDrafter, Ngram, NgramTable, built_in
from outrider.models.transformers.model import HuggingFaceModel
from outrider.planning.policies import Policy
from outrider.trace import Trace

NEW_TOKENS = 12
MARGIN = 2e-3
"""The reference's best token must lead by this much everywhere: another rounding must not change the text."""


def run_only_if_asked(request: pytest.FixtureRequest) -> None:
    """Skips a test that takes minutes, unless it was asked for by its marker."""
    if "slow" not in request.config.getoption("markexpr"):
        pytest.skip("minutes of work: run it with -m slow")


def run(
    model: LanguageModel,
    drafter: Drafter,
    requests: Sequence[Request],
    gamma: int | Policy = 4,
    sampling: Sampling | None = None,
    verifier: Verifier = gumbel_coupling,
    **options: int,
) -> tuple[list[list[int]], Trace]:
    """The new tokens of every request by the product's own loop, and the trace. Greedy if not told otherwise."""
    decoder = Decoder(model, drafter, verifier, sampling or Sampling(), gamma, **options)
    trace = Trace(drafter.name)
    rows = {event.index: event.row for event in decoder.stream(requests, trace)}
    return [rows[i].tokens for i in range(len(requests))], trace


@dataclass(frozen=True)
class Case:
    """A tiny model of a family with ragged requests and the text transformers itself gives for them."""

    family: str
    model: HuggingFaceModel
    requests: list[Request]
    expected: list[list[int]]
    eos: int  # ends at least one row early, and not all

    def drafter(self, name: str) -> Drafter:
        """By name: the built-in ones, ``table`` (fitted), ``self`` (the target) and ``other`` (another model)."""
        if name == "table":
            texts = [[*r.prompt, *text] for r, text in zip(self.requests, self.expected, strict=True)]
            return Ngram(NgramTable.fit(texts, tiny.VOCAB, order=3))
        if name in ("self", "other"):
            return ModelDrafter(self.model if name == "self" else wrapped(self.family, seed=1), name)
        return built_in()[name]

    def seeded(self, first: int = 0) -> list[Request]:
        """The same requests with a seed each and no end-of-sequence token: for sampling."""
        stopping = Stopping(NEW_TOKENS)
        return [Request(r.prompt, stopping, first + i, r.source) for i, r in enumerate(self.requests)]


DRAFTERS = ("none", "copy", "ngram", "suffix", "table", "uniform", "auto", "other", "self")


@cache
def wrapped(family: str, seed: int = 0) -> HuggingFaceModel:
    return HuggingFaceModel(tiny.build(family, seed))


@cache
def case(family: str) -> Case:
    """Prompts are drawn until transformers' own greedy text is clear-cut, not constant, and offers an eos.

    Only the reference is looked at, never the code under test.
    """
    network = tiny.build(family)  # never wrapped: the reference must not see what ``families.adapt`` does
    for seed in range(100):
        prompts, sources = _prompts(seed, network.config.is_encoder_decoder)
        texts, margins = zip(*(greedy(network, p, s) for p, s in zip(prompts, sources, strict=True)), strict=True)
        eos = _early_end(texts)
        if min(margins) < MARGIN or eos is None:
            continue
        expected = [greedy(network, p, s, eos)[0] for p, s in zip(prompts, sources, strict=True)]
        if max(len(set(text)) for text in expected) < 5:
            continue
        stopping = Stopping(NEW_TOKENS, eos=frozenset([eos]))
        requests = [Request(p, stopping, source=s) for p, s in zip(prompts, sources, strict=True)]
        return Case(family, wrapped(family), requests, expected, eos)
    raise AssertionError(f"no usable prompts for {family}")


def _prompts(seed: int, encoder_decoder: bool) -> tuple[list[tuple[int, ...]], list[tuple[int, ...] | None]]:
    chosen = random.Random(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(chosen.randrange(3, tiny.VOCAB) for _ in range(count))

    if encoder_decoder:
        return [(0,), (0,), (0, *tokens(3))], [tokens(12), tokens(2), tokens(7)]
    return [tokens(9), tokens(1), tokens(4)], [None, None, None]


def greedy(
    network: PreTrainedModel, prompt: Sequence[int], source: Sequence[int] | None = None, eos: int | None = None
) -> tuple[list[int], float]:
    """transformers' own greedy continuation, alone and unpadded, and the smallest lead of a best token."""
    ids = torch.tensor([list(prompt)])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if source is not None:
        given = torch.tensor([list(source)])
        inputs = {"input_ids": given, "attention_mask": torch.ones_like(given), "decoder_input_ids": ids}
    output = network.generate(
        **inputs, do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=eos,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    best = torch.cat(output.logits).topk(2).values
    return output.sequences[0, len(prompt) :].tolist(), float((best[:, 0] - best[:, 1]).min())


def _early_end(texts: Sequence[Sequence[int]]) -> int | None:
    """A token that ends one text after a few tokens and never occurs in another."""
    for text in texts:
        for place in range(4, NEW_TOKENS - 3):
            if text[place] not in text[:place] and any(text[place] not in other for other in texts):
                return text[place]
    return None
