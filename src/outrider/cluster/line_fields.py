"""What a JSON line of a batch says: a prompt or messages, an id, options; or a request of OpenAI's batch files."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from outrider.checks import LOADING, check_64_bits, unknown
from outrider.errors import BadOption, PromptError, require

RENAMED = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens"}
"""OpenAI's names of options."""

UNSUPPORTED = (
    "n", "best_of", "stream", "echo", "suffix", "logprobs", "top_logprobs", "response_format", "tools", "tool_choice",
    "functions", "function_call", "prediction",
)  # fmt: skip
"""Fields of OpenAI's requests that would change the answer and cannot be honoured here."""

OF_THE_RUN = frozenset(LOADING) - {"target"}
"""Options of the whole run."""

URLS = ("/v1/completions", "/v1/chat/completions")
WITHOUT_EFFECT = {"prompt", "messages", "model", "user", "metadata", "store"}
"""Fields of a request that are no options: read elsewhere, or of the caller's own bookkeeping."""


@dataclass(frozen=True)
class LineFields:
    """What to generate from, and how."""

    prompt: Any
    chat: bool  # the prompt is messages
    options: Mapping[str, Any]


def name_of(given: Mapping[str, Any]) -> Any:
    """The caller's own name for a line."""
    return given.get("id", given.get("custom_id"))


def read_fields(given: Mapping[str, Any], target: str | None = None) -> LineFields:
    """A line's fields; PromptError or BadOption says what is wrong. target: the model that runs, which it may name."""
    request, whole = _request(given)
    found = [name for name in ("prompt", "messages") if name in request]
    rule = "a line needs either 'prompt' or 'messages'"
    require(len(found) == 1, f"{rule}, got {', '.join(request) or 'neither'}", PromptError)
    model = request.get("model")
    require(
        model is None or target is None or model == target,
        f"model must be the one that runs the batch, {target!r}, got {model!r}; leave it out, or run another batch",
    )
    return LineFields(request[found[0]], found == ["messages"], _options(request, whole))


def _request(given: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The fields that count, and whether every one must be known: they are a request of OpenAI's API, not data."""
    if "body" not in given:
        return given, False
    body, url = given["body"], given.get("url")
    require(isinstance(body, Mapping), f"body must be a JSON object, got {body!r:.60}", PromptError)
    require(url is None or url in URLS, f"url must be {' or '.join(URLS)}, got {url!r}", PromptError)
    return body, True


def _options(request: Mapping[str, Any], whole: bool) -> dict[str, Any]:
    """Options by the names of ``generate``; null: not given. A field that looks like one is refused, not ignored."""
    from outrider.options import Options

    known = [f.name for f in fields(Options)]
    options: dict[str, Any] = {}
    for name, value in request.items():
        option = RENAMED.get(name, name)
        harmless = value is None or value is False or (name in ("n", "best_of") and value == 1)
        require(
            name not in UNSUPPORTED or harmless,
            f"{name}={value!r:.60} cannot be honoured in a batch; leave it out, or ask a server (`outrider serve`)",
        )
        require(
            name not in OF_THE_RUN or value is None,
            f"{name} is an option of the whole batch and cannot be given in a line; give it to the command",
        )
        if option in known and value is not None:
            require(option not in options, f"{name} and {option} are one option; give one of the two")
            options[option] = value
        elif option not in known and name not in UNSUPPORTED and name not in WITHOUT_EFFECT:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            if whole or near:
                raise unknown(name, known, {})
    if "seed" in options:
        check_64_bits("seed", options["seed"])
    if "stop" in options:  # a list of a JSON file is one value for all that is compared
        options["stop"] = tuple(options["stop"]) if isinstance(options["stop"], list) else options["stop"]
    _refuse_objects(options)
    return options


def _refuse_objects(options: Mapping[str, Any]) -> None:
    """Options that are Python objects have no form in JSON."""
    for name in ("logits_processor", "stopping_criteria"):
        if name in options:
            raise BadOption(f"{name} is a list of Python objects and cannot be given in a line; use LLM.generate")
