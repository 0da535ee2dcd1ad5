"""Products of packed weights by AMX: the bits that vectors give, for any rows, whatever the registers were set to."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from outrider.kernels.numba import amx_products, packed_amx, packed_inputs, packed_products
from outrider.kernels.numba.packed_formats import CODES, FORMATS, UNIT, panels
from outrider.kernels.numba.tiles import PANEL, compiled
from outrider.models.engine.gguf_rows import rows_of
from outrider.runtime import cpu
from tiny_gguf import raw_rows

pytestmark = pytest.mark.skipif(not cpu.facts().multiplies_bytes_by_amx, reason="this CPU has no AMX")
Array = np.ndarray[Any, Any]
OUTPUTS = 3 * PANEL
NAMES = list(CODES)


@compiled
def _set_for_others() -> None:
    """As products of bfloat16 and attention do."""
    amx_products.configure(amx_products.SHAPES[3].ctypes.data)


@compiled
def _release() -> None:
    amx_products.release()


def rows(count: int, inputs: int) -> Array:
    """Random ones; one row with the largest sums that there are, and one of zeros."""
    x = np.random.default_rng(1).normal(size=(count, inputs)).astype(np.float32)
    x[2 % count], x[3 % count] = 1, 0
    return x


def given_of(x: Array, name: str) -> Array:
    given = np.full((len(x), packed_inputs.given_size(x.shape[1])), 77, np.uint8)
    packed_inputs.shorten(x, FORMATS[CODES[name]].inputs, given)
    return given


def by_amx(name: str, weights: Array, given: Array, inputs: int) -> Array:
    """With room behind each row and after the last, which stays as it was."""
    out = np.full((len(given) + 1, OUTPUTS + PANEL), np.nan, np.float32)
    registers, size = np.zeros(1, np.int64), given.shape[1]
    packed_amx.amx_panels(
        CODES[name], weights.ctypes.data, len(weights), len(given), given.ctypes.data, size, -(-inputs // UNIT),
        out.ctypes.data, 4 * out.shape[1], registers.ctypes.data,
    )  # fmt: skip
    _release()
    assert np.isnan(out[-1]).all() and np.isnan(out[:, OUTPUTS:]).all()
    return out[:-1, :OUTPUTS]


@cache
def _vectors() -> Any:
    return packed_products.tiles(cpu.facts(), 1)


def by_vectors(name: str, weights: Array, given: Array, inputs: int) -> Array:
    """Row by row."""
    out = np.full((len(given), OUTPUTS), np.nan, np.float32)
    multiply, units, size = _vectors(), -(-inputs // UNIT), given.shape[1]
    for row in range(len(given)):
        for panel in range(len(weights)):
            at, x, to = weights[panel].ctypes.data, given[row].ctypes.data, out[row, PANEL * panel :].ctypes.data
            multiply(CODES[name], 1, at, x, size, to, OUTPUTS, units)
    return out


def same(found: Array, expected: Array) -> None:
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))


def extreme(name: str, byte: int, inputs: int) -> Array:
    """Panels whose whole numbers are all ones, or all scales of Q6_K as low as can be."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    raw = raw_rows(name, OUTPUTS, inputs)
    blocks = raw.reshape(OUTPUTS, -1, GGML_QUANT_SIZES[GGMLQuantizationType[name]][1])
    if name == "Q6_K":
        blocks[..., :208] = byte
    else:
        blocks[..., 4 if FORMATS[CODES[name]].minimum else 2 :] = byte
    return panels(rows_of(name, raw))


@pytest.mark.parametrize("name", NAMES)
def test_bits_are_those_of_vectors(name: str) -> None:
    """Catches a row left out or added twice where rows do not fill registers, and a sum in another order."""
    inputs = 768
    weights, given = panels(rows_of(name, raw_rows(name, OUTPUTS, inputs))), given_of(rows(100, inputs), name)
    expected = by_vectors(name, weights, given, inputs)
    for count in (*range(1, 41), 100):
        same(by_amx(name, weights, given[:count], inputs), expected[:count])
        same(by_amx(name, weights, given[100 - count :], inputs), expected[100 - count :])


@pytest.mark.parametrize("name", [name for name in NAMES if not FORMATS[CODES[name]].blocks])
@pytest.mark.parametrize("inputs", [32, 96, 576, 1056])
def test_units_that_fill_no_stretch(name: str, inputs: int) -> None:
    weights, given = panels(rows_of(name, raw_rows(name, OUTPUTS, inputs))), given_of(rows(20, inputs), name)
    same(by_amx(name, weights, given, inputs), by_vectors(name, weights, given, inputs))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
def test_the_largest_and_smallest_weights(name: str, byte: int) -> None:
    """Parts of a weight times its scale fit into their bytes."""
    weights, given = extreme(name, byte, 512), given_of(rows(17, 512), name)
    same(by_amx(name, weights, given, 512), by_vectors(name, weights, given, 512))


def test_inputs_that_are_no_numbers_stay_in_their_row() -> None:
    weights, x = panels(rows_of("Q4_1", raw_rows("Q4_1", OUTPUTS, 256))), rows(20, 256)
    clean = by_amx("Q4_1", weights, given_of(x, "Q4_1"), 256)
    x[3, 5], x[18, 0] = np.nan, np.inf
    found = by_amx("Q4_1", weights, given_of(x, "Q4_1"), 256)
    assert not np.isfinite(found[[3, 18]]).any()
    others = [row for row in range(20) if row not in (3, 18)]
    same(found[others], clean[others])


def test_a_matrix_of_several_formats_after_others_have_set_the_registers() -> None:
    """Every change of format sets the registers anew; what attention had set them to is not used."""
    inputs, names = 768, ("Q4_K", "Q8_0", "Q4_1", "Q6_K", "Q6_K", "Q4_0")
    parts = [panels(rows_of(name, raw_rows(name, PANEL, inputs, seed))) for seed, name in enumerate(names)]
    starts = 16 * len(parts) + np.concatenate([[0], np.cumsum([part.size for part in parts])[:-1]])
    table = np.ascontiguousarray(np.stack([starts, [CODES[name] for name in names]], 1).astype(np.int64))
    matrix = np.concatenate([table.view(np.uint8).ravel(), *(part.ravel() for part in parts)])
    x = rows(40, inputs)
    given = given_of(x, "Q4_K")

    def product(first: int, end: int, registers: Array) -> Array:
        out = np.full((end - first, PANEL * len(parts)), np.nan, np.float32)
        where = [array.ctypes.data for array in (x[first:end], given[first:end], out)]
        at = matrix.ctypes.data, 0, len(parts), end - first, inputs, *where, out.shape[1], registers.ctypes.data
        packed_products.packed_product(*at)
        return out

    alone = np.concatenate([product(row, row + 1, np.zeros(1, np.int64)) for row in range(40)])
    registers = np.zeros(1, np.int64)
    for end in (40, 33, 40):
        same(product(0, end, registers), alone[:end])  # a thread keeps its registers from product to product
    _set_for_others()
    registers[0] = 0
    same(product(0, 40, registers), alone)
    _release()
