"""Rows of KV caches are moved and cleared in all layers, whether these are views of one memory or not."""

from __future__ import annotations

import pytest
import torch

from outrider.models.kv_buffers import Buffers, LayerShape

CPU = torch.device("cpu")
ALIKE: list[LayerShape] = [(2, 8, 8)] * 3
KINDS: dict[str, list[LayerShape]] = {
    "alike": ALIKE,
    "values of another size": [(2, 8, 16)] * 3,
    "layers of their own": [(2, 8, 8), (1, 8, 8), (2, 16, 8)],
    "one layer": [(2, 8, 8)],
}


def filled(shapes: list[LayerShape], part: bool = False, apart: bool = False) -> Buffers:
    made = Buffers.allocate(shapes, 5, 32, torch.float32, CPU)
    for number, buffer in enumerate(b for pair in made.buffers() for b in pair):
        torch.manual_seed(number)
        buffer.copy_(torch.randn(buffer.shape))
    if apart:
        return made.select(torch.arange(5))
    return made.part(range(1, 5)) if part else made


@pytest.mark.parametrize("apart", [False, True], ids=["one memory", "apart"])
@pytest.mark.parametrize("part", [False, True], ids=["whole", "part"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_moved_in_every_layer(kind: str, part: bool, apart: bool) -> None:
    """Layers that lie side by side are moved as one. Catches a view that reaches into other rows, layers or positions,
    and rows that change places one after the other."""
    cache, before = filled(KINDS[kind], part, apart), filled(KINDS[kind], part, apart)
    to, source = torch.tensor([0, 2, 3]), torch.tensor([2, 0, 2])
    cache.move(to, source, length=20, start=3)
    for now, then in zip(cache.buffers(), before.buffers(), strict=True):
        for one, expected in zip(now, then, strict=True):
            moved = expected.clone()
            for row, old in zip(to.tolist(), source.tolist(), strict=True):
                moved[row, :, 3:20] = expected[old, :, 3:20]
            assert torch.equal(one, moved)
    cache.clear_rows(range(1, 3), range(4, 9))
    for one in (b for pair in cache.buffers() for b in pair):
        assert not one[1:3, :, 4:9].any() and bool((one != 0).any(-1)[1:3, :, 9:20].all())


def test_layers_of_one_memory_are_one_view() -> None:
    """Sixty operations on sixty buffers took 3 ms of every step of a beam search."""
    assert len(filled(ALIKE).stacks) == 2 and len(filled(ALIKE, part=True).stacks) == 2
    assert len(filled(ALIKE, apart=True).stacks) == 6 == len(filled(KINDS["layers of their own"]).stacks)
