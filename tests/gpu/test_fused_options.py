"""What kernels compute for families that are not quite a Llama: against plain functions, on a GPU or interpreted."""

from __future__ import annotations

import pytest
import torch

import plain_kernels
from gpu.test_kernels import DEVICE, DTYPES, assert_close, randn
from outrider.core.token_tree import ROOT, TokenTree
from outrider.kernels.triton import available

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not available.run_on(DEVICE), reason="no GPU, and no Triton under TRITON_INTERPRET=1"),
]


def skip_where_products_are_wrong(dtype: torch.dtype) -> None:
    if DEVICE.type == "cpu" and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter has no products of bfloat16")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [64, 576])
@pytest.mark.parametrize(("offset", "late"), [(0.0, False), (1.0, True), (0.0, True)])
def test_norms_of_what_is_added(size: int, offset: float, late: bool, dtype: torch.dtype) -> None:
    """Catches an offset that is left out of one of the norms, weights of the two norms mixed up, a sum that is stored
    before the norm of what is added, and a share of the wrong summand."""
    from outrider.kernels.triton import rows

    x, delta = randn(2, 3, size, dtype=dtype), randn(3, 2, size, dtype=dtype).view(2, 3, size)
    before, after = randn(2, size, dtype=dtype)
    assert_close(rows.rms_norm(x, before, 1e-5, offset, late), plain_kernels.rms_norm(x, before, 1e-5, offset, late))
    for weights in ((before, after), (None, after), (before, None)):
        for share in (1.0, 0.22):
            given = x, delta, weights[0], 1e-5, offset, late, weights[1], share
            pairs = zip(rows.add_rms_norm(*given), plain_kernels.add_rms_norm(*given), strict=True)
            assert all(assert_close(found, expected) is None for found, expected in pairs)


def test_norms_round_once_or_twice() -> None:
    """Catches rounding before the weight where a family rounds behind it only: to the bit, in float16."""
    from outrider.kernels.triton.rows import rms_norm

    x, weight = randn(64, 1024, dtype=torch.float16), randn(1024, dtype=torch.float16)
    for late, other in ((False, True), (True, False)):
        found = rms_norm(x, weight, 1e-6, 0.0, late)
        off, wrong = (
            (found != plain_kernels.rms_norm(x, weight, 1e-6, 0.0, each)).float().mean() for each in (late, other)
        )
        assert off < 0.01 < 0.1 < wrong


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [96, 1536])
def test_a_gate_with_gelu(size: int, dtype: torch.dtype) -> None:
    """Catches the exact function in place of its approximation, the wrong half, and overflow far from zero."""
    from outrider.kernels.triton.rows import gelu_gate

    x = 3 * randn(2, 3, 2 * size, dtype=dtype)
    x[0, 0, :4] = torch.tensor([-60.0, 60.0, -9.0, 9.0])
    assert_close(gelu_gate(x), plain_kernels.gelu_gate(x))
    rows = x.flatten(0, 1)
    assert torch.equal(gelu_gate(rows, 9)[:6], gelu_gate(rows))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("size", "turned"), [(16, 8), (96, 72), (128, 96), (64, 64), (256, 256)])
def test_a_part_of_a_head_is_turned(size: int, turned: int, wide: bool, dtype: torch.dtype) -> None:
    """Also by cosines in float32. Catches halves of the whole head, a rest that is lost, and rows of cosines that are
    read at the width of a head."""
    from outrider.kernels.triton.rows import rotate_and_store

    q_heads, heads, capacity = 4, 2, 32
    qkv = randn(2, 4, (q_heads + 2 * heads) * size, dtype=dtype)
    angles = 9 * randn(2, 4, turned)
    turn = (angles.cos(), angles.sin()) if wide else (angles.cos().to(dtype), angles.sin().to(dtype))
    positions = torch.tensor([[3, 4, 5, 6], [20, 21, 22, 23]], device=DEVICE)
    ours, theirs = (randn(2, 2, heads, capacity, size, dtype=dtype) for _ in range(2))
    found = rotate_and_store(qkv, turn, positions, ours[0], ours[1])
    assert_close(found, plain_kernels.rotate_and_store(qkv, turn, positions, theirs[0], theirs[1]))
    assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [None, 37])
@pytest.mark.parametrize(
    ("q_heads", "heads", "size", "width"), [(4, 2, 64, 3), (8, 4, 256, 1), (4, 1, 256, 20), (2, 2, 96, 5)]
)
def test_capped_attention(
    q_heads: int, heads: int, size: int, width: int, window: int | None, dtype: torch.dtype
) -> None:
    """Heads up to 256 wide, a few queries and many. Catches a cap on masked scores, one that is applied before the
    scale, and heads that do not fit into a GPU's shared memory."""
    from outrider.kernels.triton.attention import attend

    skip_where_products_are_wrong(dtype)
    capacity = 384
    keys, values = randn(2, 2, heads, capacity, size, dtype=dtype)
    queries = randn(2, width, q_heads, size, dtype=dtype)
    positions = torch.tensor([[126], [capacity - width]], device=DEVICE) + torch.arange(width, device=DEVICE)
    for cap in (0.0, 1.5):
        given = queries, keys, values, positions, 2 * size**-0.5, window
        assert_close(attend(*given, cap=cap), plain_kernels.attend(*given, cap=cap))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [16, 256])
def test_capped_attention_has_the_bits_of_one_query(size: int, dtype: torch.dtype) -> None:
    """Alone, beside others, in a long run and in a tree: catches sums in another order in one of the kernels."""
    from outrider.kernels.triton.attention import attend

    skip_where_products_are_wrong(dtype)
    keys, values = randn(2, 1, 2, 512, size, dtype=dtype)
    queries = randn(1, 40, 4, size, dtype=dtype)
    at = 120 + torch.arange(40, device=DEVICE)[None]
    options = {"scale": size**-0.5, "window": 50, "cap": 2.0}
    whole = attend(queries, keys, values, at, **options)
    for width in (1, 5, 16):
        some = attend(queries[:, 3 : 3 + width].contiguous(), keys, values, at[:, 3 : 3 + width], **options)
        assert torch.equal(some, whole[:, 3 : 3 + width])
    tree = TokenTree((0,) * 5, (ROOT, ROOT, 0, 0, 2))
    places, root = tree.places(DEVICE), 123
    found = attend(queries[:, :6].contiguous(), keys, values, root + places.depths[None], paths=places.paths, **options)
    for token in range(6):
        depth = int(places.depths[token])
        order = torch.arange(512, device=DEVICE)
        order[root : root + depth + 1] = root + places.paths[token, : depth + 1]
        own = keys[:, :, order].contiguous(), values[:, :, order].contiguous()
        here = torch.tensor([[root + depth]], device=DEVICE)
        alone = attend(queries[:, token : token + 1].contiguous(), *own, here, **options)
        assert torch.equal(found[:, token], alone[:, 0]), token
