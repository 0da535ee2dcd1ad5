"""Products with weights of four to eight bits: the file's values, exact sums, and bits that depend on a row alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from outrider.kernels.numba import packed_inputs, packed_products
from outrider.kernels.numba.packed_dots import dot_instructions
from outrider.kernels.numba.packed_formats import BFLOAT16, CODES, FORMATS, UNIT, panels
from outrider.kernels.numba.packed_rows import unpack_rows
from outrider.models.engine.gguf_rows import rows_of
from outrider.runtime import cpu
from tiny_gguf import raw_rows

pytestmark = [
    pytest.mark.cpu_paths,
    pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication"),
]
Array = np.ndarray[Any, Any]
OUTPUTS, INPUTS = 48, 768
NAMES = list(CODES)


def matrix(*parts: tuple[int, Array]) -> Array:
    """Panels of several formats as one matrix: its table, then all panels."""
    codes = np.concatenate([[code] * len(found) for code, found in parts])
    sizes = np.concatenate([[found.shape[1]] * len(found) for _, found in parts])
    starts = 16 * len(codes) + np.concatenate([[0], np.cumsum(sizes)[:-1]])
    table = np.ascontiguousarray(np.stack([starts, codes], 1).astype(np.int64))
    return np.concatenate([table.view(np.uint8).ravel(), *(found.ravel() for _, found in parts)])


def packed(name: str) -> tuple[Array, Array]:
    """A matrix in a format, and its weights as the ``gguf`` package unpacks them."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    raw = raw_rows(name, OUTPUTS, INPUTS)
    return matrix((CODES[name], panels(rows_of(name, raw)))), dequantize(raw, GGMLQuantizationType[name])


def rounded(x: Array, span: int) -> tuple[Array, Array]:
    """Inputs in eight bits as products read them, and the numbers that these stand for."""
    units = -(-x.shape[1] // UNIT)
    given = np.full((len(x), packed_inputs.given_size(x.shape[1])), 77, np.uint8)
    packed_inputs.shorten(x, span, given)
    scales = given[:, (UNIT + 8) * units : packed_inputs.GIVEN * units].copy().view(np.float32).astype(np.float64)
    return given, given[:, : UNIT * units].view(np.int8) * np.repeat(scales, UNIT, 1)


def product(weights: Array, x: Array, given: Array, outputs: int = OUTPUTS) -> Array:
    out = np.full((len(x), outputs), np.nan, np.float32)
    where = [array.ctypes.data for array in (x, given, out)]
    registers = np.zeros(1, np.int64)
    packed_products.packed_product(
        weights.ctypes.data, 0, outputs // 16, *x.shape, *where, outputs, registers.ctypes.data
    )
    return out


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_of_the_file(name: str) -> None:
    """Catches bits of another plane, a scale of the neighbour, a minimum with the wrong sign: to the last bit."""
    weights, full = packed(name)
    found = np.full((OUTPUTS, INPUTS), np.nan, np.float32)
    unpack_rows(weights.ctypes.data, np.arange(OUTPUTS), found)
    np.testing.assert_array_equal(found, full)


@pytest.mark.parametrize("name", NAMES)
def test_products(name: str) -> None:
    """Nothing is lost but what rounding inputs to eight bits loses, and no row's bits depend on how many there are."""
    weights, full = packed(name)
    x = np.random.default_rng(1).normal(size=(9, INPUTS)).astype(np.float32)
    given, seen = rounded(x, FORMATS[CODES[name]].inputs)
    assert np.abs(seen - x).max() < np.abs(x).max() / 250
    found = product(weights, x, given)
    expected = seen @ full.astype(np.float64).T
    assert np.abs(found - expected).max() < 1e-6 * np.abs(expected).max()
    for rows in range(1, 9):
        np.testing.assert_array_equal(product(weights, x[:rows], given[:rows]), found[:rows])
        np.testing.assert_array_equal(product(weights, x[-rows:], given[-rows:]), found[-rows:])


def test_panels_of_several_formats() -> None:
    """Queries in four bits and values in six are one matrix: each panel says what it is, bfloat16 included."""
    import torch

    from outrider.models.engine.packed_weights import bfloat16_panels

    parts = [(CODES[name], panels(rows_of(name, raw_rows(name, 16, INPUTS)))) for name in ("Q4_K", "Q6_K", "Q8_0")]
    last = torch.randn(16, INPUTS, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    weights = matrix(*parts, (BFLOAT16, bfloat16_panels(last.float())))
    x = np.random.default_rng(1).normal(size=(3, INPUTS)).astype(np.float32)
    given, _ = rounded(x, 256)
    found = product(weights, x, given, 64)
    for place, part in enumerate(parts):
        np.testing.assert_array_equal(found[:, 16 * place : 16 * (place + 1)], product(matrix(part), x, given, 16))
    expected = x.astype(np.float64) @ last.double().numpy().T
    assert np.abs(found[:, 48:] - expected).max() < 1e-5 * np.abs(expected).max()
    rows = np.full((1, INPUTS), np.nan, np.float32)
    unpack_rows(weights.ctypes.data, np.array([50]), rows)
    np.testing.assert_array_equal(rows[0], last[2].float().numpy())


def test_inputs_that_fill_no_unit() -> None:
    """What lies beyond the last input is zero, whatever the buffer held before."""
    x = np.random.default_rng(1).normal(size=(2, 40)).astype(np.float32)
    given, seen = rounded(x, 32)
    assert (seen[:, 40:] == 0).all() and np.abs(seen[:, :40] - x).max() < 0.02


def test_what_is_no_number_stays_none() -> None:
    """A maximum that passes over NaN gave finite products of an input that is none."""
    weights, _ = packed("Q8_0")
    x = np.ones((2, INPUTS), np.float32)
    x[0, 5], x[1, 700] = np.nan, np.inf
    assert not np.isfinite(product(weights, x, rounded(x, 32)[0])).any()


def _others() -> list[cpu.CpuFacts]:
    """CPUs with fewer instructions than this one, whose code runs here as well."""
    here = cpu.facts()
    plain = replace(here, machine="x86_64", compiler=frozenset())
    return [plain] if here.arm else [plain, replace(here, compiler=here.compiler - {"avx512_vnni"})]


@pytest.mark.parametrize("facts", _others(), ids=dot_instructions)
def test_other_instructions_give_the_same_bits(facts: cpu.CpuFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without dot products of bytes computes the same numbers, only later."""
    x = np.random.default_rng(1).normal(size=(2, INPUTS)).astype(np.float32)
    multiply = packed_products.tiles(facts, 2)
    for name in NAMES:
        form = FORMATS[CODES[name]]
        given, _ = rounded(x, form.inputs)
        found = panels(rows_of(name, raw_rows(name, 16, INPUTS)))
        out = np.full((2, 16), np.nan, np.float32)
        multiply(
            CODES[name], 2, found.ctypes.data, given.ctypes.data, given.shape[1], out.ctypes.data, 16, INPUTS // UNIT
        )
        np.testing.assert_array_equal(out, product(matrix((CODES[name], found)), x, given, 16))


@pytest.mark.parametrize(
    ("features", "arm", "expected"),
    [("asimddp", True, "sdot"), ("", True, "plain"), ("avx2 avx512_vnni", False, "vnni"), ("avx2", False, "avx2")],
)
def test_which_instructions(features: str, arm: bool, expected: str) -> None:
    facts = cpu.CpuFacts("arm64" if arm else "x86_64", compiler=frozenset(features.split()))
    assert dot_instructions(facts) == expected
