"""The lines of an offline batch and the records they give, in one process or in a worker of a cluster."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outrider.errors import BadOption, NumericalError

WINDOW = 32
"""Lines per slot in one call of ``stream``, which keeps the trace of all of them until it ends."""


@dataclass(frozen=True)
class PromptLine:
    """One line of the file: what to generate from, or why that cannot be."""

    index: int  # from 0
    prompt: Any = None  # a text, token ids, or messages
    chat: bool = False  # the prompt is messages
    id: Any = None  # the caller's own name for it
    error: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of generate, for this line


@dataclass(frozen=True)
class Loading:
    """The model of a batch, by name: every process that takes part loads it by the same call."""

    target: str
    options: Mapping[str, Any]  # of outrider.load

    @property
    def decides(self) -> dict[str, Any]:
        """What a text follows from."""
        names = ("dtype", "weights", "kv_cache_dtype", "tensor_parallel")
        found = {"target": self.target, **{name: self.options[name] for name in names}}
        limit = self.options["max_length"]
        return found if limit is None else found | {"max_length": limit}

    def load(self, slots: int | None) -> Any:
        import outrider

        return outrider.load(self.target, slots=slots, **self.options)


Answer = tuple[PromptLine, dict[str, Any]]
Advance = Callable[[int, int], None]
Ready = tuple[PromptLine, list[int]]


@dataclass(frozen=True)
class PromptBatch:
    """A run over the lines of a file."""

    lines: Sequence[PromptLine]
    options: Mapping[str, Any]  # of generate, for every line that has no value of its own
    settings: Mapping[str, Any]  # what else a text follows from: the target, its dtype
    out: Path | None = None
    slots: int | None = None

    def keys(self) -> dict[int, str]:
        """What each line's text follows from: a file is never continued with other prompts or options."""
        from outrider.options import Options

        usual = {name: one.default for name, one in Options.__dataclass_fields__.items()}
        usual["gamma"] = None

        def described(line: PromptLine) -> str:
            options = {**self.options, **line.options, "gamma": None}  # gamma is free to be chosen anew
            chosen = {name: value for name, value in options.items() if value != usual[name]}
            return json.dumps([chosen, dict(self.settings), line.prompt], sort_keys=True, default=str)

        return {line.index: hashlib.sha256(described(line).encode()).hexdigest()[:16] for line in self.lines}

    def complete(self, keys: Mapping[int, str]) -> list[PromptLine]:
        """The lines with all their options. A batch with a seed gives each line one, whatever is generated before it:
        a repeated line gets the next, and a line that names a seed keeps that."""
        seed, seen, found = self.options.get("seed"), Counter[str](), []
        for line in self.lines:
            options = {**self.options, **line.options}
            if seed is not None and "seed" not in line.options:
                options["seed"] = seed + seen[keys[line.index]]
                seen[keys[line.index]] += 1
            found.append(replace(line, options=options))
        return found


def answers(llm: Any, lines: Sequence[PromptLine], slots: int, advance: Advance) -> Iterator[Answer]:
    """Lines as they finish; those that cannot be used at once. Lines with the same options run together."""
    from outrider.options import Options

    for start in range(0, len(lines), slots * WINDOW):
        groups: dict[str, list[Ready]] = {}
        for line in lines[start : start + slots * WINDOW]:
            try:
                Options.parse(line.options)
                ready = line, _token_ids(llm, line)
            except BadOption as error:
                yield line, {"error": str(error)}
            else:
                groups.setdefault(_shared(line.options), []).append(ready)
        for together in groups.values():
            yield from _texts(llm, together, advance)


def _shared(options: Mapping[str, Any]) -> str:
    """What lines that run together agree in. Rows of one call have seeds of their own."""
    return json.dumps({**options, "seed": options.get("seed") is None}, sort_keys=True, default=str)


def _token_ids(llm: Any, line: PromptLine) -> list[int]:
    if line.error is not None:
        raise BadOption(line.error)
    return list(llm.encode(llm.chat_prompt(line.prompt) if line.chat else line.prompt))


def _texts(llm: Any, ready: Sequence[Ready], advance: Advance) -> Iterator[Answer]:
    """The texts of lines with the same options, as they end. What the model refuses of those is every line's error."""
    waiting = {line.index: line for line, _ in ready}
    try:
        for line, record in _generated(llm, ready, advance):
            del waiting[line.index]
            yield line, record
    except NumericalError:  # raised where every text ended in an error, each of which has been told
        pass
    except BadOption as error:
        yield from ((line, {"error": str(error)}) for line in waiting.values())


def _generated(llm: Any, ready: Sequence[Ready], advance: Advance) -> Iterator[Answer]:
    from outrider.output import Collected

    options = ready[0][0].options
    if options.get("beams", 1) > 1:
        for line, ids in ready:
            output = llm.generate(ids, **options)
            advance(0, len(output.tokens))
            yield line, output.to_json()
        return
    seeds = None if options.get("seed") is None else [line.options["seed"] for line, _ in ready]
    collected = [Collected(place) for place in range(len(ready))]
    for chunk in llm.stream([ids for _, ids in ready], **{**options, "seed": seeds}):
        collected[chunk.index].add(chunk)
        advance(0, len(chunk.tokens))
        if chunk.finish_reason is not None:
            yield ready[chunk.index][0], collected[chunk.index].output().to_json()
