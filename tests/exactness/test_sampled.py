"""With Gumbel coupling the sampled text is a function of seed and target alone: any drafter, any gamma, none."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch
from transformers import LogitsProcessor

from helpers import DRAFTERS, NEW_TOKENS, Case, case, run
from outrider.core.algorithm import autoregressive_step
from outrider.core.noise import Noise
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import Nothing

WARM = Sampling(temperature=1.0)


class AlternateHalves(LogitsProcessor):
    """Looks at the whole prefix: what may come next depends on the last token and on the length's parity."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert input_ids.shape[0] == scores.shape[0] == 1
        hidden = (torch.arange(scores.shape[-1]) + input_ids[0, -1] + input_ids.shape[1]) % 3 == 0
        return scores.masked_fill(hidden, -torch.inf)


SAMPLINGS = {
    "plain": WARM,
    "filters": Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02),
    "penalties": Sampling(temperature=1.2, repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=0.4),
    "processor": Sampling(temperature=1.0, processors=(AlternateHalves(),), logit_bias={7: 2.0}, top_k=30),
    "greedy with everything": Sampling(repetition_penalty=1.5, frequency_penalty=0.5, processors=(AlternateHalves(),)),
}


@cache
def plain(family: str, name: str) -> list[list[int]]:
    """The text without a drafter."""
    wanted = case(family)
    return run(wanted.model, Nothing(), wanted.seeded(), 0, SAMPLINGS[name])[0]


def combinations() -> list[tuple[str, str, int]]:
    full = [(f, *rest) for f in ("llama", "t5") for rest in product(DRAFTERS, (1, 4, 7))]
    families = ("mistral", "gemma2", "qwen3_moe", "gpt2", "opt", "bloom", "bart", "marian")
    return full + [(f, *rest) for f in families for rest in (("auto", 4), ("other", 7), ("self", 3))]


@pytest.mark.parametrize(("family", "drafter", "gamma"), combinations())
def test_same_text_whatever_drafts(family: str, drafter: str, gamma: int) -> None:
    """Catches noise tied to anything but the position, and a draft that changes what the target draws."""
    wanted = case(family)
    texts, trace = run(wanted.model, wanted.drafter(drafter), wanted.seeded(), gamma, WARM)
    assert trace.drafter_error is None
    assert texts == plain(family, "plain")


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize(("family", "drafter"), [("llama", "self"), ("llama", "ngram"), ("t5", "other")])
def test_filters_penalties_and_processors_see_each_drafted_prefix(family: str, drafter: str, name: str) -> None:
    """Catches penalties or processors that miss the guesses before a position, or see those behind it."""
    wanted = case(family)
    texts, trace = run(wanted.model, wanted.drafter(drafter), wanted.seeded(), 5, SAMPLINGS[name])
    assert trace.drafter_error is None
    assert texts == plain(family, name)


def plain_loop(wanted: Case, request: Request, sampling: Sampling) -> list[int]:
    """The paper's plain loop, one row, no decoder: what everything else must equal."""
    source_capacity = 0 if request.source is None else len(request.source)
    session = wanted.model.start(1, Shape(capacity=64, width=3, source_capacity=source_capacity, chunk=5))
    session.admit(0, request.prompt, request.source)
    noise = Noise(torch.tensor([request.seed]))
    return [int(autoregressive_step(session, sampling, noise)) for _ in range(NEW_TOKENS)]


@pytest.mark.parametrize("family", ["llama", "mistral", "t5"])
def test_decoder_equals_the_plain_loop(family: str) -> None:
    """Catches a decoder that seeds, shifts or reorders rows: shapes, batch and chunks must not show in the text."""
    wanted = case(family)
    texts, _ = run(wanted.model, wanted.drafter("auto"), wanted.seeded(), 4, WARM)
    assert texts == [plain_loop(wanted, request, WARM) for request in wanted.seeded()]


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_maximal_coupling_without_guesses_is_plain_decoding(family: str) -> None:
    """Catches a residual that is not p itself where nothing was proposed."""
    wanted = case(family)
    texts, _ = run(wanted.model, wanted.drafter("other"), wanted.seeded(), 0, WARM, maximal_coupling)
    assert texts == [plain_loop(wanted, request, WARM) for request in wanted.seeded()]


@pytest.mark.parametrize(("family", "coupling"), [("llama", "gumbel"), ("bloom", "maximal"), ("bart", "maximal")])
def test_a_row_does_not_depend_on_its_neighbours(family: str, coupling: str) -> None:
    """Catches rows that leak into each other, and noise tied to the slot: alone, together, or queued for a slot."""
    wanted = case(family)
    requests = [*wanted.seeded(), *wanted.seeded(50)[:2]]
    rule = {"verifier": maximal_coupling} if coupling == "maximal" else {}
    drafter = wanted.drafter("auto")
    alone = [run(wanted.model, drafter, [r], 4, WARM, **rule, slots=1)[0][0] for r in requests]
    assert run(wanted.model, drafter, requests, 4, WARM, **rule)[0] == alone
    assert run(wanted.model, drafter, requests, 4, WARM, **rule, slots=2)[0] == alone
    assert run(wanted.model, drafter, requests[::-1], 4, WARM, **rule, slots=3)[0] == alone[::-1]


def test_seed_decides() -> None:
    """Catches a seed that is ignored: other seeds, other texts; the same seed, the same text."""
    wanted = case("llama")
    requests = [Request(wanted.requests[0].prompt, Stopping(NEW_TOKENS), seed) for seed in (3, 4, 3)]
    texts, _ = run(wanted.model, wanted.drafter("copy"), requests, 4, WARM)
    assert texts[0] == texts[2] != texts[1]
