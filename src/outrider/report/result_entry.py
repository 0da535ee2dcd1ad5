"""A value of a result file that knows where it stands, so that what is missing or wrong can be named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.errors import BadOption

REMEDY = "the file is of another version or was edited; write it again with the command that made it"


@dataclass(frozen=True)
class ResultEntry:
    """``place`` is the file and, in a file of lines, the line; ``key`` the way to the value from there."""

    value: Any
    place: str
    key: str = ""

    def fail(self, key: str, what: str) -> BadOption:
        return BadOption(f"{self.place}, key {self._path(key)}: {what}; {REMEDY}")

    def at(self, key: str) -> ResultEntry:
        """A value that must be there, perhaps null."""
        values = self.mapping()
        if key not in values:
            raise self.fail(key, "missing")
        return ResultEntry(values[key], self.place, self._path(key))

    def has(self, *keys: str) -> bool:
        """Whether these values are there and not null."""
        return isinstance(self.value, Mapping) and all(self.value.get(key) is not None for key in keys)

    def number(self, key: str) -> float:
        found = self.at(key).value
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found):
            raise self.fail(key, f"not a number but {_shown(found)}")
        return float(found)

    def known(self, key: str) -> float | None:
        """A number that may be null or missing."""
        return self.number(key) if self.has(key) else None

    def count(self, key: str) -> int:
        return int(self.number(key))

    def text(self, key: str) -> str:
        found = self.at(key).value
        if not isinstance(found, (str, int, float)):
            raise self.fail(key, f"not a text but {_shown(found)}")
        return found if isinstance(found, str) else f"{found:g}"

    def flag(self, key: str) -> bool:
        found = self.at(key).value
        if not isinstance(found, bool):
            raise self.fail(key, f"not true or false but {_shown(found)}")
        return found

    def each(self, key: str) -> list[ResultEntry]:
        """The values of a list."""
        found = self.at(key).value
        if not isinstance(found, list):
            raise self.fail(key, f"not a list but {_shown(found)}")
        return [ResultEntry(value, self.place, f"{self._path(key)}[{i}]") for i, value in enumerate(found)]

    def numbers(self, key: str) -> list[float]:
        entry = self.at(key)
        pairs = {str(i): value.value for i, value in enumerate(self.each(key))}
        return [ResultEntry(pairs, self.place, entry.key).number(name) for name in pairs]

    def items(self, key: str) -> dict[str, ResultEntry]:
        """The values of an object, by name."""
        entry = self.at(key)
        return {name: entry.at(name) for name in entry.mapping()}

    def interval(self, key: str) -> tuple[float | None, float | None]:
        """Two numbers, or two nulls where the interval is not known."""
        if not self.has(key):
            return (None, None)
        found = self.at(key).value
        if not isinstance(found, list) or len(found) != 2:
            raise self.fail(key, f"not two numbers but {_shown(found)}")
        return (None, None) if None in found else (self.numbers(key)[0], self.numbers(key)[1])

    def mapping(self) -> Mapping[str, Any]:
        if not isinstance(self.value, Mapping):
            where = f"{self.place}, key {self.key}" if self.key else self.place
            raise BadOption(f"{where}: not an object but {_shown(self.value)}; {REMEDY}")
        return self.value

    def _path(self, key: str) -> str:
        return f"{self.key}.{key}" if self.key and key else self.key or key


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{type(value).__name__} {text[:36]}..."
