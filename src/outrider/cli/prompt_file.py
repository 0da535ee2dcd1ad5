"""The lines of ``--prompts FILE``: JSON objects, or plain text with a prompt in each line."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from outrider.errors import OutriderError, PromptError, decode_utf8, require

FORMATS = ("auto", "text", "jsonl")
JSONL = (".jsonl", ".ndjson", ".json")
"""Names of files of JSON lines."""


@dataclass(frozen=True)
class PromptLine:
    """One line of the file: what to generate from, or why that cannot be."""

    index: int  # from 0
    prompt: Any = None  # a text, token ids, or messages
    chat: bool = False  # the prompt is messages
    id: Any = None  # the caller's own name for it
    error: str | None = None


def read_lines(
    path: Path, system: str | None = None, chat: bool = False, prompts_format: str = "auto"
) -> list[PromptLine]:
    """The prompts of a file, or of standard input for '-'. A line that cannot be used says why.

    chat: prompts are asked as a user's message. system: the system message of conversations without one.
    prompts_format: "text", "jsonl", or "auto": see ``is_jsonl``.
    """
    rows = read_bytes(path).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    rows = rows[:-1] if rows[-1] == b"" else rows
    first = next((row.strip() for row in rows if row.strip()), b"")
    require(first != b"", f"--prompts {path} is empty; give it a prompt in each line")
    as_json = is_jsonl(path, first, prompts_format)
    return [_line(index, row, as_json, system, chat) for index, row in enumerate(rows)]


def read_bytes(path: Path) -> bytes:
    """A file, a pipe such as a shell's ``<(...)``, or standard input for '-'."""
    if str(path) == "-":
        return sys.stdin.buffer.read()
    require(path.exists(), f"--prompts {path}: there is no such file; '-' reads standard input")
    require(not path.is_dir(), f"--prompts {path}: this is a directory; name a file in it")
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


def _line(index: int, row: bytes, as_json: bool, system: str | None, chat: bool) -> PromptLine:
    name = None
    try:
        text = decode_utf8("the line", row.rstrip(b"\r"))
        require(text.strip() != "", "the line is empty; give it a prompt", PromptError)
        given = _record(text) if as_json else {"prompt": text}
        name = given.get("id")
        prompt, is_chat = _prompt(given, chat)
    except OutriderError as error:
        return PromptLine(index, id=name, error=str(error))
    if is_chat and system is not None and not _has_system(prompt):
        prompt = [{"role": "system", "content": system}, *prompt] if isinstance(prompt, list) else prompt
    return PromptLine(index, prompt, is_chat, name)


def _record(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"the line is not JSON ({error}); write one JSON object in each line") from None
    shape = 'a line is a JSON object such as {"prompt": "..."}'
    require(isinstance(given, dict), f"{shape}, got {text[:60]}", PromptError)
    return dict(given)


def _prompt(given: dict[str, Any], chat: bool) -> tuple[Any, bool]:
    """What to generate from, and whether it is a conversation. Options in a line would have no effect: refused."""
    from outrider.options import Options

    misplaced = sorted(f.name for f in fields(Options) if f.name in given)
    require(not misplaced, f"{', '.join(misplaced)}: options are given on the command line, for all lines", PromptError)
    found = [name for name in ("prompt", "messages") if name in given]
    rule = "a line needs either 'prompt' or 'messages'"
    require(len(found) == 1, f"{rule}, got {', '.join(given) or 'neither'}", PromptError)
    if found == ["prompt"] and chat and isinstance(given["prompt"], str):
        return [{"role": "user", "content": given["prompt"]}], True
    return given[found[0]], found == ["messages"]


def _has_system(messages: Any) -> bool:
    return isinstance(messages, list) and any(isinstance(m, dict) and m.get("role") == "system" for m in messages)
