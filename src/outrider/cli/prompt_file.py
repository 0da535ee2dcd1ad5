"""The lines of ``--prompts FILE``: JSON objects, or plain text with a prompt in each line."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from outrider.errors import BadOption, OutriderError, PromptError, decode_utf8, require


@dataclass(frozen=True)
class PromptLine:
    """One line of the file: what to generate from, or why that cannot be."""

    index: int  # from 0
    prompt: Any = None  # a text, token ids, or messages
    chat: bool = False  # the prompt is messages
    id: Any = None  # the caller's own name for it
    error: str | None = None


def read_lines(path: Path, system: str | None = None, chat: bool = False) -> list[PromptLine]:
    """The prompts of a file, or of standard input for '-'. A line that cannot be used says why.

    chat: prompts are asked as a user's message. system: the system message of conversations without one.
    """
    if str(path) != "-" and not path.is_file():
        raise BadOption(f"--prompts {path}: there is no such file; '-' reads standard input")
    data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    rows = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    rows = rows[:-1] if rows[-1] == b"" else rows
    first = next((row.strip() for row in rows if row.strip()), b"")
    require(first != b"", f"--prompts {path} is empty; give it a prompt in each line")
    as_json = path.suffix in (".json", ".jsonl", ".ndjson") or first.startswith(b"{")
    return [_line(index, row, as_json, system, chat) for index, row in enumerate(rows)]


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
