"""What makes a row's bits depend on anything but the row is found out; a model whose bits do not is believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from outrider.core.protocols import LanguageModel
from outrider.models import batch_invariance
from outrider.models.engine_protocol import Result, Wanted
from outrider.models.kv_buffers import Buffers
from whole_numbers import WholeNumberModel, WholeNumbers

CHECKS: dict[str, Callable[[LanguageModel], bool]] = {
    "width": batch_invariance.bits_do_not_depend_on_width,
    "capacity": batch_invariance.bits_do_not_depend_on_capacity,
    "prefill": batch_invariance.bits_do_not_depend_on_prefill,
}


class Disturbed(WholeNumbers):
    """A backend whose keys and logits are off by a rounding error in runs of some kind."""

    dtype = torch.float64  # in which the least disturbance of the longest sum is seen

    def __init__(self, when: Callable[[Tensor, Tensor, Buffers, Wanted], bool]) -> None:
        super().__init__()
        self.rows, self.when = self.table, when  # every token has a number

    def run(self, tokens: Tensor, positions: Tensor, cache: Buffers, wanted: Wanted) -> Result:
        found = super().run(tokens, positions, cache, wanted)
        if not self.when(tokens, positions, cache, wanted):
            return found
        keys = cache.buffers()[0][0]
        keys[torch.arange(len(tokens))[:, None], 0, positions] += 2.0**-20
        return replace(found, logits=None if found.logits is None else found.logits + 2.0**-20)


def failing(when: Callable[[Tensor, Tensor, Buffers, Wanted], bool]) -> set[str]:
    """Which checks find a model out."""
    return {name for name, check in CHECKS.items() if not check(WholeNumberModel(Disturbed(when)))}


def room(cache: Buffers) -> int:
    return cache.buffers()[0][0].shape[2]


def test_a_good_model_passes() -> None:
    assert failing(lambda *run: False) == set()
    assert batch_invariance.holds(WholeNumberModel(Disturbed(lambda *run: False)))


@pytest.mark.parametrize("width", [1, 2, 3, 8, 9, 16, 17])
def test_kernels_of_one_width_are_found_out(width: int) -> None:
    """A single row often has a kernel of its own, and so have multiples of a tile."""
    assert "width" in failing(lambda tokens, positions, cache, wanted: wanted.logits and tokens.shape[1] == width)


def test_rows_beside_are_found_out_by_the_width() -> None:
    """Of a run of several rows behind prompts, as plain decoding of a batch has them."""
    assert "width" in failing(lambda tokens, positions, cache, wanted: wanted.logits and len(tokens) == 3)


def test_a_long_sum_cut_by_the_width_is_found_out() -> None:
    """Attention over a large cache is cut into pieces where runs are narrow, and not in a small one."""

    def cut(tokens: Tensor, positions: Tensor, cache: Buffers, wanted: Wanted) -> bool:
        return room(cache) >= 1024 and tokens.shape[1] < 4

    assert "width" in failing(cut)


def test_bits_by_the_capacity_are_found_out() -> None:
    """And only by that check: such a model may run at any width, but requests may not share a cache."""
    assert failing(lambda tokens, positions, cache, wanted: room(cache) >= 1024) == {"capacity"}


def test_prompts_prefilled_beside_others_are_found_out() -> None:
    """A product of many rows has another kernel: it is met in prefill, where short texts never get."""
    assert failing(lambda tokens, positions, cache, wanted: not wanted.logits and len(tokens) > 8) == {"prefill"}


def test_prompts_prefilled_in_long_runs_are_found_out() -> None:
    """As it is where a chunk of a prompt is long, but guesses are few."""
    assert failing(lambda tokens, positions, cache, wanted: tokens.numel() > 64 and not wanted.logits) == {"prefill"}


def test_a_prompt_that_differs_from_guesses_is_found_out() -> None:
    """Text that was guessed in one call may be part of the prompt of the next."""
    assert failing(lambda tokens, positions, cache, wanted: tokens.numel() > 200 and wanted.logits) == {"prefill"}


@pytest.mark.parametrize("name", CHECKS)
def test_all_checks_must_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = CHECKS[name].__name__
    monkeypatch.setattr(batch_invariance, function, lambda model: False)
    assert not batch_invariance.holds(WholeNumberModel(Disturbed(lambda *run: False)))


def test_a_model_of_short_texts_is_tested_within_its_limit() -> None:
    """A prompt of 300 tokens would be beyond its last position."""
    longest: list[int] = []

    def noted(tokens: Tensor, positions: Tensor, cache: Buffers, wanted: Wanted) -> bool:
        longest.append(int(positions.max()))
        return False

    model = WholeNumberModel(Disturbed(noted))
    model.facts = replace(model.facts, max_length=64)
    assert batch_invariance.bits_do_not_depend_on_prefill(model)
    assert 40 < max(longest) < 64
