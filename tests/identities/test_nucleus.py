"""Top-p without a sort keeps what sorting would keep: ties, zeros, any shape of distribution."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outrider.core import host_sync
from outrider.core import top_p as module
from outrider.core.top_p import nucleus

CHANCES = st.floats(1e-6, 1 - 1e-6)


def by_sorting(logits: Tensor, top_p: float) -> Tensor:
    """Which tokens stay, in float64 and with a stable order: the obvious way."""
    ordered, index = logits.to(torch.float64).sort(dim=-1, descending=True, stable=True)
    probs = ordered.softmax(-1)
    stays = probs.cumsum(-1) - probs < top_p
    return stays.scatter(-1, index, stays)


def margin(logits: Tensor, top_p: float) -> float:
    """How near top_p any sum comes: nearer than rounding, either answer is right."""
    probs = logits.to(torch.float64).sort(dim=-1, descending=True).values.softmax(-1)
    return float((probs.cumsum(-1) - top_p).abs().min())


@given(st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40), CHANCES, st.booleans())
def test_as_by_sorting(values: list[float], top_p: float, ask: bool) -> None:
    logits = torch.tensor([values, values[::-1]], dtype=torch.float32)
    if margin(logits, top_p) < 1e-6:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_sync, "on_cpu", ask)
        found = nucleus(logits, top_p)
    stays = by_sorting(logits, top_p)
    assert torch.equal(found, logits.masked_fill(~stays, -torch.inf))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 39), st.booleans())
def test_ties_are_kept_in_order(values: list[int], tenths: int, ask: bool) -> None:
    """Many equal logits, some sums exactly at top_p: whole numbers know what floats would guess."""
    logits = torch.tensor(values, dtype=torch.float32) * torch.log(torch.tensor(2.0))  # weights 1, 2, 4, 8
    weights = [2**v for v in values]
    top_p = tenths / 40
    order = sorted(range(len(values)), key=lambda i: (-weights[i], i))
    exactly = {i: sum(weights[j] for j in order[:n]) / sum(weights) for n, i in enumerate(order)}
    if any(abs(before - top_p) < 1e-6 for before in exactly.values()) and len(set(values)) > 1:
        return  # logarithms are rounded: only equal logits have exact weights
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_sync, "on_cpu", ask)
        found = nucleus(logits, top_p)
    assert [i for i in range(len(values)) if found[i] > -torch.inf] == [
        i for i in range(len(values)) if exactly[i] < top_p
    ]


@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0, 12.0])
@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_vocabularies(scale: float, top_p: float, dtype: torch.dtype) -> None:
    """Few tokens suffice, or nearly all are needed: the same rule, and the same bits whatever stands beside."""
    chosen = torch.Generator().manual_seed(5)
    logits = (torch.randn((2, 3, 5000), generator=chosen) * scale).to(dtype)
    found = nucleus(logits, top_p)
    if scale and margin(logits, top_p) > 1e-7:
        assert torch.equal(found > -torch.inf, by_sorting(logits, top_p))
    if not scale:
        assert (found > -torch.inf).sum(-1).tolist() == [[-(-top_p * 5000 // 1)] * 3] * 2
    flat = torch.cat([logits[:1, :1], torch.zeros_like(logits[:1, :1])])  # beside a row that needs everything
    assert torch.equal(nucleus(flat, top_p)[0], found[0, :1])


@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0, 12.0])
@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 0.999])
def test_no_order_of_a_flat_distribution(scale: float, top_p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU all tokens of a flat distribution were put in order, which took longer than the rest of the step."""
    logits = (torch.randn((2, 2, 5000), generator=torch.Generator().manual_seed(5)) * scale).round(decimals=1)
    logits[..., 7] = -torch.inf
    expected = module.in_order(logits, top_p)
    monkeypatch.setattr(module, "in_order", lambda *_: pytest.fail("all tokens were put in order"))
    assert torch.equal(nucleus(logits, top_p), expected)


def test_what_was_cut_before_stays_cut() -> None:
    logits = torch.tensor([[1.0, -torch.inf, 2.0, -torch.inf, 0.5]])
    assert nucleus(logits, 0.999999).tolist() == logits.tolist()
    assert nucleus(logits, 0.1).tolist() == [[-torch.inf, -torch.inf, 2.0, -torch.inf, -torch.inf]]


def test_numbers_that_are_none_leave_no_choice() -> None:
    """A row of NaN must not come out as a distribution: it is found where tokens are emitted."""
    for bad in (torch.nan, torch.inf):
        found = nucleus(torch.tensor([[1.0, bad, 2.0], [1.0, 0.0, 2.0]]), 0.5)
        assert found[0].softmax(-1).isnan().any() and found[1, 2] == 2.0
