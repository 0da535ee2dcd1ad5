"""What a request asks of a beam search, and the capacity it needs."""

from __future__ import annotations

from dataclasses import replace

from outrider.beam.rules import Rules, Tokens
from outrider.core.protocols import Shape
from outrider.decoding.request import Request
from outrider.decoding.stopping import Row, Stopping


def close_fitting(shape: Shape, request: Request, stopping: Stopping) -> Shape:
    """The least capacity, in prefill chunks: every row is attended over in full, and a search has many rows."""
    needed = len(request.prompt) + stopping.max_new_tokens + 2 * shape.width
    return replace(shape, capacity=-(-needed // shape.chunk) * shape.chunk)


def rules_of(
    stopping: Stopping, request: Request, bounded: bool, beams: int, length_penalty: float, early_stopping: bool | str
) -> Rules:
    """``bounded``: no option can raise a log-probability above 0."""

    def ends(tokens: Tokens) -> str | None:
        row = Row(stopping, list(request.prompt), list(tokens[:-1]))
        row.push(tokens[-1:])
        if row.error is not None:
            raise row.exception
        return row.finish_reason

    return Rules(
        beams=beams,
        max_new_tokens=stopping.max_new_tokens,
        ends=ends,
        end_tokens=len(stopping.eos),
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        bounded=bounded,
    )
