"""A model as drafter: its guesses are those of the model on the true text, whatever was committed."""

from __future__ import annotations

import pytest
import torch
from helpers import case, run, wrapped
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, DraftSession, Shape
from outrider.core.sampling import Sampling
from outrider.drafters import Fallback, ModelDrafter, Uniform

PROMPTS = ([5, 6, 7, 8, 9], [20], [33, 34])


def start(family: str, texts: list[list[int]]) -> DraftSession:
    model = wrapped(family)
    shape = Shape(capacity=64, width=6, source_capacity=8 if model.encoder_decoder else 0)
    session = ModelDrafter(model).start(len(texts), shape, model.start(len(texts), shape))
    for row, text in enumerate(texts):
        session.admit(row, text, (3, 4, 5) if model.encoder_decoder else None)
    return session


def propose(session: DraftSession, texts: list[list[int]], gamma: int = 4) -> Draft:
    at = torch.tensor([len(t) for t in texts])[:, None] + torch.arange(gamma + 1)
    return session.propose(gamma, Sampling(1.0), Noise(torch.arange(len(texts))), at)


def others(seed: int, count: int = 5) -> Tensor:
    return torch.randint(3, 90, (len(PROMPTS), count), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("family", ["llama", "mistral", "t5"])
def test_commits_that_contradict_every_guess(family: str) -> None:
    """Catches a draft model left behind: where another drafter's guesses were kept, its own cache is stale."""
    texts = [list(p) for p in PROMPTS]
    session = start(family, texts)
    for seed, count in enumerate(([5, 3, 1], [1, 5, 2], [2, 2, 5])):
        propose(session, texts)
        tokens = others(seed)
        session.commit(tokens, torch.tensor(count))
        for row, n in enumerate(count):
            texts[row] += tokens[row, :n].tolist()
    got, fresh = propose(session, texts), propose(start(family, texts), texts)
    assert got.probs is not None and fresh.probs is not None
    torch.testing.assert_close(got.probs, fresh.probs, atol=1e-4, rtol=1e-3)
    assert torch.equal(got.tokens, fresh.tokens)


def test_commits_without_proposals() -> None:
    """Catches tokens that never reach the draft model while it is not asked (gamma 0 for a while)."""
    texts = [list(p) for p in PROMPTS]
    session = start("llama", texts)
    for seed in range(6):
        propose(session, texts, 0)
        tokens = others(seed, 1)
        session.commit(tokens, torch.ones(len(PROMPTS), dtype=torch.int64))
        for row in range(len(PROMPTS)):
            texts[row] += tokens[row].tolist()
    got, fresh = propose(session, texts), propose(start("llama", texts), texts)
    assert got.probs is not None and fresh.probs is not None
    torch.testing.assert_close(got.probs, fresh.probs, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("draft", [Sampling(), Sampling(0.3, top_k=2)], ids=["greedy", "cool"])
def test_options_of_its_own(draft: Sampling) -> None:
    """Catches a draft with its own temperature that shows in the text."""
    wanted = case("llama")
    own = ModelDrafter(wanted.model, sampling=draft)
    texts, trace = run(wanted.model, own, wanted.seeded(), 4, Sampling(1.0))
    assert texts == run(wanted.model, Uniform(), wanted.seeded(), 1, Sampling(1.0))[0]
    assert any(record.accepted for record in trace.records)


def test_behind_another_drafter() -> None:
    """Catches a second choice that is not kept in step while the first one drafts."""
    wanted = case("llama")
    both = Fallback(wanted.drafter("copy"), wanted.drafter("self"))
    texts, trace = run(wanted.model, both, wanted.requests, 4)
    assert trace.drafter_error is None
    assert texts == wanted.expected
