"""What callers get wrong about prompts, conversations and processors: errors of Outrider's, with the remedy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import library
import pytest
import torch

import outrider
from outrider.errors import BadOption, ProcessorError, PromptError

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('tools are not known') }}{% endif %}"
    "{{ m['content'] }} {% endfor %}"
)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> outrider.LLM:
    folder = library.save_llama(tmp_path_factory.mktemp("models") / "chatty", chat_template=TEMPLATE)
    return outrider.load(str(folder), draft="auto")


CONVERSATIONS: dict[str, tuple[Any, str]] = {
    "a text": ("hello", r"messages must be a list of messages such as \[\{'role': 'user'.*got 'hello'"),
    "no list": (None, "messages must be a list"),
    "one message": ({"role": "user", "content": "a"}, "messages must be a list"),
    "a list of texts": (["hello"], r"messages\[0\] must be a mapping with 'role' and 'content', got 'hello'"),
    "no content": ([{"role": "user"}], r"messages\[0\]\['content'\] must be a text, got None"),
    "no role": ([{"content": "a"}], r"messages\[0\]\['role'\] must be one of .*, got None"),
    "a mistyped role": ([{"role": "usr", "content": "a"}], r"\['role'\] must be one of system, .*got 'usr'"),
    "content in parts": ([{"role": "user", "content": [{"type": "text", "text": "a"}]}], "must be a text"),
    "second message": ([{"role": "user", "content": "a"}, {"role": "user", "content": 5}], r"messages\[1\]"),
    "a surrogate": ([{"role": "user", "content": "a\udcff"}], r"messages\[0\]\['content'\] has a lone surrogate"),
    "refused by the template": ([{"role": "tool", "content": "a"}], "refused the messages: tools are not known"),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations(llm: outrider.LLM, name: str) -> None:
    """llm.chat("hello") was "string indices must be integers" out of a template, and a mistyped role was rendered."""
    messages, says = CONVERSATIONS[name]
    with pytest.raises(PromptError, match=says) as caught:
        llm.chat(messages)
    assert "\n" not in str(caught.value)


LISTS: dict[str, tuple[list[Any], str]] = {
    "empty": (["the", "", "so"], r"prompts\[1\]: the prompt is empty"),
    "no text": (["the", "so", 5.0], r"prompts\[2\]: a prompt is a text or token ids, got 5.0"),
    "a surrogate": (["the", "so\udc80"], r"prompts\[1\]: the prompt has a lone surrogate, '\\udc80', at character 2"),
    "too long": (["the", [5] * 128], r"prompts\[1\], .*: the prompt has 128 tokens, the model's limit is 128"),
    "no token": (["the", [5, 5000]], r"prompts\[1\], .*: prompt token \[5000\] is outside"),
    "no ids": (["the", []], r"prompts\[1\], '': the prompt is empty"),
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("options", [{}, {"beams": 2}], ids=str)
def test_a_bad_prompt_of_a_list_is_named(llm: outrider.LLM, name: str, options: dict[str, Any]) -> None:
    """One bad prompt of a hundred failed the call, and did not say which it was."""
    prompts, says = LISTS[name]
    with pytest.raises(PromptError, match=says):
        llm.generate(prompts, max_new_tokens=2, **options)
    with pytest.raises(PromptError, match="^(?!prompts)"):
        llm.generate(prompts[1] if "got 5.0" not in says else 5.0, max_new_tokens=2)


def test_a_stop_string_with_a_surrogate(llm: outrider.LLM) -> None:
    """It was a TypeError of the tokenizer's."""
    with pytest.raises(BadOption, match="stop has a lone surrogate"):
        llm.generate("the", stop=["\ud800"])


def test_encode_is_what_generate_runs(llm: outrider.LLM) -> None:
    """Catches a check that differs from generate's: same ids, same refusals."""
    assert llm.encode("the fox") == llm.tokenizer.encode("the fox")
    for bad in ("", [], [5] * 128, "\udcff"):
        with pytest.raises(PromptError):
            llm.encode(bad)


def fails(ids: Any, scores: Any) -> Any:
    raise KeyError("mine")


PROCESSORS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "another vocabulary": (lambda ids, scores: scores + torch.zeros(7), r"failed on input_ids \[1, \d+\] and scores"),
    "raises": (fails, "logits_processor fails failed on .* KeyError: 'mine'"),
    "no batch": (lambda ids, scores: scores[0], r"returned torch.float32 \[320\]"),
    "cut": (lambda ids, scores: scores[:, :9], r"returned torch.float32 \[1, 9\]"),
    "whole numbers": (lambda ids, scores: scores.long(), r"returned torch.int64 \[1, 320\]"),
    "nothing": (lambda ids, scores: None, "returned None"),
    "an array": (lambda ids, scores: scores.numpy(), "returned array"),
}


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 1}, {"beams": 2}], ids=str)
def test_processors(llm: outrider.LLM, name: str, options: dict[str, Any]) -> None:
    """A processor of the wrong shape was a RuntimeError of torch's, after a warning that blamed the drafter."""
    processor, says = PROCESSORS[name]
    with warnings.catch_warnings(), pytest.raises(ProcessorError, match=says):
        warnings.simplefilter("error")
        llm.generate("the quick brown fox", max_new_tokens=6, gamma=2, logits_processor=[processor], **options)


def test_a_drafter_of_a_model_meets_the_processor_first(llm: outrider.LLM, tmp_path: Path) -> None:
    """The drafter was said to have failed, and left out, for an error of the caller's processor."""
    drafted = llm.with_draft(str(library.save_llama(tmp_path / "draft", seed=1)))
    with warnings.catch_warnings(), pytest.raises(ProcessorError, match="fails failed"):
        warnings.simplefilter("error")
        drafted.generate("the quick", max_new_tokens=6, gamma=2, temperature=1.0, logits_processor=[fails])
