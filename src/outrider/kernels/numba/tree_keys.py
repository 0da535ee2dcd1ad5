"""Keys and values of a token tree, gathered in the order they have on a path from its root, compiled by numba.

The tokens of a tree lie in a slot one behind the other, as any run writes them. A query of one of them sees keys by
the position they would have if its path were the text: so every sum has the terms of plain decoding, in its order.
"""

from __future__ import annotations

from typing import Any

from numba import carray

from outrider.kernels.numba.kv_writes import key_place, value_place
from outrider.kernels.numba.tiles import PANEL, compiled, pointer_to


@compiled
def gather_keys(stored: Any, keys: int, lines: int, place: int, root: int, path: Any, depth: int, to: int) -> None:
    """A block of sixteen keys from position ``place`` on, as a token at the end of ``path`` sees them.

    root: position of the tree's root; path [depth + 1]: places of the tokens on it, the root's and the token's own too.
    """
    block = carray(pointer_to(keys + stored.itemsize * lines * place), (lines * PANEL,), stored.dtype)
    found = carray(pointer_to(to), (lines * PANEL,), stored.dtype)
    for j in range(lines * PANEL):
        found[j] = block[j]
    for column in range(max(0, root + 1 - place), min(PANEL, root + depth + 1 - place)):
        at = path[place + column - root]
        other = carray(pointer_to(keys), ((at // PANEL + 1) * PANEL * lines,), stored.dtype)
        for j in range(lines):
            found[key_place(stored, lines, column, j)] = other[key_place(stored, lines, at, j)]


@compiled
def _copy_value(stored: Any, values: int, padded: int, column: int, at: int, place: int, to: int) -> None:
    """Sixteen columns, the first of them ``column``, of the value at a position -> a place of ``to`` [.., 16]."""
    size = stored.itemsize
    for j in range(PANEL):
        source = pointer_to(values + size * value_place(stored, padded, at, column + j))
        target = pointer_to(to + size * value_place(stored, PANEL, place, j))
        carray(target, (1,), stored.dtype)[0] = carray(source, (1,), stored.dtype)[0]


@compiled
def copy_values(stored: Any, values: int, padded: int, column: int, start: int, low: int, high: int, to: int) -> None:
    """Sixteen columns, as ``_copy_value``, of the values at low..high of a tile that begins at ``start`` -> ``to``.

    ``values``: address of the values of a head.
    """
    for place in range(low, high):
        _copy_value(stored, values, padded, column, start + place, place, to)


@compiled
def gather_values(
    stored: Any, values: int, padded: int, column: int, start: int, low: int, high: int, root: int, path: Any,
    depth: int, to: int,
) -> None:  # fmt: skip
    """The same as a token at the end of ``path`` sees them, as ``gather_keys``."""
    copy_values(stored, values, padded, column, start, low, high, to)
    for place in range(max(low, root + 1 - start), min(high, root + depth + 1 - start)):
        _copy_value(stored, values, padded, column, path[start + place - root], place, to)
