"""The bodies of requests, as OpenAI's API defines them, with this server's own fields beside them.

What is not declared here is refused: a field that is dropped silently would change the answer. ``UNUSED`` are fields
that clients send and that change no text.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

MOST_CHOICES, MOST_PROMPTS, MOST_STOPS, MOST_TEXT = 16, 64, 16, 1 << 20

Text = Annotated[str, Field(max_length=MOST_TEXT)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1, max_length=MOST_TEXT)]

Bias = Annotated[FiniteFloat, Field(ge=-100, le=100)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SpeculationOptions(_Body):
    """How this request speculates. The text is the same with any of them, except for ``coupling``."""

    enabled: bool = True
    draft: Annotated[str, Field(max_length=200)] | None = None
    gamma: Annotated[int, Field(ge=0, le=64)] | Literal["auto"] | None = None
    coupling: Literal["gumbel", "maximal", "block"] = "gumbel"
    trace: bool = False


class StreamOptions(_Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False  # vLLM's: with include_usage, in every chunk
    include_obfuscation: bool = False  # accepted: there is nothing to pad


class JsonSchema(_Body):
    name: Annotated[str, Field(max_length=64)] = "answer"
    description: Text | None = None
    json_schema: Annotated[dict[str, Any], Field(alias="schema")] = Field(default_factory=dict)
    strict: bool | None = None


class ResponseFormat(_Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class TextPart(_Body):
    type: Literal["text"]
    text: Text


class Prediction(_Body):
    """Predicted output: the text that the answer is expected to be, as for an edit of it."""

    type: Literal["content"] = "content"
    content: Text | Annotated[list[TextPart], Field(max_length=1024)]


class FunctionCall(_Body):
    name: Annotated[str, Field(max_length=256)]
    arguments: Text = ""


class ToolCall(_Body):
    id: Annotated[str, Field(max_length=256)] = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(_Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | Annotated[list[TextPart], Field(max_length=1024)] | None = None
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None
    refusal: None = None
    audio: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


class FunctionTool(_Body):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Body):
    type: Literal["function"]
    function: FunctionTool


class _Generation(_Body):
    """What both kinds of completion share."""

    model: Annotated[str, Field(max_length=500)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    temperature: Annotated[FiniteFloat, Field(ge=0, le=2)] | None = None
    top_p: Annotated[FiniteFloat, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[FiniteFloat, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[FiniteFloat, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[FiniteFloat, Field(gt=0, le=1e6)] | None = None
    logit_bias: Annotated[dict[str, Bias], Field(max_length=1024)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=MOST_STOPS)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    ignore_eos: bool = False
    speculation: SpeculationOptions | None = None
    user: Text | None = None  # this one and the next are accepted and change nothing
    metadata: dict[str, Any] | None = None


UNUSED = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "parallel_tool_calls",
)  # fmt: skip
"""Fields that are accepted and have no effect on the text."""


class CompletionBody(_Generation):
    """``POST /v1/completions``."""

    prompt: (
        Text | TokenIds | Annotated[list[Text], Field(min_length=1, max_length=MOST_PROMPTS)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MOST_PROMPTS)]
    )  # fmt: skip
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: Literal[False] | None = None
    suffix: None = None
    best_of: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    prediction: Prediction | None = None


class ChatBody(_Generation):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=4096)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: bool | None = None
    prediction: Prediction | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None
    prompt_cache_retention: Text | None = None


_CONTENT = "a text, or a list of parts as {'type': 'text', 'text': ...}"

UNIONS = {
    "prompt": f"a text, a list of 1 to {MOST_PROMPTS} texts, a list of token ids (whole numbers, 0 or more), or a list "
    f"of 1 to {MOST_PROMPTS} lists of token ids",
    "stop": f"a text, or a list of up to {MOST_STOPS} texts",
    "speculation.gamma": "a whole number of guesses from 0 to 64, or 'auto'",
    "messages.content": _CONTENT,
    "prediction.content": _CONTENT,
}
"""Fields that take values of several kinds, and what they may be: of a wrong one the nearest kind is not known."""
