"""Requests on their way into slots: their prompts are prefilled in parts, and other rows take steps in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from outrider.core.protocols import Admission, Session, admit_all
from outrider.decoding.inbox import Numbered
from outrider.decoding.request import Event
from outrider.errors import DeviceError


@runtime_checkable
class PrefillsInParts(Protocol):
    """A session that can prefill prompts run by run."""

    def prefill_in_parts(self, admissions: Sequence[Admission], steps: bool = True) -> Iterator[None]:
        """``admit_all``; between two parts other rows may take ``steps``."""


@runtime_checkable
class SharesPrefixes(Protocol):
    """A session that copies the beginning of a prompt from a slot that holds it: a prefix cache without memory of its
    own. Off unless somebody serves, where prompts begin alike."""

    share_prefixes: bool
    reused: int  # tokens copied so far

    def forget(self, row: int) -> None:
        """Nothing of what the row holds is to be copied."""


def share_prefixes(sessions: Iterable[Session]) -> None:
    """Let sessions that can copy what prompts have in common."""
    for session in sessions:
        if isinstance(session, SharesPrefixes):
            session.share_prefixes = True


def release(session: Session, row: int, failed: bool) -> None:
    """The row has ended. What one that failed has left in memory is not to be trusted."""
    if failed and isinstance(session, SharesPrefixes):
        session.forget(row)
    session.release(row)


@dataclass
class Entering:
    """Requests that have slots and whose prompts are not all run yet."""

    requests: list[Numbered]
    admissions: list[Admission]
    parts: Iterator[None] = field(repr=False)

    @staticmethod
    def of(requests: list[Numbered], slots: Sequence[int], target: Session, in_parts: bool) -> Entering:
        new = [
            Admission(
                slot,
                request.prompt,
                request.source,
                request.prediction,
                request.forced,
                request.drafter,
                owner=request.owner,
            )  # fmt: skip
            for slot, (_, request) in zip(slots, requests, strict=False)
        ]
        if in_parts and isinstance(target, PrefillsInParts):
            return Entering(requests, new, target.prefill_in_parts(new))
        return Entering(requests, new, _at_once(target, new))

    def advance(self) -> bool:
        """Run the next part -> whether that was all."""
        return next(self.parts, self) is self

    def refused(self, reason: str, target: Session) -> Iterator[Event]:
        """There is no memory for their prompts: each ends with an error, and its slot is free."""
        for one, (index, request) in zip(self.admissions, self.requests, strict=True):
            target.release(one.row)
            row = request.stopping.start(request.prompt)
            row.finish_reason, row.error, row.failure = "error", reason, DeviceError
            yield Event(index, (), 0, row)


def _at_once(target: Session, new: list[Admission]) -> Iterator[None]:
    admit_all(target, new)
    yield from ()
