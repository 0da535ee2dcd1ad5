"""Prompts as callers give them (texts, token ids, conversations), checked before a model sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from outrider.errors import PromptError, require, require_unicode

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
SHAPE = "[{'role': 'user', 'content': 'Hello'}]"


def several(prompt: Any) -> tuple[list[Any], bool]:
    """One prompt or a list of them -> the list, and whether a single one was given."""
    given = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    require(
        isinstance(given, Sequence) and not isinstance(given, bytes),
        f"a prompt is a text or token ids, or a list of them; got {given!r}",
        PromptError,
    )
    single = isinstance(given, str) or (len(given) > 0 and all(isinstance(t, int) for t in given))
    prompts = [given] if single else list(given)
    require(len(prompts) > 0, "no prompt was given; pass a text, token ids, or a list of them", PromptError)
    return prompts, single


def token_ids(prompt: Any, tokenizer: Any) -> list[int]:
    """The token ids of one prompt."""
    if isinstance(prompt, str):
        require(prompt != "", "the prompt is empty; give it some text", PromptError)
        require_unicode("the prompt", prompt)
        return list(tokenizer.encode(prompt))
    ids = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    require(
        isinstance(ids, Sequence) and all(isinstance(t, int) and not isinstance(t, bool) for t in ids),
        f"a prompt is a text or token ids, got {prompt!r}",
        PromptError,
    )
    return list(ids)


def conversation(messages: Any) -> list[dict[str, Any]]:
    """The messages of a chat, checked one by one: a chat template renders what is wrong without a word."""
    require(
        isinstance(messages, Sequence) and not isinstance(messages, (str, bytes)),
        f"messages must be a list of messages such as {SHAPE}, got {messages!r}",
        PromptError,
    )
    require(len(messages) > 0, "messages is empty; give at least one", PromptError)
    for place, message in enumerate(messages):
        name = f"messages[{place}]"
        require(
            isinstance(message, Mapping),
            f"{name} must be a mapping with 'role' and 'content', got {message!r}",
            PromptError,
        )
        role, content = message.get("role"), message.get("content")
        require(
            role in ROLES,
            f"{name}['role'] must be one of {', '.join(ROLES)}, got {role!r}; for other roles render the chat template "
            "yourself and pass its text to generate",
            PromptError,
        )
        require(isinstance(content, str), f"{name}['content'] must be a text, got {content!r}", PromptError)
        require_unicode(f"{name}['content']", content)
    return [dict(message) for message in messages]


def render(messages: Any, tokenizer: Any, model: str) -> list[int]:
    """A conversation -> the token ids of its chat template, ready to be answered."""
    checked = conversation(messages)
    try:
        text = tokenizer.apply_chat_template(checked, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program of the model's and may refuse what it likes
        reason = " ".join(str(error).split())
        raise PromptError(f"the chat template of {model} refused the messages: {reason}; change them") from error
    return list(tokenizer.encode(text, add_special_tokens=False))


@contextmanager
def named(index: int, count: int) -> Iterator[None]:
    """Errors about one prompt of several say which one."""
    try:
        yield
    except PromptError as error:
        raise (error if count == 1 else PromptError(f"prompts[{index}]: {error}")) from None
