"""How calls of ``LLM`` end: what outputs say of it, prompts that are refused, streams that are interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider.decoding.safe_drafter import SafeDrafter
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.stopping import Row
from outrider.drafters import Copying
from outrider.errors import PromptError
from outrider.models.cached_session import CachedSession
from outrider.output import Collected
from outrider.trace import strict_json

PROMPT = "the quick brown fox"


@pytest.fixture(scope="module")
def llm(two_models: Path) -> outrider.LLM:
    return outrider.load(str(two_models / "target"), draft="auto", dtype="float32")


@pytest.mark.parametrize("way", ["generate", "stream", "beams"])
def test_every_output_has_the_same_fields(llm: outrider.LLM, way: str) -> None:
    """prompt_tokens and error were in some outputs only, and nothing said what ran the model or why a text ended."""
    if way == "stream":
        collected = Collected()
        assert collected.output().finish_reason == "interrupted"
        for chunk in llm.stream(PROMPT, max_new_tokens=6):
            assert collected.output().finish_reason == "interrupted"
            collected.add(chunk)
        output = collected.output()
    else:
        output = llm.generate(PROMPT, max_new_tokens=6, beams=2 if way == "beams" else 1)
    told = json.loads(strict_json(output.to_json()))
    told.pop("hypotheses", None)
    assert list(told) == ["text", "tokens", "finish_reason", "stop_reason", "prompt_tokens", "error", "stats"]
    assert told["prompt_tokens"] == len(llm.tokenizer.encode(PROMPT)) and told["error"] is None
    assert told["finish_reason"] == "length" and told["stop_reason"] is None
    assert told["stats"]["engine"] == llm.target.model.facts.engine and told["stats"]["dtype"] == "float32"
    assert told["stats"]["finish_reasons"] == {"length": 1} and told["stats"]["graphs"] is False


@pytest.mark.parametrize("beams", [1, 2])
def test_outputs_say_what_ended_them(llm: outrider.LLM, beams: int) -> None:
    """Of several stop strings the one that matched is named, and of several end tokens the one that came."""
    text, tokens = (first := llm.generate(PROMPT, max_new_tokens=12, beams=beams)).text, first.tokens
    stop = text[3:5]
    stopped = llm.generate(PROMPT, max_new_tokens=12, beams=beams, stop=["no such text", stop], num_return=beams)
    found = [o for o in (stopped, *stopped.hypotheses) if o.finish_reason == "stop"]
    assert found and all(o.stop_reason == stop for o in found)
    ended = llm.generate(PROMPT, max_new_tokens=12, eos=[tokens[2], llm.target.model.vocab_size - 1], beams=beams)
    assert (ended.finish_reason, ended.stop_reason) == ("eos", tokens[2]) or beams > 1
    if beams == 1:
        last = list(llm.stream(PROMPT, max_new_tokens=12, stop=stop))[-1]
        assert (last.finish_reason, last.stop_reason) == ("stop", stop)


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ([], r"prompts\[2\], '': the prompt is empty"),
        (
            "the cat " * 40,
            r"prompts\[2\], 'the cat the cat .*'\.\.\.: the prompt has \d+ tokens, the model's limit",
        ),
        ([5, 99999], r"prompts\[2\], .*: prompt token \[99999\] is outside the vocabulary"),
    ],
)
def test_a_bad_prompt_of_a_list_is_named(llm: outrider.LLM, bad: Any, match: str, beams: int) -> None:
    """One of a thousand prompts was too long: all failed, and nothing said which one it was."""
    with pytest.raises(PromptError, match=match):
        llm.generate([PROMPT, "the", bad, PROMPT], max_new_tokens=4, beams=beams)
    with pytest.raises(PromptError, match="^the prompt has"):
        llm.generate("the cat " * 40, max_new_tokens=4, beams=beams)


@pytest.fixture(scope="module")
def pair(two_models: Path) -> outrider.LLM:
    return outrider.load(str(two_models / "target"), str(two_models / "draft"), engine="torch")


class Interrupting:
    """Raises KeyboardInterrupt, or another error, in the n-th call of a method."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, after: bool) -> None:
        self.left, self.error, real = -1, KeyboardInterrupt, getattr(owner, method)

        def call(this: Any, *given: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not after:
                raise self.error
            result = real(this, *given, **named)
            if self.left == 0:
                raise self.error
            return result

        monkeypatch.setattr(owner, method, call)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (CachedSession, "score"),
        (CachedSession, "commit"),
        (CachedSession, "_prefill"),
        (SafeDrafter, "propose"),
        (SafeDrafter, "commit"),
        (Row, "push"),
    ],
)
def test_an_interrupted_stream_leaves_nothing_behind(
    pair: outrider.LLM, owner: type, method: str, after: bool, graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C or an error anywhere in a step: the next call gives the text it would have given without it."""
    llm = outrider.LLM(pair.target, pair.drafter)
    llm.pool = SessionPool(graphs)
    asked: dict[str, Any] = {"max_new_tokens": 20, "temperature": 1.0, "seed": 3, "gamma": 3}
    expected = [output.tokens for output in llm.generate([PROMPT, "the"], **asked)]
    interrupting = Interrupting(monkeypatch, owner, method, after)
    for count in (1, 2, 4):
        interrupting.left = count
        with pytest.raises(KeyboardInterrupt):
            for _ in llm.stream([PROMPT, "some other text " * 4, "the"], **asked):
                pass
        interrupting.left = -1
        assert [output.tokens for output in llm.generate([PROMPT, "the"], **asked)] == expected


@pytest.mark.parametrize("graphs", [False, True])
def test_a_stream_whose_reader_fails_or_leaves(pair: outrider.LLM, graphs: bool) -> None:
    """An exception in the reader, a loop that is left, a stream that is closed or thrown into."""
    llm = outrider.LLM(pair.target, pair.drafter)
    llm.pool = SessionPool(graphs)
    asked: dict[str, Any] = {"max_new_tokens": 20, "temperature": 1.0, "seed": 3, "gamma": 3}
    expected = llm.generate(PROMPT, **asked).tokens
    with pytest.raises(ZeroDivisionError):
        for _ in llm.stream("some other text", **asked):
            raise ZeroDivisionError
    assert llm.generate(PROMPT, **asked).tokens == expected
    for _ in llm.stream(["some other text", PROMPT], **asked):
        break
    assert llm.generate(PROMPT, **asked).tokens == expected
    thrown: Any = llm.stream("some other text", **asked)
    next(thrown)
    with pytest.raises(KeyboardInterrupt):
        thrown.throw(KeyboardInterrupt)
    assert llm.generate(PROMPT, **asked).tokens == expected


def test_a_stream_left_early_still_says_why_its_drafter_failed(two_models: Path) -> None:
    """The trace of an interrupted call said nothing of the drafter's error: it was noted at the end only."""

    class Broken(Copying):
        def start(self, rows: int, shape: Any, target: Any) -> Any:
            raise RuntimeError("no drafts today")

    llm = outrider.load(str(two_models / "target"), Broken(), engine="torch")
    with pytest.warns(UserWarning, match="no drafts today"):
        stream: Any = llm.stream(PROMPT, max_new_tokens=20)
        chunk = next(stream)
    stream.close()
    assert chunk.trace.drafter_error == "RuntimeError: no drafts today"
