"""The kinds of results that a report is made from: a line here and one function each.

A kind added later writes ``"kind": NAME`` and ``"version": NUMBER`` into its first record, and is found by that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.report.charts import Chapter
from outrider.report.kinds import certificate, engines, gpu, measure, papers, plans, serving, texts, traces
from outrider.report.result_entry import ResultEntry


@dataclass(frozen=True)
class ResultKind:
    """How a kind of result is recognised and what is shown of it."""

    name: str
    written_by: tuple[str, ...]  # commands of outrider
    recognises: Callable[[Mapping[str, Any]], bool]  # by the first record, where it does not say its kind
    chapter: Callable[[Sequence[ResultEntry]], Chapter]
    version: int = 1
    version_key: str = "version"
    lines: bool = False  # a record per line


def _keys(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda record: all(name in record for name in names)


KINDS: tuple[ResultKind, ...] = (
    ResultKind(
        "trace", ("generate --trace",), _keys("trace", "drafter", "coupling"), traces.chapter,
        version_key="trace", lines=True,
    ),
    ResultKind(
        "texts", ("generate --json", "batch", "generate --prompts"), texts.recognises, texts.chapter, lines=True
    ),
    ResultKind("verify", ("verify --out",), _keys("verdict", "greedy", "gumbel", "distribution"), certificate.chapter),
    ResultKind("measure", ("measure --out",), _keys("target", "drafters", "conditions", "rows"), measure.chapter),
    ResultKind(
        "outrider paper", ("paper --out",), _keys("experiment", "unit", "settings"), papers.chapter, version=2,
        lines=True,
    ),
    ResultKind("plan", ("plan --out",), _keys("plan", "cells", "checks"), plans.chapter, version_key="plan"),
    ResultKind("bench cpu", ("bench cpu --out",), _keys("cpu", "threads", "engines", "rows"), engines.chapter),
    ResultKind("bench serve", ("bench serve --out",), serving.recognises, serving.chapter),
    ResultKind("bench gpu", ("bench gpu --out",), _keys("machine", "size"), gpu.chapter),
)  # fmt: skip
