"""Where Triton is installed and no GPU is: the kernels at least compile for one (compute capability 9.0)."""

from __future__ import annotations

import os
from typing import Any

import pytest

triton = pytest.importorskip("triton")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted, not compiled"),
]


def compiled(kernel: Any, values: dict[str, str], constants: dict[str, Any], warps: int) -> bytes:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = values | dict.fromkeys(constants, "constexpr")
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=places)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    return bytes(made.asm["cubin"])


@pytest.mark.parametrize("kind", ["*bf16", "*fp16", "*fp32"])
def test_a_heads_kernels(kind: str) -> None:
    from outrider.kernels.triton import head

    tensors = dict.fromkeys(("qkv", "queries", "keys", "values"), kind) | {"speed": "*fp32", "positions": "*i64"}
    shape = {"T": 1, "HQ": 9, "HK": 3, "HALF": 32, "BLOCK": 32, "CHOSEN": True}
    assert compiled(head._turn, tensors | {"rows": "*i64", "row_step": "i32", "capacity": "i32"}, shape, 1)
    tensors = dict.fromkeys(("q", "k", "v", "out"), kind) | {"positions": "*i64"}
    numbers = {"scale": "fp32", "capacity": "i32", "window": "i32", "own": "i32"}
    shape = {"GROUP": 3, "HK": 3, "D": 64, "BLOCK_M": 16, "TILE": 64, "BLOCK_D": 64, "EXACT": kind == "*fp32"}
    assert compiled(head._look, tensors | numbers, shape, 4)
    tensors = {"logits": kind, "tokens": "*i64", "out": "*i64", "count": "i32"}
    assert compiled(head._likeliest, tensors, {"BLOCK": 16384}, 32)


@pytest.mark.parametrize("kind", ["*bf16", "*fp16", "*fp32"])
def test_products_of_a_few_rows(kind: str) -> None:
    from outrider.kernels.triton import product

    shape = {"SIZE": 576, "N": 8, "COLUMNS": 256}
    tensors = dict.fromkeys(("x", "weight", "gain", "plus", "out"), kind) | {"eps": "fp32", "outputs": "i32"}
    flags = {"NORM": True, "GATE": True, "PLUS": True}
    assert compiled(product.product_kernel, tensors, shape | flags, 4)
    tensors = dict.fromkeys(("a", "b", "gain_a", "gain_b", "weight", "plus", "out"), kind)
    tensors |= {"chosen": "*i64", "eps": "fp32"}
    shape["CHOSEN"] = True
    assert compiled(
        product.join_kernel, tensors | dict.fromkeys(("step_a", "step_b", "step_plus", "outputs"), "i32"), shape, 4
    )


def test_noise() -> None:
    from outrider.kernels.triton import race

    tensors = {"seeds": "*i64", "at": "*i64", "out": "*i64", "name": "i64"}
    assert compiled(race.keys_kernel, tensors, {"K": 3}, 1)
    tensors = {"keys": "*i64", "counter": "*i32", "weights": "*fp32", "out": "*fp32"}
    assert compiled(race.race_kernel, tensors, {"SIZE": 16384, "BLOCK": 1024, "LN2": 0.69, "WEIGHED": True}, 4)


def test_top_p() -> None:
    from outrider.core.top_p import UNIT
    from outrider.kernels.triton import top_p

    lines = {"logits": "*fp32", "peaks": "*fp32", "found": "*i64", "size": "i32"}
    block = {"BLOCK": 2048}
    assert compiled(top_p.sums_kernel, lines | {"sums": "*i64"}, block | {"BIT": 22, "UNIT": UNIT}, 4)
    assert compiled(top_p.pick_kernel, {"sums": "*i64", "found": "*i64", "needs": "*i64"}, {}, 8)
    assert compiled(top_p.ties_kernel, lines | {"ties": "*i32"}, block, 4)
    tensors = lines | {"needs": "*i64", "ties": "*i32", "out": "*fp32"}
    assert compiled(top_p.cut_kernel, tensors, block | {"UNIT": UNIT, "BLOCKS": 64}, 4)
