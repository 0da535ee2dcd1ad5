"""``outrider batch``: options of lines, OpenAI's batch files, and one line out for each line in after any kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command import Command
from outrider import LLM, load
from outrider.cli.results import File

LINES: list[dict[str, Any]] = [
    {"prompt": "the quick", "max_new_tokens": 4},
    {"id": "own seed", "prompt": "so", "temperature": 1.0, "seed": 7},
    {"prompt": "the quick"},
    {"messages": [{"role": "user", "content": "so"}], "max_tokens": 3},
    {"prompt": "hello", "temperature": 1.5, "top_k": 5, "seed": 7, "coupling": "gumbel"},
    {"prompt": "hello", "temperature": 1.5, "top_k": 5, "seed": 8, "coupling": "gumbel"},
    {"prompt": "a", "beams": 2},
    {"custom_id": "openai", "method": "POST", "url": "/v1/completions", "body": {"prompt": "so", "max_tokens": 2,
     "n": 1, "stream": False, "stop": None, "user": "me"}},
]  # fmt: skip


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def batch(tmp_path: Path, chatty: str, lines: list[dict[str, Any]]) -> list[str]:
    """The words of a command over these lines."""
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ["batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), chatty, "-n", "9"]


def test_every_line_has_its_own_options(tmp_path: Path, chatty: str, outrider: Command) -> None:
    """A file could not say what each prompt is to be generated with: options in a line were refused."""
    said = outrider(*batch(tmp_path, chatty, LINES))
    assert said.code == 0 and said.out == "" and f"{len(LINES)} texts" in said.err
    model = load(chatty, slots=8)
    chat = model.chat_prompt(LINES[3]["messages"])
    alone: list[tuple[Any, dict[str, Any]]] = [
        ("the quick", {"max_new_tokens": 4}),
        ("so", {"temperature": 1.0, "seed": [7]}),
        ("the quick", {}),
        (chat, {"max_new_tokens": 3}),
        ("hello", {"temperature": 1.5, "top_k": 5, "seed": [7], "coupling": "gumbel"}),
        ("hello", {"temperature": 1.5, "top_k": 5, "seed": [8], "coupling": "gumbel"}),
        ("a", {"beams": 2}),
        ("so", {"max_new_tokens": 2}),
    ]
    expected = [model.generate([prompt], **{"max_new_tokens": 9, **options})[0] for prompt, options in alone]
    found = written(tmp_path / "out.jsonl")
    assert [(r["index"], r["tokens"], r["text"]) for r in found] == [
        (index, one.tokens, one.text) for index, one in enumerate(expected)
    ]
    assert found[4]["tokens"] != found[5]["tokens"], "two seeds"
    assert [r["id"] for r in found] == [None, "own seed", None, None, None, None, None, "openai"]
    assert not [path for path in tmp_path.iterdir() if path.name not in ("in.jsonl", "out.jsonl")]


REFUSED = {
    "a value": ({"temperature": "hot"}, "temperature"),
    "a name that is nearly an option": ({"max_new_token": 3}, "did you mean 'max_new_tokens'?"),
    "more than the command's width": ({"gamma": 30}, "gamma 30 needs a width of 31"),
    "a token outside": ({"logit_bias": {"99999": 1}}, "99999"),
    "two together": ({"beams": 2, "temperature": 1.0}, "beam search"),
    "one option twice": ({"max_tokens": 3, "max_new_tokens": 3}, "one option"),
    "several seeds": ({"seed": [1, 2]}, "seed must be"),
    "several texts": ({"n": 3}, "n=3 cannot be honoured"),
    "an option of the run": ({"draft": "none"}, "draft is an option of the whole batch"),
    "another model": ({"model": "gpt-5"}, "model must be the one that runs the batch"),
    "nothing to run beside it": ({"prompt": "", "top_k": 3}, "the prompt is empty"),
    "python": ({"logits_processor": []}, "Python objects"),
}


def test_options_that_cannot_be_honoured_are_errors_of_their_line(
    tmp_path: Path, chatty: str, outrider: Command
) -> None:
    """Catches an option of a line that is dropped silently, and one that ends the whole batch."""
    bad = [{"id": name, "prompt": "so", **fields} for name, (fields, _) in REFUSED.items()]
    strict = {"id": "strict", "body": {"prompt": "so", "colour": "red"}}
    said = outrider(*batch(tmp_path, chatty, [{"prompt": "so"}, *bad, strict, {"prompt": "a", "colour": "red"}]))
    found = {r["id"]: r for r in written(tmp_path / "out.jsonl") if r["id"] is not None}
    assert said.code == 1 and f"{len(REFUSED) + 1} of {len(REFUSED) + 3} lines failed" in said.err
    for name, (_, says) in REFUSED.items():
        assert says in (found[name]["error"] or "no error"), name
    assert "unknown option 'colour'" in found["strict"]["error"], "a request is no place for one's own data"
    assert sum(r["error"] is None for r in written(tmp_path / "out.jsonl")) == 2


def test_a_file_cut_at_any_byte_is_resumed(tmp_path: Path) -> None:
    """A kill may come between any two bytes: of what is left, whole lines are kept, and no line comes twice."""
    keys = {index: f"key{index}" for index in range(3)}
    records = {index: {"index": index, "key": keys[index], "error": None, "text": "né"} for index in keys}
    whole = "".join(json.dumps(records[index], ensure_ascii=False) + "\n" for index in (1, 0, 2)).encode()
    out = tmp_path / "out.jsonl"
    for cut in range(len(whole) + 1):
        out.write_bytes(whole[:cut])
        sink = File(out, keys)
        assert len(sink.done) == whole[:cut].count(b"\n")
        for index in keys.keys() - sink.done:
            sink.write(index, records[index])
        sink.close(complete=True)
        assert written(out) == list(records.values()), cut


def test_two_processes_do_not_write_one_file(tmp_path: Path, chatty: str, outrider: Command) -> None:
    """Two runs of one command appended each line twice."""
    words = batch(tmp_path, chatty, LINES[:2])
    first = File(tmp_path / "out.jsonl", {})
    said = outrider(*words)
    assert said.code == 2 and "another process is writing to" in said.err
    first.close()
    assert outrider(*words).code == 0


def test_a_place_without_files_is_named(tmp_path: Path, chatty: str, outrider: Command) -> None:
    """In /proc no file can be made, so its lock could not be had: "another process is writing to" it."""
    words = batch(tmp_path, chatty, LINES[:2])
    said = outrider(*("/proc/out.jsonl" if word == str(tmp_path / "out.jsonl") else word for word in words))
    assert said.code == 2 and "no file can be written in /proc" in said.err and "another process" not in said.err


def test_after_kill_9_the_same_command_goes_on(tmp_path: Path, chatty: str, outrider: Command) -> None:
    """A process that is killed, not interrupted: nothing is written twice, nothing is missing."""
    words = [*batch(tmp_path, chatty, [{"prompt": f"{i} the"} for i in range(12)]), "--slots", "1", "--engine", "torch"]
    out = tmp_path / "out.jsonl"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen([sys.executable, "-m", "outrider", *words], env=environment, stderr=subprocess.DEVNULL)
    while process.poll() is None and (not out.exists() or out.read_bytes().count(b"\n") < 2):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = [json.loads(line) for line in out.read_bytes().split(b"\n")[:-1]]
    assert kept, "it wrote lines before it was killed"
    said = outrider(*words)
    found = written(out)
    assert said.code == 0 and f"{len(kept)} of 12 lines are in" in said.err
    assert [r["index"] for r in found] == list(range(12))
    assert all(found[r["index"]] == r for r in kept), "not generated twice"
    model = load(chatty, slots=1, engine="torch")
    assert [r["tokens"] for r in found] == [model.generate(f"{i} the", max_new_tokens=9).tokens for i in range(12)]


def test_ctrl_c_loses_nothing(tmp_path: Path, chatty: str, outrider: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches finished texts that are thrown away with the batch they ran in."""
    real = LLM.stream

    def stream(self: LLM, *given: Any, **options: Any) -> Iterator[Any]:
        for chunk in real(self, *given, **options):
            yield chunk
            if chunk.finish_reason is not None:
                raise KeyboardInterrupt

    words = batch(tmp_path, chatty, [{"prompt": "so"}, {"prompt": "the"}])
    with monkeypatch.context() as patch:
        patch.setattr(LLM, "stream", stream)
        said = outrider(*words)
    assert said.code == 130 and "interrupted: 1 of 2 lines are written; the same command goes on" in said.err
    assert len(written(tmp_path / "out.jsonl")) == 1
    assert outrider(*words).code == 0 and len(written(tmp_path / "out.jsonl")) == 2


def test_generate_and_batch_continue_each_other(tmp_path: Path, chatty: str, outrider: Command) -> None:
    """The two commands are one: what one has written the other keeps."""
    words = batch(tmp_path, chatty, [{"prompt": "so"}, {"prompt": "the", "temperature": 1.0, "seed": 3}])
    assert outrider(*words).code == 0
    again = outrider("generate", "-t", chatty, "-n", "9", "--prompts", words[1], "--out", words[2])
    assert again.code == 0 and "2 of 2 lines are in" in again.err


def test_what_is_refused_before_a_model_is_loaded(tmp_path: Path, chatty: str, outrider: Command) -> None:
    """Catches errors that name options the command does not have."""
    words = batch(tmp_path, chatty, LINES)
    assert "IN nowhere.jsonl: there is no such file" in outrider("batch", "nowhere.jsonl", words[2], chatty).err
    assert "OUT" in outrider("batch", words[1], "/nowhere/out.jsonl", chatty).err
    assert "temperature" in outrider(*words, "--temperature", "-1").err
