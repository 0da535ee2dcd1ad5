"""What a file or a pipe of prompts is read as: by its name, by its first line, or by --prompts-format."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from command import Command
from outrider.cli.prompt_file import read_lines
from outrider.errors import BadOption

OBJECT = '{"prompt": "so"}'


def prompts(path: Path, text: str, how: str = "auto") -> list[object]:
    path.write_text(text)
    return [line.prompt for line in read_lines(path, prompts_format=how)]


def test_the_name_of_a_file_decides(tmp_path: Path) -> None:
    """One line that began with a brace made JSON of a whole file of plain text, and nothing said so."""
    assert prompts(tmp_path / "a.txt", "{braces} are text\nso\n") == ["{braces} are text", "so"]
    for name in ("a.jsonl", "a.ndjson", "a.json", "a.JSONL"):
        assert prompts(tmp_path / name, f"{OBJECT}\n") == ["so"]
    with pytest.raises(BadOption, match="a.txt begins with a JSON object .* pass --prompts-format jsonl"):
        prompts(tmp_path / "a.txt", f"{OBJECT}\n")
    assert prompts(tmp_path / "a.txt", f"{OBJECT}\n", "jsonl") == ["so"]
    assert prompts(tmp_path / "a.txt", f"{OBJECT}\n", "text") == prompts(tmp_path / "a.jsonl", f"{OBJECT}\n", "text")
    assert prompts(tmp_path / "a.jsonl", f"{OBJECT}\n", "text") == [OBJECT]
    with pytest.raises(BadOption, match="prompts_format must be one of auto, text, jsonl, got 'csv'"):
        prompts(tmp_path / "a.txt", "so\n", "csv")


def test_a_binary_file_is_one_error(tmp_path: Path) -> None:
    """Each of its lines was an answer of its own, with the advice to convert it to UTF-8."""
    (tmp_path / "a.txt").write_bytes(b"so\n\xff\0\n")
    with pytest.raises(BadOption, match=r"--prompts .*a.txt is binary \(it has NUL bytes\); name a file of text"):
        read_lines(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("text", "found"), [("the\nso\n", ["the", "so"]), (f"{OBJECT}\n", ["so"]), ("{so}\n", ["{so}"])]
)
def test_pipes(text: str, found: list[str], tmp_path: Path) -> None:
    """`--prompts <(...)` was answered by "there is no such file": a pipe is none."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(text))
    writer.start()
    assert [line.prompt for line in read_lines(tmp_path / "pipe")] == found
    writer.join()


def test_on_the_command_line(tmp_path: Path, chatty: str, outrider: Command) -> None:
    """Catches an option that is taken and has no effect, or that no text of help names."""
    (tmp_path / "a.txt").write_text(f"{OBJECT}\n")
    words = ["generate", "-t", chatty, "-n", "2", "--prompts", str(tmp_path / "a.txt")]
    assert "--prompts-format jsonl" in outrider(*words).err
    asked = [json.loads(outrider(*words, "--prompts-format", how).out)["prompt_tokens"] for how in ("text", "jsonl")]
    assert asked == [len(OBJECT), 2]
    assert "with --prompts FILE only" in outrider("generate", "the", "--prompts-format", "text").err
    assert "this is a directory" in outrider(*words[:-1], str(tmp_path)).err
    helped = " ".join(outrider("generate", "--help").out.split())
    assert ".jsonl, .ndjson or .json file has a JSON object" in helped


@pytest.mark.parametrize("command", ["generate", "chat", "demo", "verify", "measure", "distill", "bench cpu"])
def test_help_shows_whole_names_at_80_columns(command: str, outrider: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """--repetition-penalty was --repetition-pena… in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    said = outrider(*command.split(), "--help").out
    assert "…" not in said and "-h, --help" in said
