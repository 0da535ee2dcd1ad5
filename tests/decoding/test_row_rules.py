"""Rules of single rows in one step: what may share a batch, and what may be captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

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
