"""The law of texts decoded with trees, over several runs of the product's own loop with its own noise."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from laws import PROMPT, TARGET, drafters, far

from outrider.core.noise import Noise
from outrider.core.sampling import Sampling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Decoder
from outrider.decoding.request import Request
from outrider.decoding.stopping import Stopping
from outrider.testing import assert_same_law, counts_of, exact_law
from outrider.trace import Trace

TEXTS, LENGTH = 1500, 2


def texts(drafter: object, nodes: int, gamma: int) -> torch.Tensor:
    """The first tokens of many texts; each goes on for longer, so that runs end in the middle of trees."""
    decoder = Decoder(TARGET, drafter, maximal_coupling, Sampling(1.0), gamma, tree=nodes)  # type: ignore[arg-type]
    requests = [Request(PROMPT, Stopping(LENGTH + 1), seed) for seed in range(TEXTS)]
    rows = {event.index: event.row for event in decoder.stream(requests, Trace())}
    return torch.tensor([rows[index].tokens[1:] for index in range(TEXTS)])


def law() -> torch.Tensor:
    """Of the second and third token."""
    return exact_law(TARGET, Sampling(1.0), PROMPT, LENGTH + 1).sum(0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["near", "far"])
def test_law_over_several_runs(name: str) -> None:
    """Catches noise that is used twice: by two runs, by two nodes, or by the draft and by the target."""
    found = counts_of(texts(drafters()[name], 4, 2), TARGET.vocab_size)
    assert_same_law(found, law(), detects=0.2, what=name)


@pytest.mark.slow
def test_a_draft_that_draws_with_the_targets_noise_is_found() -> None:
    """A test that cannot fail proves nothing: candidates of the target's own race, judged as if independent."""
    with (
        mock.patch.object(Noise, "child", lambda self, name: self),
        mock.patch("outrider.decoding.tree_growth.row_seeds", lambda seed, texts: [seed]),
    ):
        found = counts_of(texts(far(), 4, 2), TARGET.vocab_size)
    with pytest.raises(AssertionError, match="not the expected law"):
        assert_same_law(found, law())
