"""Conversations of the API as the model's chat template takes them."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

from outrider.errors import require_unicode
from outrider.models.settings import setting
from outrider.prompts import conversation
from outrider.serve.refusal import Refused
from outrider.serve.schema import ChatBody, Message


def chat_prompt(body: ChatBody, tokenizer: Any, model: str) -> list[int]:
    """The token ids of a conversation, ready to be answered."""
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()] if body.tool_choice != "none" else []
    if tools and "tools" not in str(setting(tokenizer, "chat_template")):
        raise Refused(f"the chat template of {model} takes no tools; leave them out", "tools")
    messages = conversation([_message(message, place) for place, message in enumerate(body.messages)])
    try:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **({"tools": tools} if tools else {})
        )
    except Exception as error:  # a template is a program of the model's and may refuse what it likes
        reason = " ".join(str(error).split())
        raise Refused(
            f"the chat template of {model} refused the messages: {reason}; change them", "messages"
        ) from error
    require_unicode("messages", text)
    return list(tokenizer.encode(text, add_special_tokens=False))


def _message(message: Message, place: int) -> dict[str, Any]:
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    if content is None and message.role != "assistant":
        raise Refused(f"messages[{place}].content must be a text for role {message.role!r}", "messages")
    made: dict[str, Any] = {"role": message.role, "content": content or ""}
    made |= {name: value for name, value in (("name", message.name), ("tool_call_id", message.tool_call_id)) if value}
    if message.tool_calls:
        made["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    return made


_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def tool_calls(text: str) -> list[dict[str, Any]]:
    """The tools that an answer calls, written as most templates have models write it: JSON within <tool_call> tags."""
    found = []
    for match in _CALL.finditer(text):
        try:
            call = json.loads(match[1])
        except ValueError:
            return []
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return []
        arguments = call.get("arguments", {})
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        function = {"name": call["name"], "arguments": written}
        found.append({"id": f"call_{secrets.token_hex(8)}", "type": "function", "function": function})
    return found
