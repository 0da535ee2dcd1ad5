"""check_session finds what it promises to find: each wrong session here must be caught."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import wrapped
from outrider.models.cached_session import CachedSession
from outrider.models.toy import ToyModel, ToySession
from outrider.testing import check_session


class KeepsEverything(CachedSession):
    """Takes every guess as true: rollback forgotten."""

    def commit(self, tokens: Tensor, count: Tensor, follows: bool = True) -> None:
        guessed = self.guessed
        super().commit(tokens, count, follows)
        self.cached = torch.minimum(self.cached + guessed, self.context.lengths - 1)


class OffByOne(CachedSession):
    """Believes the token after the last accepted guess is cached already."""

    def score(self, tail: Tensor) -> Tensor:
        logits = super().score(tail)
        self.guessed += 1
        return logits


class KeepsOldRows(CachedSession):
    """select moves the tokens but not the keys and values."""

    def _move_memory(self, rows: Tensor) -> None:
        super()._copy_memory(torch.arange(len(rows)))


class ForksShareMemory(CachedSession):
    """What a fork runs is written over the original's keys and values."""

    def fork(self, rows: Tensor) -> ForksShareMemory:
        other = super().fork(rows)
        other.cache = self.cache
        return other


class ForksShareTokens(ToySession):
    def fork(self, rows: Tensor) -> ToySession:
        self.select(rows)
        return self


class KeepsWhatWasTakenBack(ToySession):
    """rewind leaves a row as it is."""

    def rewind(self, lengths: Tensor) -> None:
        """Nothing."""


class Grows(ToySession):
    """A released row goes on growing."""

    def release(self, row: int) -> None:
        """Nothing."""


class ExtendStartsOver(ToySession):
    def extend(self, tokens: Tensor) -> Tensor:
        return self.score(tokens)[:, 1:]


class ForgetsUnseen(CachedSession):
    """Tokens committed without having been scored are taken for cached."""

    def commit(self, tokens: Tensor, count: Tensor, follows: bool = True) -> None:
        super().commit(tokens, count, follows)
        self.cached, self.behind = self.context.lengths - 1, 1


@pytest.mark.parametrize("wrong", [KeepsEverything, OffByOne, KeepsOldRows, ForgetsUnseen, ForksShareMemory])
def test_wrong_sessions_are_caught(wrong: type[CachedSession]) -> None:
    """Catches a check_session that lets stale keys and values through."""
    model = wrapped("llama")
    with pytest.raises(AssertionError, match="than a fresh session"):
        check_session(lambda rows, shape: wrong(model, rows, shape))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (Grows, "must not grow"),
        (ExtendStartsOver, "extend"),
        (KeepsWhatWasTakenBack, "tokens are committed"),
        (ForksShareTokens, "fork"),
    ],
)
def test_wrong_toy_sessions_are_caught(wrong: type[ToySession], says: str) -> None:
    """Catches a check_session that never releases, extends or forks."""
    model = ToyModel(12)
    with pytest.raises(AssertionError, match=says):
        check_session(lambda rows, shape: wrong(model, rows, shape))


def test_a_model_that_ignores_its_text_cannot_be_checked() -> None:
    """Catches a check that passes because nothing depends on anything."""
    model = ToyModel(12)
    model.table[:] = model.table[0].clone()
    with pytest.raises(ValueError, match="nothing would be tested"):
        check_session(model.start)
