"""What a drafting session says ahead of the target, in a fork: beam search looks down several branches this way."""

from __future__ import annotations

import pytest
import torch

import cpus
import tiny
from helpers import wrapped
from outrider.core.abilities import Forkable
from outrider.core.noise import Silence
from outrider.core.protocols import Drafter, Shape
from outrider.core.sampling import Sampling
from outrider.drafters import Copying, Mixture, ModelDrafter, Standardised
from outrider.drafters.head import Head, HeadConfig, HeadDrafter
from outrider.runtime import cpu

GUESSES = 4
PROMPTS = ((1, 2, 3, 4, 5, 6, 7), (9, 8, 7, 6, 5), (3, 1, 4, 1, 5, 9, 2, 6, 5, 3))


NAMES = ("attention", "no attention", "block", "blockwise", "mixture", "options of its own", "model")


def head(config: HeadConfig) -> HeadDrafter:
    """A head with random weights: the layers that training starts at zero would hide what they are given."""
    torch.manual_seed(0)
    made = Head(config)
    for weights in made.parameters():
        torch.nn.init.normal_(weights, std=1.0)
    return HeadDrafter(made, torch.arange(tiny.VOCAB), floor=0.0)


def drafters() -> dict[str, Drafter]:
    model = wrapped("llama")
    size = model.hidden_size or 0
    feature = head(HeadConfig("feature", size, 16, 1, layers=(1, -1), heads=(2, 1)))
    return {
        "attention": feature,
        "no attention": head(HeadConfig("feature", size, 16, 1)),
        "block": head(
            HeadConfig("block", size, 16, 1, layers=(1, -1), heads=(2, 1), window=9, masks=GUESSES - 1, rank=5)
        ),
        "blockwise": head(HeadConfig("blockwise", size, 16, GUESSES)),
        "mixture": Mixture(Copying(shortest=8), feature, cost=0.0),
        "options of its own": Standardised(feature, temperature=0.5),
        "model": ModelDrafter(wrapped("llama", seed=1)),
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_fork_goes_on_as_a_draft_does(name: str) -> None:
    """Catches a fork whose states, keys or places are another row's, or one token behind.

    On a CPU where torch drafts for a few rows, as it does for forks: compiled guesses are rounded otherwise.
    """
    model, rows, sampling = wrapped("llama"), torch.tensor([2, 0, 0, 1]), Sampling()
    shape = Shape(capacity=64, width=GUESSES + 1)
    target = model.start(len(PROMPTS), shape)
    with cpu.using(cpus.A72):
        session = drafters()[name].start(len(PROMPTS), shape, target)
    for row, prompt in enumerate(PROMPTS):
        target.admit(row, prompt)
        session.admit(row, prompt)
    silence = Silence(torch.zeros(len(rows), dtype=torch.int64))
    at = torch.zeros((len(rows), GUESSES + 1), dtype=torch.int64)
    straight = session.propose(GUESSES, sampling, Silence(silence.seeds[:3]), at[:3])
    assert isinstance(session, Forkable)
    fork = session.fork(rows)
    for k in range(GUESSES):
        ahead = fork.propose(1, sampling, silence, at[:, :2])
        assert torch.equal(ahead.tokens, straight.tokens[rows, k : k + 1]), f"guess {k}"
        fork.commit(ahead.tokens, torch.ones(len(rows), dtype=torch.int64))
        rows = rows.flip(0)
        fork.select(torch.arange(len(rows)).flip(0))
    assert len(set(straight.tokens.flatten().tolist())) > 3, "guesses that are all alike would show nothing"
