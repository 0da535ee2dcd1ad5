"""``outrider generate --prompts``: a line out for each line in, whatever is wrong with some, and nothing done twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command import Command, Said
from outrider import LLM, load

TEXTS = ["the quick", "so", "hello there the", "the fox", "a", "the quick"]


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def words(tmp_path: Path, chatty: str) -> list[str]:
    """Of a command over a file of plain prompts."""
    (tmp_path / "prompts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    return ["generate", "-t", chatty, "-n", "9", "--prompts", str(tmp_path / "prompts.txt")]


def test_a_line_for_each_line(words: list[str], chatty: str, outrider: Command) -> None:
    """A hundred lines on standard input were taken for one prompt."""
    said = outrider(*words)
    assert said.code == 0 and [r["index"] for r in records(said.out)] == list(range(len(TEXTS)))
    expected = load(chatty, slots=6).generate(TEXTS, max_new_tokens=9)
    assert [(r["text"], r["tokens"], r["finish_reason"]) for r in records(said.out)] == [
        (o.text, o.tokens, o.finish_reason) for o in expected
    ]
    assert [r["prompt_tokens"] for r in records(said.out)] == [o.prompt_tokens for o in expected]
    assert f"{len(TEXTS)} texts" in said.err and "\x1b" not in said.err, "no progress bar on a pipe"
    piped = outrider(*words[:-1], "-", stdin="".join(f"{text}\n" for text in TEXTS).encode())
    assert [r["tokens"] for r in records(piped.out)] == [o.tokens for o in expected]


BAD: list[tuple[bytes, str | None]] = [
    (b'{"id": "a", "prompt": "the"}', None),
    (b'{"id": "b", "prompt": ""}', "the prompt is empty"),
    (b"{not json}", "not JSON"),
    (b'{"id": "d", "prompt": [5, 6, 7]}', None),
    (b"", "the line is empty"),
    (b'["the"]', "a line is a JSON object"),
    (b'{"id": 7, "text": "the"}', "needs either 'prompt' or 'messages', got id, text"),
    (b'{"prompt": "the", "messages": []}', "needs either"),
    (b'{"prompt": "caf\xe9"}', "not UTF-8"),
    (b'{"prompt": "a\\ud800"}', "lone surrogate"),
    (b'{"id": "k", "prompt": "' + b"b" * 400 + b'"}', "the model's limit is 128"),
    (b'{"prompt": "the", "temperature": -1}', "temperature must be"),
    (b'{"messages": [{"role": "user", "content": "so"}], "note": "mine"}', None),
    (b'{"messages": [{"role": "usr", "content": "so"}]}', "['role'] must be one of"),
    (b'{"prompt": [5, 99999]}', "outside the vocabulary"),
    (b"[" * 9999, "not JSON"),
]


def test_bad_lines_do_not_stop_the_others(tmp_path: Path, chatty: str, outrider: Command) -> None:
    """One bad prompt of a list failed all of them."""
    (tmp_path / "mixed.jsonl").write_bytes(b"\r\n".join(row for row, _ in BAD) + b"\r\n")
    said = outrider("generate", "-t", chatty, "-n", "4", "--prompts", str(tmp_path / "mixed.jsonl"))
    found = records(said.out)
    assert said.code == 1 and [r["index"] for r in found] == list(range(len(BAD)))
    for record, (row, says) in zip(found, BAD, strict=True):
        assert (says in record["error"]) if says else (record["error"] is None and len(record["tokens"]) <= 4), row
    assert [r["id"] for r in found[:2]] == ["a", "b"] and found[6]["id"] == 7 and found[10]["id"] == "k"
    bad = [number for number, (_, says) in enumerate(BAD, 1) if says is not None]
    first = ", ".join(map(str, bad[:5]))
    where = f'(lines {first} and {len(bad) - 5} more): the key "error" there in standard output says why'
    assert f"{len(bad)} of {len(BAD)} lines failed {where}" in said.err
    model = load(chatty)
    assert found[12]["tokens"] == model.chat([{"role": "user", "content": "so"}], max_new_tokens=4).tokens


def test_chat_and_system_are_of_every_line(tmp_path: Path, chatty: str, outrider: Command) -> None:
    """Catches options of the command that lines do not get, and a system message that replaces a line's own."""
    own = [{"role": "system", "content": "mine"}, {"role": "user", "content": "so"}]
    rows = [{"prompt": "so"}, {"messages": own[1:]}, {"messages": own}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = outrider("generate", "-t", chatty, "-n", "4", "--prompts", str(tmp_path / "p.jsonl"), "--system", "be brief")
    model, system = load(chatty, slots=3), {"role": "system", "content": "be brief"}
    ids = [model.chat_prompt(m) for m in ([system, own[1]], [system, own[1]], own)]
    assert [r["tokens"] for r in records(said.out)] == [o.tokens for o in model.generate(ids, max_new_tokens=4)]


def interrupted(outrider: Command, monkeypatch: pytest.MonkeyPatch, words: list[str], after: int) -> Said:
    """The command, with Ctrl-C when so many texts have ended."""
    real = LLM.stream

    def stream(self: LLM, *given: Any, **options: Any) -> Iterator[Any]:
        ended = 0
        for chunk in real(self, *given, **options):
            yield chunk
            ended += chunk.finish_reason is not None
            if ended == after:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LLM, "stream", stream)
        return outrider(*words)


@pytest.mark.parametrize("options", [[], ["--temperature", "1", "--seed", "3"]], ids=str)
def test_an_interrupted_run_goes_on(
    options: list[str], words: list[str], tmp_path: Path, outrider: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after hours must lose nothing, and going on must give the lines of a run that was not interrupted."""
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    words = [*words, *options, "--slots", "2"]
    assert outrider(*words, "--out", str(whole)).code == 0
    said = interrupted(outrider, monkeypatch, [*words, "--out", str(parts)], after=3)
    assert said.code == 130 and "interrupted: 3 of 6 lines are written; the same command goes on" in said.err
    kept = {r["index"]: r for r in records(parts.read_text())}
    parts.write_bytes(parts.read_bytes() + b'{"index": 5, "id": nu')  # killed while writing
    said = outrider(*words, "--out", str(parts))
    assert said.code == 0 and "3 of 6 lines are in" in said.err and said.out == ""
    found = records(parts.read_text())
    assert [r["index"] for r in found] == list(range(6))
    assert all(found[index] == record for index, record in kept.items()), "not generated twice"
    assert [r["tokens"] for r in found] == [r["tokens"] for r in records(whole.read_text())]
    assert not list(tmp_path.glob("*.part"))


def test_a_run_on_standard_output_writes_what_was_finished(
    words: list[str], outrider: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches texts held back for the sake of order that Ctrl-C throws away."""
    said = interrupted(outrider, monkeypatch, words, after=4)
    assert said.code == 130 and len(records(said.out)) == 4 and "--out FILE" in said.err


def test_the_summary_says_where_the_error_stands(tmp_path: Path, chatty: str, outrider: Command) -> None:
    """It said "1 texts", and of an error neither the line nor the file."""
    (tmp_path / "in.jsonl").write_text('{"prompt": "so"}\n{"prompt": ""}\n')
    said = outrider("batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), chatty, "-n", "1")
    assert said.code == 1 and "\n1 text, 1 token, " in f"\n{said.err}"
    assert f'1 of 2 lines failed (line 2): the key "error" there in {tmp_path / "out.jsonl"} says why' in said.err
    assert records((tmp_path / "out.jsonl").read_text())[1]["error"] is not None


def test_failed_lines_are_tried_again(tmp_path: Path, chatty: str, outrider: Command) -> None:
    """Catches an error that is kept for ever after the line was mended."""
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    words = ["generate", "-t", chatty, "-n", "3", "--prompts", str(prompts), "--out", str(out)]
    prompts.write_text('{"prompt": "the"}\n{"prompt": ""}\n')
    assert outrider(*words).code == 1
    prompts.write_text('{"prompt": "the"}\n{"prompt": "so"}\n')
    assert outrider(*words).code == 0
    assert [(r["index"], r["error"]) for r in records(out.read_text())] == [(0, None), (1, None)]
    done = outrider(*words)
    assert done.code == 0 and "2 of 2 lines are in" in done.err and "0 texts" in done.err


def test_a_file_of_something_else_is_left_alone(words: list[str], tmp_path: Path, outrider: Command) -> None:
    """Catches a file that is overwritten, and texts of other prompts or options taken for these."""
    out = tmp_path / "out"
    for mine in ("my notes", "my notes\n", '{"a": 1}\n'):
        out.write_text(mine)
        said = outrider(*words, "--out", str(out))
        assert said.code == 2 and "not written by" in said.err and out.read_text() == mine
    out.unlink()
    assert outrider(*words, "--out", str(out)).code == 0
    before = out.read_text()
    said = outrider(*words, "--out", str(out), "--temperature", "1")
    assert said.code == 2 and "another prompt, target or option" in said.err and out.read_text() == before


REFUSED = {
    "two prompts": (["a prompt"], "give one of the two"),
    "a trace": (["--trace", "t.jsonl"], "--trace is of a single text"),
    "no directory": (["--out", "/nowhere/out.jsonl"], "make it first"),
    "no slots": (["--slots", "0"], "--slots"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, words: list[str], outrider: Command) -> None:
    """Catches options that are taken and have no effect."""
    more, says = REFUSED[name]
    said = outrider(*words, *more)
    assert said.code == 2 and says in said.err and said.out == ""


def test_out_without_prompts_and_prompts_without_a_file(tmp_path: Path, chatty: str, outrider: Command) -> None:
    assert "with --prompts FILE only" in outrider("generate", "the", "--out", "x").err
    assert "there is no such file" in outrider("generate", "--prompts", str(tmp_path / "none")).err
    (tmp_path / "empty").write_text("\n\n")
    assert "is empty" in outrider("generate", "--prompts", str(tmp_path / "empty")).err


def test_beams(words: list[str], chatty: str, outrider: Command) -> None:
    """Catches --beams without effect on a file of prompts."""
    found = records(outrider(*words, "--beams", "2").out)
    expected = load(chatty, slots=6).generate(TEXTS, max_new_tokens=9, beams=2)
    assert [r["tokens"] for r in found] == [o.tokens for o in expected]
