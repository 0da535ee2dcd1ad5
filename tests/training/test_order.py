"""Which rows stand in which step."""

from __future__ import annotations

import torch

from outrider.training.data import PADDING, Corpus
from outrider.training.order import Order


def corpus(lengths: list[int], width: int = 256) -> Corpus:
    place = torch.arange(width)
    return Corpus(torch.stack([torch.where(place < n, 5, PADDING) for n in lengths]))


def test_every_row_once_a_pass_with_rows_of_its_length() -> None:
    """Catches rows left out or learnt twice, and steps that are mostly padding."""
    lengths = [10 + 7 * (i % 30) for i in range(200)]
    order = Order(corpus(lengths), batch=4, seed=3)
    passes = [[order.rows(turn * order.steps + i) for i in range(order.steps)] for turn in range(2)]
    for steps in passes:
        assert sorted(row for rows in steps for row in rows) == list(range(200))
        for rows in steps:
            rounded = {-(-lengths[row] // 64) for row in rows}
            assert len(rounded) == 1 and len(rows) * 64 * rounded.pop() <= 4 * 256
    assert passes[0] != passes[1]
    assert order.tokens_per_step * order.steps == sum(lengths)


def test_a_step_is_a_function_of_its_number() -> None:
    """Catches an order that depends on where a run began: a resumed one would see other text."""
    text = corpus([256] * 50)
    one, two = Order(text, 8, 1), Order(text, 8, 1)
    later = [two.rows(step) for step in (20, 13, 0)]
    assert later == [[one.rows(step) for step in range(21)][step] for step in (20, 13, 0)]
    assert len(one.rows(0)) in (8, 2) and one.steps == 7


def test_rows_with_sources_are_counted_by_rows() -> None:
    short = Corpus(corpus([3] * 20, 64).tokens, torch.ones((20, 9), dtype=torch.int64))
    order = Order(short, 4, 0)
    assert order.steps == 5 and all(len(order.rows(i)) == 4 for i in range(5))


def test_a_step_is_as_wide_as_its_rows() -> None:
    some = corpus([10, 70, 130])
    assert [some.take([row], 64).tokens.shape[1] for row in range(3)] == [64, 128, 192]
    assert corpus([10], 32).take([0], 64).tokens.shape[1] == 32
