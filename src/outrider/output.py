"""What a call gives back: an output for each prompt, or chunks of text as they come."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from outrider.beam.search import Beam
from outrider.decoding.loop import Event
from outrider.decoding.stopping import Row
from outrider.trace import Stats, Trace, finite, summarise


@dataclass(frozen=True)
class Output:
    """One finished generation."""

    text: str
    tokens: list[int]  # the new ones
    finish_reason: str  # eos, stop, length, criteria or error; interrupted, if a stream was left
    prompt_tokens: int
    trace: Trace
    error: str | None = None  # why the text ends early, where finish_reason is error
    hypotheses: tuple[Beam, ...] = ()  # of beam search, best first; the text is the first one's
    stop_reason: str | int | None = None  # the stop string that matched, or the end token

    @staticmethod
    def of_row(row: Row, text: str, prompt_tokens: int, trace: Trace) -> Output:
        reason = row.finish_reason or "length"
        return Output(text, row.tokens, reason, prompt_tokens, trace, row.error, stop_reason=row.stop_reason)

    @staticmethod
    def of_beams(beams: tuple[Beam, ...], prompt_tokens: int, trace: Trace) -> Output:
        best = beams[0]
        return Output(
            best.text, best.tokens, best.finish_reason, prompt_tokens, trace,
            hypotheses=beams, stop_reason=best.stop_reason,
        )  # fmt: skip

    @cached_property
    def stats(self) -> Stats:
        return summarise(self.trace)

    def to_json(self) -> dict[str, Any]:
        """The same fields whatever the way of decoding; ``hypotheses`` besides, where there are any."""
        return {
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "prompt_tokens": self.prompt_tokens,
            "error": self.error,
            "stats": self.stats.to_json(),
            **({"hypotheses": [finite(asdict(h)) for h in self.hypotheses]} if self.hypotheses else {}),
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
    prompt_tokens: int = 0
    error: str | None = None  # why the text ends early, where finish_reason is error
    stop_reason: str | int | None = None  # the stop string that matched, or the end token

    @staticmethod
    def of_event(event: Event, text: str, prompt_tokens: int, trace: Trace) -> Chunk:
        row = event.row
        return Chunk(
            event.index, text, event.tokens, event.accepted, row.finish_reason, trace,
            prompt_tokens, row.error, row.stop_reason,
        )  # fmt: skip


@dataclass
class Collected:
    """The chunks of one prompt so far, complete or not: what a stream had yielded when it was left early."""

    index: int = 0  # of the prompt
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    last: Chunk | None = None

    def add(self, chunk: Chunk) -> None:
        """Chunks of other prompts are passed over."""
        if chunk.index == self.index:
            self.text += chunk.text
            self.tokens.extend(chunk.tokens)
            self.last = chunk

    def output(self) -> Output:
        """What ``generate`` gives; ``interrupted`` where the text has not ended."""
        if self.last is None:
            return Output(self.text, self.tokens, "interrupted", 0, Trace())
        last, trace = self.last, self.last.trace.for_row(self.index)
        reason = last.finish_reason or "interrupted"
        return Output(
            self.text, self.tokens, reason, last.prompt_tokens, trace, last.error, stop_reason=last.stop_reason
        )
