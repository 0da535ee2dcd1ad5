"""What is asked of the engine, what it tells of every step, and why it may refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.core.records import ForcedTokens
from outrider.decoding.request import Event, TokenLogprobs
from outrider.errors import OutriderError
from outrider.options import Options
from outrider.trace import Record


class QueueFull(OutriderError):
    """As many requests wait as may wait: the client should try again later."""


class ServerStopping(OutriderError):
    """The server is about to stop and takes no more requests."""


@dataclass(frozen=True)
class Job:
    """One text to generate."""

    prompt: Sequence[int]
    options: Options
    seed: int  # of its noise: see ``row_seeds``
    gamma: int | None = None  # guesses per run at most, 0: no speculation; None: the planner chooses
    logprobs: int | None = None  # tokens whose log-probabilities are wanted beside each chosen one's
    prediction: tuple[int, ...] = ()  # what the output is expected to be
    forced: ForcedTokens | None = None  # tokens that its grammar leaves no choice about
    drafter: str | None = None  # one of the engine's ``drafts``; None: the first
    owner: str | None = None  # whose earlier outputs may be guessed from, and whose this one is; None: nobody's


@dataclass(frozen=True)
class StepProgress:
    """What one step added to a text."""

    text: str
    tokens: tuple[int, ...]
    accepted: int  # how many of the tokens were guesses
    finish_reason: str | None  # eos, stop, length, error or cancelled
    error: str | None
    record: Record | None  # guesses and their fate
    asked: int  # gamma of the step
    seconds: float
    logprobs: TokenLogprobs | None = None

    @staticmethod
    def of(event: Event, text: str) -> StepProgress:
        row = event.row
        return StepProgress(
            text, event.tokens, event.accepted, row.finish_reason, row.error, event.record, event.asked, event.seconds,
            event.logprobs,
        )  # fmt: skip

    @staticmethod
    def failed(error: str) -> StepProgress:
        return StepProgress("", (), 0, "error", error, None, 0, 0.0)

    @property
    def origins(self) -> list[str]:
        """Where each token came from: accepted guesses, then the target's own token, which corrects a guess that was
        rejected, is a bonus behind guesses that were all kept, or plain where there were none."""
        if self.record is None:
            return []
        drafted = len(self.record.drafted)
        own = "plain" if drafted == 0 else "corrected" if self.record.accepted < drafted else "bonus"
        return ["accepted" if place < self.accepted else own for place in range(len(self.tokens))]


Deliver = Callable[[StepProgress], None]
"""Called in the engine's thread with everything that happens to a job; must not block."""
