"""``outrider serve --remember``: answers are guessed from earlier ones, and never from somebody else's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider.serve.engine import Limits
from outrider.serve.guard import key_owner
from serving import Served, serving

KEYS = ("the-first-key", "the-second-key")


@pytest.fixture(scope="module")
def remembering(target: Path) -> Iterator[Served]:
    llm = outrider.load(str(target), "suffix", "cpu", "float32", width=5, remember=True)
    with serving(llm, Limits(4, 120, 16), keys=KEYS) as server:
        yield server


def asked(server: Served, key: str, prompt: str) -> tuple[str, dict[str, Any]]:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 30, "ignore_eos": True, "speculation": {"gamma": 4}}
    status, found, _ = server.send("/v1/completions", body, {"Authorization": f"Bearer {key}"})
    assert status == 200, found
    assert server.idle()
    return found["choices"][0]["text"], found["metrics"]["speculative_decoding"]


def test_an_answer_speeds_up_its_own_key_only(remembering: Served) -> None:
    """Somebody else's text would show in how long an answer takes, and in the guesses of a trace."""
    prompt = "one cat and two dogs"
    text, first = asked(remembering, KEYS[0], prompt)
    other, stranger = asked(remembering, KEYS[1], prompt)
    again, second = asked(remembering, KEYS[0], prompt)
    assert text == other == again
    assert stranger["num_steps"] == first["num_steps"] > second["num_steps"]


def test_a_key_is_not_kept_in_its_name() -> None:
    names = {key_owner(f"Bearer {key}") for key in KEYS} | {key_owner(f"bearer  {KEYS[0]} ")}
    assert len(names) == 2 and not any(key in name for key in KEYS for name in names)


def test_without_keys_nothing_is_remembered(target: Path) -> None:
    llm = outrider.load(str(target), "suffix", "cpu", "float32", width=5, remember=True)
    with serving(llm, Limits(2, 120, 16)) as server:
        server.text("one two", max_tokens=8)
        assert server.idle()
    assert llm.memory is not None and len(llm.memory) == 0
