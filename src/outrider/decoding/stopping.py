"""When a row ends, and what of the last run's tokens still counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from outrider.decoding.text import UNFINISHED, Decode, GrowingText
from outrider.errors import CriterionError, NumericalError, OutriderError


@dataclass(frozen=True)
class Stopping:
    """The rules of one request. ``decode`` is needed for stop strings only."""

    max_new_tokens: int
    eos: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    criteria: tuple[Callable[..., Any], ...] = ()  # transformers StoppingCriteria: (ids [1, T], scores) -> [1] bool
    decode: Decode | None = None

    def start(self, prompt: Sequence[int]) -> Row:
        return Row(self, list(prompt))


@dataclass
class Row:
    """What a request has produced so far, and whether it is done."""

    rules: Stopping
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None  # the stop string that matched, or the end token
    cut: int | None = None  # characters of the text before the stop string
    error: str | None = None  # why the row could not go on
    failure: type[OutriderError] = NumericalError  # what to raise with ``error`` where no other row goes on
    _growing: GrowingText | None = field(default=None, repr=False, compare=False)

    @property
    def left(self) -> int:
        """Tokens it may still give."""
        return self.rules.max_new_tokens - len(self.tokens)

    @property
    def exception(self) -> OutriderError:
        """The error to raise of a row that could not go on."""
        return self.failure(str(self.error))

    def push(self, tokens: Sequence[int]) -> list[int]:
        """Take tokens one by one until a rule ends the row -> those that count."""
        taken: list[int] = []
        for token in tokens:
            if self.finish_reason is not None:
                break
            taken.append(token)
            self.tokens.append(token)
            try:
                self.finish_reason = self._reason(token)
            except CriterionError as error:  # the text so far is as good as ever, and so are other rows
                self.finish_reason, self.error, self.failure = "error", str(error), CriterionError
        return taken

    def fail(self, surplus: int, error: str) -> None:
        """End the row here: its last ``surplus`` tokens rest on nothing."""
        del self.tokens[len(self.tokens) - surplus :]
        self.finish_reason, self.stop_reason, self.cut, self.error = "error", None, None, error
        self.failure = NumericalError

    def _reason(self, token: int) -> str | None:
        rules = self.rules
        if token in rules.eos:
            self.stop_reason = token
            return "eos"
        if rules.stop and self._found_stop():
            return "stop"
        if rules.criteria:
            ids = torch.tensor([self.prompt + self.tokens])
            if any(_ends(rule, ids) for rule in rules.criteria):
                return "criteria"
        return "length" if len(self.tokens) >= rules.max_new_tokens else None

    def _found_stop(self) -> bool:
        """A stop string may begin in one run and end in the next: the text is what is searched, not tokens."""
        assert self.rules.decode is not None
        growing = self._text(self.rules.decode)
        first = max(0, growing.read(self.tokens) - max(map(len, self.rules.stop)) + 1)
        text = growing.after(first)
        hits = [(first + place, stop) for stop in self.rules.stop if (place := text.find(stop)) >= 0]
        if hits:
            self.cut, self.stop_reason = min(hits, key=lambda hit: hit[0])
        return bool(hits)

    def _text(self, decode: Decode) -> GrowingText:
        if self._growing is None:
            self._growing = GrowingText(decode)
        return self._growing

    def text(self, decode: Decode) -> str:
        """The text so far, without a stop string or an end-of-sequence token."""
        whole = decode(self.tokens)
        return whole if self.cut is None else whole[: self.cut]

    def printable(self, decode: Decode, start: int = 0) -> str:
        """The text from character ``start`` on, as far as later tokens cannot change it: for streaming."""
        if self.finish_reason is not None:
            return self.text(decode)[start:]
        growing = self._text(decode)
        growing.read(self.tokens)
        first = max(0, start - max(map(len, self.rules.stop), default=0))
        text = growing.after(first).rstrip(UNFINISHED)
        keep = max((_overlap(text, stop) for stop in self.rules.stop), default=0)
        return text[start - first : len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that could become ``stop``."""
    return next((k for k in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:k])), 0)


def criterion_name(criterion: Callable[..., Any]) -> str:
    """For errors: the name of a function, or the class of an object."""
    return getattr(criterion, "__name__", type(criterion).__name__)  # a user's callable: it may have no name


def _ends(criterion: Callable[..., Any], ids: Tensor) -> bool:
    """Whether a criterion ends the text ids [1, T]: a bool, or a tensor of one. Anything else is refused by name."""
    name = f"stopping_criteria {criterion_name(criterion)}"
    try:
        found = criterion(ids, None)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise CriterionError(
            f"{name} failed on input_ids [1, {ids.shape[1]}] and scores None: {reason}; it must take one row of tokens "
            "and no scores"
        ) from error
    if isinstance(found, bool):
        return found
    if isinstance(found, Tensor) and found.dtype == torch.bool and found.numel() == 1:
        return bool(found)
    what = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else repr(found)
    raise CriterionError(f"{name} returned {what}; it must return True, False or a bool tensor of one row")
