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
    from outrider.kernels import head

    tensors = dict.fromkeys(("a", "b", "gain_a", "gain_b", "out"), kind)
    assert compiled(head._norms, tensors | {"eps": "fp32"}, {"SIZE": 576, "BLOCK": 1024}, 4)
    tensors = {"qkv": kind, "speed": "*fp32", "positions": "*i64", "queries": kind, "keys": kind, "values": kind}
    shape = {"T": 1, "HQ": 9, "HK": 3, "HALF": 32, "BLOCK": 32}
    assert compiled(head._turn, tensors | {"row_step": "i32"}, shape, 1)
    tensors = dict.fromkeys(("q", "k", "v", "own_k", "own_v"), kind) | {"positions": "*i64", "out": kind}
    numbers = {"scale": "fp32", "capacity": "i32", "window": "i32", "own": "i32"}
    shape = {"GROUP": 3, "HK": 3, "D": 64, "BLOCK_M": 16, "TILE": 64, "OWN": 16, "BLOCK_D": 64}
    assert compiled(head._look, tensors | numbers, shape | {"EXACT": kind == "*fp32"}, 4)


def test_top_p() -> None:
    from outrider.kernels import nucleus

    tensors = {"logits": "*fp32", "peaks": "*fp32", "totals": "*i64", "size": "i32"}
    constants = {"UNIT": nucleus.UNIT, "BLOCK": 8192}
    assert compiled(nucleus._total, tensors, constants, 8)
    tensors = {"logits": "*fp32", "peaks": "*fp32", "needs": "*i64", "out": "*fp32", "size": "i32"}
    assert compiled(nucleus._cut, tensors, constants, 32)
