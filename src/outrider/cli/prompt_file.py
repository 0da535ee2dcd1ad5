"""The lines of ``--prompts FILE``: JSON objects, or plain text with a prompt in each line."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.cluster.answers import PromptLine
from outrider.cluster.line_fields import name_of, read_fields
from outrider.errors import OutriderError, PromptError, decode_utf8, require

FORMATS = ("auto", "text", "jsonl")
JSONL = (".jsonl", ".ndjson", ".json")
"""Names of files of JSON lines."""


def read_lines(
    path: Path,
    system: str | None = None,
    chat: bool = False,
    prompts_format: str = "auto",
    target: str | None = None,
    called: str = "--prompts",
) -> list[PromptLine]:
    """The prompts of a file, or of standard input for '-'. A line that cannot be used says why.

    chat: prompts are asked as a user's message. system: the system message of conversations without one.
    prompts_format: "text", "jsonl", or "auto": see ``is_jsonl``. target: the model, which a line may name.
    called: what errors call the file.
    """
    whole = read_bytes(path, called)
    require(b"\0" not in whole, f"{called} {path} is binary (it has NUL bytes); name a file of text")
    rows = whole.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    rows = rows[:-1] if rows[-1] == b"" else rows
    first = next((row.strip() for row in rows if row.strip()), b"")
    require(first != b"", f"{called} {path} is empty; give it a prompt in each line")
    as_json = is_jsonl(path, first, prompts_format)
    return [_line(index, row, as_json, _Asked(system, chat, target)) for index, row in enumerate(rows)]


def read_bytes(path: Path, called: str = "--prompts") -> bytes:
    """A file, a pipe such as a shell's ``<(...)``, or standard input for '-'."""
    if str(path) == "-":
        return sys.stdin.buffer.read()
    require(path.exists(), f"{called} {path}: there is no such file; '-' reads standard input")
    require(not path.is_dir(), f"{called} {path}: this is a directory; name a file in it")
    return path.read_bytes()


def is_jsonl(path: Path, first: bytes, prompts_format: str) -> bool:
    """Whether prompts are JSON lines. "auto": a file's name decides, and for a pipe, which has none, the first line.

    A file of another name that begins with a JSON object may be meant either way: it is refused, not guessed.
    """
    good = prompts_format in FORMATS
    require(good, f"prompts_format must be one of {', '.join(FORMATS)}, got {prompts_format!r}")
    if prompts_format != "auto":
        return prompts_format == "jsonl"
    if str(path) == "-" or not path.is_file():
        return _is_object(first)
    named = path.suffix.lower() in JSONL
    require(
        named or not _is_object(first),
        f"--prompts {path} begins with a JSON object and is not named {', '.join(JSONL)}; pass --prompts-format jsonl "
        "to read JSON lines, or --prompts-format text",
    )
    return named


def _is_object(first: bytes) -> bool:
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


@dataclass(frozen=True)
class _Asked:
    """What the command says of every line."""

    system: str | None
    chat: bool
    target: str | None


def _line(index: int, row: bytes, as_json: bool, asked: _Asked) -> PromptLine:
    name = None
    try:
        text = decode_utf8("the line", row.rstrip(b"\r"))
        require(text.strip() != "", "the line is empty; give it a prompt", PromptError)
        given = _record(text) if as_json else {"prompt": text}
        name = name_of(given)
        found = read_fields(given, asked.target)
    except OutriderError as error:
        return PromptLine(index, id=name, error=str(error))
    prompt, chat = found.prompt, found.chat
    if asked.chat and not chat and isinstance(prompt, str):
        prompt, chat = [{"role": "user", "content": prompt}], True
    if chat and asked.system is not None and isinstance(prompt, list) and not _has_system(prompt):
        prompt = [{"role": "system", "content": asked.system}, *prompt]
    return PromptLine(index, prompt, chat, name, options=found.options)


def _record(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"the line is not JSON ({error}); write one JSON object in each line") from None
    shape = 'a line is a JSON object such as {"prompt": "..."}'
    require(isinstance(given, dict), f"{shape}, got {text[:60]}", PromptError)
    return dict(given)


def _has_system(messages: list[Any]) -> bool:
    return any(isinstance(m, dict) and m.get("role") == "system" for m in messages)
