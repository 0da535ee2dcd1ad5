"""Keys and values of a token tree, gathered in the order they have on a path from its root, compiled by numba.

The tokens of a tree lie in a slot one behind the other, as any run writes them. A query of one of them sees keys by
the position they would have if its path were the text: so every sum has the terms of plain decoding, in its order.
"""

from __future__ import annotations

from typing import Any

from numba import carray

from outrider.kernels.numba.tiles import PANEL, compiled, pointer_to


@compiled
def gather_keys(stored: Any, keys: int, lines: int, place: int, root: int, path: Any, depth: int, to: int) -> None:
    """A block of sixteen keys from position ``place`` on, as a token at the end of ``path`` sees them.

    root: position of the tree's root; path [depth + 1]: places of the tokens on it, the root's and the token's own too.
    """
    size = stored.itemsize * lines
    found = carray(pointer_to(to), (lines, PANEL), stored.dtype)
    block = carray(pointer_to(keys + size * place), (lines, PANEL), stored.dtype)
    for j in range(lines):
        for column in range(PANEL):
            found[j, column] = block[j, column]
    for column in range(max(0, root + 1 - place), min(PANEL, root + depth + 1 - place)):
        at = path[place + column - root]
        other = carray(pointer_to(keys + size * (at // PANEL * PANEL)), (lines, PANEL), stored.dtype)
        for j in range(lines):
            found[j, column] = other[j, at % PANEL]


@compiled
def copy_values(stored: Any, values: int, padded: int, low: int, high: int, to: int) -> None:
    """Sixteen columns of the values at low..high, ``padded`` numbers apart -> lines low..high of ``to`` [.., 16]."""
    for place in range(low, high):
        line = carray(pointer_to(values + stored.itemsize * padded * place), (PANEL,), stored.dtype)
        found = carray(pointer_to(to + stored.itemsize * PANEL * place), (PANEL,), stored.dtype)
        for column in range(PANEL):
            found[column] = line[column]


@compiled
def gather_values(
    stored: Any, values: int, padded: int, start: int, low: int, high: int, root: int, path: Any, depth: int, to: int
) -> None:
    """The same for the values at low..high of a tile that begins at ``start``, as ``gather_keys`` for a path.

    ``values``: address of these columns at position 0.
    """
    apart = stored.itemsize * padded
    copy_values(stored, values + apart * start, padded, low, high, to)
    for place in range(max(low, root + 1 - start), min(high, root + depth + 1 - start)):
        line = carray(pointer_to(values + apart * path[start + place - root]), (PANEL,), stored.dtype)
        found = carray(pointer_to(to + stored.itemsize * PANEL * place), (PANEL,), stored.dtype)
        for column in range(PANEL):
            found[column] = line[column]
