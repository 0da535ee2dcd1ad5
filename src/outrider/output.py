"""What a call gives back: an output for each prompt, or chunks of text as they come."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from outrider.decoding.beam import Beam
from outrider.trace import Stats, Trace, summarise


@dataclass(frozen=True)
class Output:
    """One finished generation."""

    text: str
    tokens: list[int]  # the new ones
    finish_reason: str  # eos, stop, length, criteria or error
    prompt_tokens: int
    trace: Trace
    error: str | None = None  # why the text ends early, where finish_reason is error
    hypotheses: tuple[Beam, ...] = ()  # of beam search, best first; the text is the first one's

    @cached_property
    def stats(self) -> Stats:
        return summarise(self.trace)

    def to_json(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "error": self.error,
            "stats": self.stats.to_json(),
            **({"hypotheses": [asdict(h) for h in self.hypotheses]} if self.hypotheses else {}),
        }


@dataclass(frozen=True)
class Chunk:
    """What one target run added to one prompt's text."""

    index: int  # of the prompt
    text: str
    tokens: tuple[int, ...]
    accepted: int  # how many of the tokens were guesses
    finish_reason: str | None
    trace: Trace  # so far, of the whole call
