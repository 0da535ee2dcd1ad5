"""What an operator decides about a server, beside what the engine is given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import BadOption, require

KEY_VARIABLE = "OUTRIDER_API_KEY"
"""Environment variable with an API key."""


@dataclass(frozen=True)
class ServerSettings:
    """Limits and permissions of the HTTP side."""

    model: str  # the name that requests give
    keys: tuple[str, ...] = ()  # none: everybody who reaches the port may use it
    most_bytes: int = 4 << 20  # of a body
    most_tokens: int = 4096  # of an answer
    seconds: float = 600.0  # for a whole answer
    patience: float = 60.0  # for a client that does not read
    origins: tuple[str, ...] = ()  # web pages of other origins that may use the API
    hosts: tuple[str, ...] = ()  # names the server may be addressed by; none: any
    gamma: int | None = None  # guesses of requests that do not say how many; None: adapted while they run


def read_keys(file: Path | None) -> tuple[str, ...]:
    """API keys: one per line of a file, '#' begins a comment, and the one in the environment."""
    lines = [] if file is None else file.read_text(encoding="utf-8").splitlines()
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if file is not None and not keys:
        raise BadOption(f"api_key_file {file} has no key in it; put one on a line")
    if own := os.environ.get(KEY_VARIABLE, "").strip():
        keys.append(own)
    require(all(len(key) >= 8 for key in keys), "an API key must have at least 8 characters; use a longer one")
    require(all(key.isascii() and " " not in key for key in keys), "an API key must be ASCII without spaces")
    return tuple(keys)


def public_name(name: str) -> str:
    """The name of a model or draft as clients may see it: of a path its last part only."""
    return Path(name).name if Path(name).exists() or name.startswith(("/", "~", ".")) else name


LOOPBACK = ("127.0.0.1", "localhost", "::1")


def served_names(host: str, more: Sequence[str]) -> tuple[str, ...]:
    """Names a server on loopback answers to; elsewhere any, unless some are given."""
    return (*LOOPBACK, *more) if host in LOOPBACK else tuple(more)
