"""A table of a paper with its figures beside ours, from rows of ``about``, ``theirs``, ``ours`` and ``why``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def tables(rows: Sequence[Mapping[str, Any]]) -> list[tuple[list[str], list[list[str]]]]:
    """Rows that are about the same things stand in one table, in the order of the first of them."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row["about"]), []).append(row)
    return [side_by_side(group) for group in groups.values()]


def side_by_side(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and cells: what a row is about, then each figure, theirs beside ours, and the reason of empty cells."""
    about = _keys(row["about"] for row in rows)
    known = {side: _keys(row[side] for row in rows) for side in ("theirs", "ours")}
    names = dict.fromkeys([*known["ours"], *known["theirs"]])
    columns = [(name, side) for name in names for side in ("theirs", "ours") if name in known[side]]
    reasons = any(row["why"] for row in rows)
    header = [*about, *(f"{name}, {side}" for name, side in columns), *(["why empty"] if reasons else [])]
    body = [
        [*(_cell(row["about"].get(name)) for name in about), *(_cell(row[side].get(name)) for name, side in columns),
         *([row["why"]] if reasons else [])]
        for row in rows
    ]  # fmt: skip
    return header, body


def _keys(parts: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for part in parts for key in part))


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
