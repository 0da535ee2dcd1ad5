"""Rules of single rows in one step: what may share a batch, and what may be captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.sampling import Sampling
from outrider.core.verification.choose import VERIFIERS, choose
from outrider.decoding.row_rules import joint_rule
from outrider.decoding.step_runner import Rule
from outrider.errors import BadOption

WARM = Sampling(temperature=1.0)


def test_rows_with_other_couplings_are_not_captured() -> None:
    """A graph of other groups would be replayed: rows judged by their neighbours' rule, under one key for all."""
    maximal, gumbel = (Rule(VERIFIERS[name], WARM) for name in ("maximal", "gumbel"))
    assert joint_rule({0: maximal, 1: maximal}).capturable
    assert not joint_rule({0: maximal, 1: gumbel}).capturable


def test_lenience_shares_no_batch_with_other_rules() -> None:
    """Its greedy form reads logits by other options than it was asked for, which a joint table has not."""
    lenient = Rule(choose("maximal", True, 0.5), Sampling())
    assert joint_rule({0: lenient, 1: lenient}) == lenient
    with pytest.raises(BadOption, match="cannot share a batch"):
        joint_rule({0: lenient, 1: Rule(VERIFIERS["gumbel"], WARM)})


class Numbered:
    def of_row(self, row: int) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda ids, scores: scores


def test_processors_by_slot_share_no_batch_with_other_options() -> None:
    """A group would count its rows from 0, whatever slots they have."""
    by_row = Rule(VERIFIERS["gumbel"], Sampling(temperature=1.0, processors=(Numbered(),)))
    with pytest.raises(BadOption, match="processors by row"):
        joint_rule({0: by_row, 1: Rule(VERIFIERS["gumbel"], WARM)})


@pytest.mark.parametrize("size", [1000, 2000])  # races of more than 1,024 tokens are not run in full
def test_rows_draw_from_streams_of_their_own(size: int) -> None:
    """A shortcut around ``keys`` gave all rows the same streams, whatever their coupling: block coupling's distribution
    was wrong, and a row's text depended on the rule of the row beside it."""
    names = ("maximal", "gumbel", "block")
    noise, at = Noise(torch.tensor([3, 4, 5])), torch.arange(40, 44).expand(3, 4)
    joint = joint_rule({row: Rule(VERIFIERS[name], WARM) for row, name in enumerate(names)}).verifier
    weights = torch.rand((3, 4, size), generator=torch.Generator().manual_seed(1)) ** 8
    for child in (False, True):
        streams = joint.noise_for_draft(noise, at)
        streams = streams.child("inner") if child else streams
        for row, name in enumerate(names):
            own = VERIFIERS[name].noise_for_draft(noise, at)
            own = own.child("inner") if child else own
            for draw in (lambda of: of.winner("token", at, weights), lambda of: of.uniform("accept", at)):
                assert torch.equal(draw(streams)[row], draw(own)[row]), name
