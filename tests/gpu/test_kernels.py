"""Kernels against the plain functions they stand for: on a GPU, or on a CPU with TRITON_INTERPRET=1."""

from __future__ import annotations

import pytest
import torch

import plain_kernels
from outrider.core import top_p as nucleus_module
from outrider.core.token_tree import ROOT, TokenTree
from outrider.core.top_p import nucleus
from outrider.drafters.head.backends import triton_backend
from outrider.kernels.triton import available

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not available.run_on(DEVICE), reason="no GPU, and no Triton under TRITON_INTERPRET=1"),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


@pytest.fixture(autouse=True)
def what_the_interpreter_can_do(request: pytest.FixtureRequest) -> None:
    """It multiplies matrices of bfloat16 as if they were whole numbers."""
    looking = "test_attention", "test_a_head_looks_back", "test_a_head_looks_back_on_branches"
    multiplies = request.node.originalname in looking
    if DEVICE.type == "cpu" and multiplies and request.getfixturevalue("dtype") == torch.bfloat16:
        pytest.skip("Triton's interpreter has no products of bfloat16")


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    slack = CLOSE[expected.dtype]
    torch.testing.assert_close(found, expected, atol=slack * float(expected.abs().max()), rtol=slack)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [64, 576, 4096])
def test_norms(size: int, dtype: torch.dtype) -> None:
    from outrider.kernels.triton import rows

    x, delta, gain = randn(2, 3, size, dtype=dtype), randn(2, 3, size, dtype=dtype), randn(size, dtype=dtype)
    assert_close(rows.rms_norm(x, gain, 1e-5), plain_kernels.rms_norm(x, gain, 1e-5))
    for found, expected in zip(
        rows.add_rms_norm(x, delta, gain, 1e-5), plain_kernels.add_rms_norm(x, delta, gain, 1e-5), strict=True
    ):
        assert_close(found, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated_activation(dtype: torch.dtype) -> None:
    from outrider.kernels.triton.rows import silu_gate

    x = randn(2, 3, 2 * 1536, dtype=dtype)
    assert_close(silu_gate(x), plain_kernels.silu_gate(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("q_heads", "heads", "size"), [(8, 2, 64), (4, 4, 128), (9, 3, 64)])
def test_rotary_positions_and_the_buffers(q_heads: int, heads: int, size: int, dtype: torch.dtype) -> None:
    from outrider.kernels.triton.rows import rotate_and_store

    rows, width, capacity = 2, 4, 32
    qkv = randn(rows, width, (q_heads + 2 * heads) * size, dtype=dtype)
    turn = randn(rows, width, size, dtype=dtype).cos(), randn(rows, width, size, dtype=dtype).sin()
    positions = torch.tensor([[3, 4, 5, 6], [20, 21, 22, 23]], device=DEVICE)
    ours, theirs = (randn(2, rows, heads, capacity, size, dtype=dtype) for _ in range(2))
    found = rotate_and_store(qkv, turn, positions, ours[0], ours[1])
    expected = plain_kernels.rotate_and_store(qkv, turn, positions, theirs[0], theirs[1])
    assert_close(found, expected)
    assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [None, 37])
@pytest.mark.parametrize(("q_heads", "heads", "size", "width"), [(8, 2, 64, 5), (4, 4, 128, 1), (9, 3, 64, 9)])
def test_attention(q_heads: int, heads: int, size: int, width: int, window: int | None, dtype: torch.dtype) -> None:
    """Rows at very different lengths, across pieces of keys."""
    from outrider.kernels.triton.attention import attend

    capacity = 512
    keys, values = randn(2, 3, heads, capacity, size, dtype=dtype)
    queries = randn(3, width, q_heads, size, dtype=dtype)
    starts = torch.tensor([0, 126, capacity - width], device=DEVICE)
    positions = starts[:, None] + torch.arange(width, device=DEVICE)
    found = attend(queries, keys, values, positions, size**-0.5, window)
    assert_close(found, plain_kernels.attend(queries, keys, values, positions, size**-0.5, window))


def test_attention_does_not_depend_on_neighbours_or_capacity() -> None:
    """Bit for bit: what a query gets follows from its own row and position."""
    from outrider.kernels.triton.attention import attend

    keys, values = randn(2, 2, 2, 1024, 64)
    queries = randn(2, 5, 4, 64)
    near, far = (torch.tensor([[100], [n]], device=DEVICE) + torch.arange(5, device=DEVICE) for n in (3, 900))
    alone = attend(queries, keys, values, near, 0.125)
    beside = attend(queries, keys, values, far, 0.125)
    short = attend(queries, keys[:, :, :256].contiguous(), values[:, :, :256].contiguous(), near, 0.125)
    assert torch.equal(alone[0], beside[0]) and torch.equal(alone, short)


@pytest.mark.parametrize("window", [None, 37])
@pytest.mark.parametrize("root", [0, 5, 126, 127, 128, 250])
def test_a_token_of_a_tree_finds_what_it_finds_in_its_own_text(root: int, window: int | None) -> None:
    """Bit for bit, wherever the tree begins among the pieces of keys: catches keys read by their place, siblings that
    are seen, and sums in another order."""
    from outrider.kernels.triton.attention import attend

    tree = TokenTree((0,) * 21, (ROOT, ROOT, 0, 0, 1, 3, 4, 6, *range(6, 18), 2))
    places, capacity = tree.places(DEVICE), 512
    keys, values = randn(2, 1, 2, capacity, 64)
    queries = randn(1, len(tree) + 1, 6, 64)
    at = root + places.depths[None]
    found = attend(queries, keys, values, at, 0.125, window, paths=places.paths)
    assert_close(found, plain_kernels.attend(queries, keys, values, at, 0.125, window, paths=places.paths))
    for token in range(len(tree) + 1):
        depth = int(places.depths[token])
        order = torch.arange(capacity, device=DEVICE)
        order[root : root + depth + 1] = root + places.paths[token, : depth + 1]
        own = keys[:, :, order].contiguous(), values[:, :, order].contiguous()
        alone = attend(queries[:, token : token + 1].contiguous(), *own, at[:, token : token + 1], 0.125, window)
        assert torch.equal(found[:, token], alone[:, 0]), token


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 5, 20])
@pytest.mark.parametrize(("size", "outputs"), [(64, 30), (576, 1920), (1920, 576), (576, 5000)])
def test_products_of_a_few_rows(size: int, outputs: int, rows: int, dtype: torch.dtype) -> None:
    """With everything before and after them; twenty rows go another way."""
    from outrider.kernels.triton.product import product

    x, gain = randn(rows, 1, size, dtype=dtype), randn(size, dtype=dtype)
    weight = randn(2 * outputs, size, dtype=dtype) / size**0.5
    plus = randn(rows, 1, outputs, dtype=dtype)
    for options in ({}, {"norm": (gain, 1e-5)}, {"plus": plus}, {"gate": True}, {"norm": (gain, 1e-5), "gate": True}):
        chosen = weight if options.get("gate") else weight[:outputs]
        assert_close(product(x, chosen, **options), plain_kernels.product(x, chosen, **options))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 5, 20])
@pytest.mark.parametrize("size", [64, 576])
def test_two_norms_joined(size: int, rows: int, dtype: torch.dtype) -> None:
    """Also of tensors that lie apart, as the states of layers do, and of rows of a table inside a wider one."""
    from outrider.kernels.triton.product import join

    states, gains = randn(rows, 1, 3, size, dtype=dtype), randn(2, size, dtype=dtype)
    weight = randn(size, 2 * size, dtype=dtype) / size**0.5
    given = ((states[..., 0, :], states[..., 1, :]), (gains[0], gains[1]), 1e-5, weight, states[..., 2, :])
    assert_close(join(*given), plain_kernels.join(*given))
    table, chosen = randn(40, 2 * size, dtype=dtype)[:, :size], (torch.arange(rows, device=DEVICE) * 7 % 40)[:, None]
    looked_up = ((states[..., 0, :], table), *given[1:], chosen)
    assert_close(join(*looked_up), plain_kernels.join(*looked_up))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "shared", "size"), [(9, 3, 64), (4, 2, 8)])
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("chosen", [False, True])
def test_a_heads_keys_and_queries(
    heads: int, shared: int, size: int, alike: bool, chosen: bool, dtype: torch.dtype
) -> None:
    from outrider.kernels.triton.head import turn_and_store

    qkv = randn(2, 5, (heads + 2 * shared) * size, dtype=dtype)
    speed = 10_000.0 ** -(torch.arange(size // 2, device=DEVICE) / (size // 2))
    positions = torch.tensor([[3], [700]], device=DEVICE)[: 1 if alike else 2] + torch.arange(5, device=DEVICE)
    rows = torch.tensor([[2, 900], [0, 900]], device=DEVICE)[:, 0] if chosen else None  # a view: not one after another
    ours, theirs = (randn(2, 3 if chosen else 2, shared, 1024, size, dtype=dtype) for _ in range(2))
    found = turn_and_store(qkv, speed, positions, (ours[0], ours[1]), rows)
    assert_close(found, plain_kernels.turn_and_store(qkv, speed, positions, (theirs[0], theirs[1]), rows))
    assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "shared", "size"), [(9, 3, 64), (4, 2, 8)])
@pytest.mark.parametrize("guesses", [0, 1, 17])
def test_a_head_looks_back(heads: int, shared: int, size: int, guesses: int, dtype: torch.dtype) -> None:
    """Rows at very different lengths, within the window and beyond it."""
    from outrider.kernels.triton.head import look_back

    keys, values = randn(2, 3, shared, 512, size, dtype=dtype)
    query = randn(3, 1, heads, size, dtype=dtype)
    positions = torch.tensor([[0], [126], [400]], device=DEVICE) + guesses
    expected = plain_kernels.look_back(query, (keys, values), guesses, positions, 200)
    assert_close(look_back(query, (keys, values), guesses, positions, 200), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "shared", "size"), [(9, 3, 64), (4, 2, 8)])
@pytest.mark.parametrize("levels", [1, 5, 17])
@pytest.mark.parametrize("last", [0, 130, 400])
def test_a_head_looks_back_on_branches(
    heads: int, shared: int, size: int, levels: int, last: int, dtype: torch.dtype
) -> None:
    """Branches that share guesses, behind texts shorter and longer than the window."""
    from outrider.kernels.triton.head import look_back_on_branches

    branches, room = 3, 60
    text, apart = (tuple(randn(2, 1, shared, n, size, dtype=dtype)) for n in (512, room))
    chains = (torch.arange(levels)[None] * branches + torch.arange(branches)[:, None] // 2).to(DEVICE)
    query = randn(1, branches, heads, size, dtype=dtype)
    positions = torch.full((1, branches), last + levels, device=DEVICE)
    given = query, text, apart, chains, positions, 200
    assert_close(look_back_on_branches(*given), plain_kernels.look_back_on_branches(*given))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_keys_of_branches_stand_apart(dtype: torch.dtype) -> None:
    from outrider.kernels.triton.head import turn_and_store

    qkv, speed = randn(1, 5, 9 * 16, dtype=dtype), torch.ones(8, device=DEVICE) / 3
    positions = torch.full((1, 5), 700, device=DEVICE)
    places = torch.tensor([[3, 0, 9, 1, 5]], device=DEVICE)
    ours, theirs = (randn(2, 1, 3, 10, 16, dtype=dtype) for _ in range(2))
    found = turn_and_store(qkv, speed, positions, (ours[0], ours[1]), None, places)
    assert_close(found, plain_kernels.turn_and_store(qkv, speed, positions, (theirs[0], theirs[1]), None, places))
    assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [8, 100, 16384])
def test_the_likeliest_few(count: int, dtype: torch.dtype) -> None:
    """Highest first; of equal ones any may be taken, so their logits are compared."""
    from outrider.kernels.triton.head import likeliest_few

    logits, tokens = randn(3, count, dtype=dtype), torch.arange(count, device=DEVICE) * 3
    (chances, found), (expected, _) = (few(logits, tokens, 8) for few in (likeliest_few, plain_kernels.likeliest_few))
    assert_close(chances, expected)
    assert all(len(set(line)) == 8 for line in found.tolist())
    assert torch.equal(logits.gather(1, found // 3), logits.sort(descending=True).values[:, :8])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 100, 16384])
def test_the_likeliest_token(count: int, dtype: torch.dtype) -> None:
    from outrider.kernels.triton.head import likeliest

    logits, tokens = randn(3, count, dtype=dtype), torch.arange(count, device=DEVICE) * 3
    assert torch.equal(likeliest(logits, tokens), plain_kernels.likeliest(logits, tokens))


@pytest.mark.parametrize("size", [7, 1000, 50000])
@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 0.999])
def test_top_p(size: int, top_p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flat, peaked, tied and already cut rows, beside each other."""
    logits = torch.stack([scale * randn(size) for scale in (0.1, 2.0, 8.0)] + [randn(size).round(), randn(size) * 0])
    logits[1, ::3] = -torch.inf
    logits[3, ::2] *= -1  # zeros of both signs
    found = nucleus(logits[:, None], top_p)[:, 0]
    monkeypatch.setattr(available, "wanted", False)
    expected = nucleus(logits[:, None], top_p)[:, 0]
    differing = ((found == -torch.inf) != (expected == -torch.inf)).sum(-1)
    # The exponential function is rounded differently, which a sum may or may not show: by one token, if at all.
    assert differing.tolist()[3:] == [0, 0] and int(differing.max()) <= 1
    kept = found > -torch.inf
    assert torch.equal(found[kept], logits[kept]) and bool(kept.any(-1).all())


def test_top_p_of_numbers_that_are_none_ends() -> None:
    logits = randn(2, 1, 3000)
    logits[0, 0, 5] = torch.nan
    found = nucleus(logits, 0.9)
    assert torch.equal(found[1:], nucleus(logits[1:], 0.9))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_heads_kernels_prove_themselves(dtype: torch.dtype) -> None:
    """Where this fails a head drafts without them, with a warning: slower, and nobody would look."""
    if DEVICE.type == "cpu" and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter has no products of bfloat16")
    assert triton_backend.agrees(DEVICE, dtype)


def test_top_p_proves_itself() -> None:
    assert nucleus_module._try(DEVICE)
