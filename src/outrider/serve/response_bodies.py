"""The answers of the API: choices, chunks of a stream, usage, log-probabilities and how speculation went."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.serve.job import StepProgress
from outrider.trace import finite

REASONS = {"eos": "stop", "stop": "stop", "criteria": "stop", "length": "length"}
"""Why a text ended, in OpenAI's words."""

Show = Callable[[Sequence[int]], str]
"""Tokens as text, special ones visible."""


@dataclass
class Choice:
    """One text as it grows, and what its answer says of it."""

    index: int
    show: Show
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    chosen: list[float] = field(default_factory=list)
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)  # each token's text, and where it begins: for log-probabilities
    offsets: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    lengths: Counter[int] = field(default_factory=Counter)  # steps with guesses, by how many were kept
    widest: int = 0

    def add(self, progress: StepProgress) -> None:
        self.text += progress.text
        self.tokens.extend(progress.tokens)
        self.finish_reason = progress.finish_reason
        if progress.logprobs is not None:
            self.chosen.extend(progress.logprobs.chosen)
            for token in progress.tokens:
                self.offsets.append(self.offsets[-1] + len(self.shown[-1]) if self.shown else 0)
                self.shown.append(self.show([token]))
            self.top.extend(progress.logprobs.top)
        if (record := progress.record) is not None:
            self.steps += 1
            self.drafted += len(record.drafted)
            self.accepted += progress.accepted
            self.widest = max(self.widest, progress.asked)
            if record.drafted:
                self.lengths[record.accepted] += 1

    @property
    def reason(self) -> str | None:
        return None if self.finish_reason is None else REASONS.get(self.finish_reason, self.finish_reason)

    def completion_logprobs(self, start: int = 0) -> dict[str, Any] | None:
        """In the form of ``/v1/completions``, of the tokens from ``start`` on."""
        if len(self.chosen) <= start:
            return None
        return {
            "tokens": self.shown[start:],
            "token_logprobs": finite(self.chosen[start:]),
            "top_logprobs": [{self.show([token]): finite(value) for token, value in one} for one in self.top[start:]],
            "text_offset": self.offsets[start:],
        }

    def chat_logprobs(self, start: int = 0) -> dict[str, Any] | None:
        """In the form of ``/v1/chat/completions``."""
        if len(self.chosen) <= start:
            return None
        entries = zip(self.tokens[start:], self.chosen[start:], self.top[start:], strict=False)
        return {
            "content": [
                {**self._entry(token, value), "top_logprobs": [self._entry(*pair) for pair in top]}
                for token, value, top in entries
            ],
            "refusal": None,
        }

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.show([token])
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode("utf-8", "replace"))}


def speculative_decoding(choices: Sequence[Choice]) -> dict[str, Any]:
    """How speculation went, by the names that vLLM's per-request statistics have."""
    lengths: Counter[int] = sum((choice.lengths for choice in choices), Counter())
    speculated = sum(lengths.values())
    drafted, accepted = sum(c.drafted for c in choices), sum(c.accepted for c in choices)
    kept = sum(length * count for length, count in lengths.items())
    return {
        "mean_acceptance_length": 1 + kept / speculated if speculated else None,
        "draft_acceptance_rate": accepted / drafted if drafted else None,
        "acceptance_histogram": {str(length): lengths[length] for length in sorted(lengths)},
        "num_spec_steps": speculated,
        "num_steps": sum(choice.steps for choice in choices),
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": max((choice.widest for choice in choices), default=0),
    }


def usage(prompt_tokens: int, choices: Sequence[Choice]) -> dict[str, Any]:
    """Tokens of the prompts, counted once, and of all choices."""
    written = sum(len(choice.tokens) for choice in choices)
    accepted = sum(choice.accepted for choice in choices)
    wasted = sum(choice.drafted for choice in choices) - accepted
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": written,
        "total_tokens": prompt_tokens + written,
        "completion_tokens_details": {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": wasted},
    }


@dataclass(frozen=True)
class ResponseBodies:
    """Makes the JSON of one request's answers: chat or completion, whole or in chunks."""

    model: str
    chat: bool
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def _head(self, chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion" + (".chunk" if chunk else "")) if self.chat else "text_completion"
        name = f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}"
        return {"id": name, "object": kind, "created": self.created, "model": self.model}

    def whole(
        self, choices: Sequence[Choice], prompt_tokens: int, calls: Sequence[list[dict[str, Any]]]
    ) -> dict[str, Any]:
        """The answer to a request that does not stream. ``calls``: tools that each choice calls."""
        return {
            **self._head(False),
            "choices": [self._choice(choice, own) for choice, own in zip(choices, calls, strict=True)],
            "usage": usage(prompt_tokens, choices),
            "metrics": {"speculative_decoding": speculative_decoding(choices)},
        }

    def _choice(self, choice: Choice, calls: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.chat:
            return {
                "index": choice.index, "text": choice.text, "finish_reason": choice.reason,
                "logprobs": choice.completion_logprobs(),
            }  # fmt: skip
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if calls:
            message |= {"content": None, "tool_calls": calls}
        reason = "tool_calls" if calls else choice.reason
        logprobs = choice.chat_logprobs()
        return {"index": choice.index, "message": message, "finish_reason": reason, "logprobs": logprobs}

    def opening(self, index: int) -> dict[str, Any] | None:
        """The first chunk of a chat's choice, which says who speaks."""
        if not self.chat:
            return None
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}
        return {**self._head(True), "choices": [choice]}

    def chunk(self, choice: Choice, progress: StepProgress) -> dict[str, Any]:
        """What one step added."""
        start = len(choice.chosen) - (0 if progress.logprobs is None else len(progress.logprobs.chosen))
        reason = choice.reason
        if self.chat:
            delta = {"content": progress.text} if progress.text or reason is None else {}
            entry = {"index": choice.index, "delta": delta, "finish_reason": reason,
                     "logprobs": choice.chat_logprobs(start)}  # fmt: skip
        else:
            entry = {"index": choice.index, "text": progress.text, "finish_reason": reason,
                     "logprobs": choice.completion_logprobs(start)}  # fmt: skip
        return {**self._head(True), "choices": [entry]}

    def closing(self, choices: Sequence[Choice], prompt_tokens: int) -> dict[str, Any]:
        """The last chunk, where ``stream_options.include_usage`` asks for it."""
        return {
            **self._head(True),
            "choices": [],
            "usage": usage(prompt_tokens, choices),
            "metrics": {"speculative_decoding": speculative_decoding(choices)},
        }


def traced(progress: StepProgress, step: int, show: Show, why: str) -> dict[str, Any]:
    """What the page shows of a step: its tokens by origin, its guesses and their fate."""
    record = progress.record
    drafted = () if record is None else record.drafted
    return {
        "tokens": [
            {"id": token, "text": show([token]), "origin": origin}
            for token, origin in zip(progress.tokens, progress.origins, strict=False)
        ],
        "step": {
            "index": step,
            "gamma": progress.asked,
            "drafted": [{"id": token, "text": show([token])} for token in drafted],
            "accepted": 0 if record is None else record.accepted,
            "seconds": progress.seconds,
            "why": why,
        },
    }
