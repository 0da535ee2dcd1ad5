"""What happened, as plain numbers: one record per target run and row, a JSONL trace, and the statistics.

Every word used here is defined once, in docs/glossary.md.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from outrider.runtime import timer

PHASES = ("draft", "target", "accept", "host")


@dataclass(frozen=True)
class Record:
    """One target run as one row saw it."""

    row: int  # index of the request
    position: int  # absolute position of the first token this run could give
    drafted: tuple[int, ...]  # the guesses proposed
    accepted: int  # how many of them were kept: n
    token: int  # the target's own token after them: t
    overlap: tuple[float | None, ...]  # sum-min(p, q) of each guess; None where there is none (beams, bad logits)
    emitted: int  # tokens that entered the text (fewer than accepted + 1 where it ended)
    nodes: int | None = None
    """Guesses of a tree, of which ``drafted`` are those on the path kept and the first candidate behind it; None: the
    guesses were a chain."""

    @property
    def examined(self) -> int:
        """Guesses whose fate was decided: the accepted ones and the first rejected one."""
        return min(self.accepted + 1, len(self.drafted))

    @property
    def origins(self) -> tuple[str, ...]:
        """Where each token that entered the text comes from: ``accepted`` guesses, then the target's own token:
        ``corrected`` behind a rejected guess, ``bonus`` behind guesses that were all kept, ``plain`` without any."""
        own = "corrected" if self.accepted < len(self.drafted) else "bonus" if self.drafted else "plain"
        return (*["accepted"] * self.accepted, own)[: self.emitted]

    @property
    def overlaps(self) -> list[float]:
        """Those of the guesses examined, as far as there are any: what alpha is the mean of."""
        return [x for x in self.overlap[: self.examined] if x is not None]


@dataclass(frozen=True)
class Level:
    """One level of a cascade over a whole call: a model that drafts, and the drafter that drafted for it."""

    model: str
    drafter: str
    runs: int  # of the model after prefill, counted once for every row that still wanted tokens
    drafted: int  # guesses the drafter made for it
    examined: int  # guesses whose fate was decided
    accepted: int  # guesses the model kept
    seconds: dict[str, float]  # in draft, target (this model's runs) and accept

    @property
    def tokens_per_run(self) -> float:
        return ratio(self.accepted + self.runs, self.runs)

    @property
    def alpha_counted(self) -> float:
        return ratio(self.accepted, self.examined)


@dataclass(frozen=True)
class Ending:
    """Why one text ended."""

    row: int  # index of the request
    finish_reason: str  # eos, stop, length, criteria or error
    stop_reason: str | int | None = None  # the stop string that matched, or the end token


@dataclass
class Trace:
    """Append-only history of a generation."""

    drafter: str = "none"
    coupling: str = "maximal"
    exact: bool = True
    records: list[Record] = field(default_factory=list)
    runs: int = 0  # target runs after prefill, each serving every row of the batch
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*PHASES, "prefill"), 0.0))
    drafter_error: str | None = None
    lenience: float = 1.0  # below 1 the text does not follow the target's distribution
    levels: tuple[Level, ...] = ()  # of a cascade, from the target's side down
    engine: str = ""  # what ran the target
    dtype: str = ""  # what it computed in
    graphs: bool = False  # steps were replayed as CUDA graphs
    endings: list[Ending] = field(default_factory=list)

    def for_row(self, row: int) -> Trace:
        """The part that concerns one row. Times and runs are of the whole batch it ran in."""
        return replace(
            self,
            records=[r for r in self.records if r.row == row],
            endings=[e for e in self.endings if e.row == row],
        )

    def lines(self, show: Callable[[Sequence[int]], str] | None = None) -> Iterator[str]:
        """``show``: what gives tokens their text, so that a reader of the lines needs no tokenizer."""
        head = {k: v for k, v in asdict(self).items() if k != "records"}
        if show is not None:
            tokens = sorted({token for r in self.records for token in (*r.drafted, r.token)})
            head["texts"] = {str(token): show([token]) for token in tokens}
        yield strict_json({"trace": 1, **head})
        for record in self.records:
            yield strict_json(asdict(record))

    def save(self, path: str | Path, show: Callable[[Sequence[int]], str] | None = None) -> None:
        Path(path).write_text("".join(line + "\n" for line in self.lines(show)), encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Trace:
        head, *rest = (json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines())
        head.pop("trace")
        head.pop("texts", None)
        records = [Record(**{**r, "drafted": tuple(r["drafted"]), "overlap": tuple(r["overlap"])}) for r in rest]
        head["levels"] = tuple(Level(**level) for level in head.get("levels", ()))
        head["endings"] = [Ending(**ending) for ending in head.get("endings", ())]
        return Trace(**head, records=records)


@dataclass(frozen=True)
class Stats:
    """The statistics of a trace. NaN where there is nothing to count."""

    drafter: str
    coupling: str
    exact: bool
    tokens: int  # tokens generated
    runs: int  # target runs after prefill that these tokens took
    tokens_per_run: float  # tokens / runs, the bonus token included
    drafted: int  # guesses made
    examined: int  # guesses whose fate was decided (up to the first rejection of each run)
    accepted: int  # guesses kept that are in the text
    kept: int  # guesses kept, also those behind the end of the text: what alpha_counted counts
    wasted: int  # drafted - accepted
    alpha: float  # mean of sum-min(p, q) over examined guesses: Corollary 3.6; NaN in beam search, which has no q
    alpha_counted: float  # kept / examined
    alpha_interval: tuple[float, float]  # 95 % Wilson interval of alpha_counted
    seconds: dict[str, float]  # in draft, target, accept, host, prefill
    tokens_per_second: float  # tokens / (all seconds but prefill)
    drafter_error: str | None = None
    lenience: float = 1.0  # 1: none
    levels: tuple[Level, ...] = ()  # of a cascade: what each model below the target did, over the whole call
    engine: str = ""  # what ran the target, and the form of its weights
    dtype: str = ""  # what it computed in
    graphs: bool = False  # steps were replayed as CUDA graphs
    finish_reasons: dict[str, int] = field(default_factory=dict)  # how many texts ended for each reason
    depths: tuple[tuple[int, int], ...] = ()  # of guess 1, 2 ...: how many were examined, how many of these were kept
    emitted: tuple[int, ...] = ()  # runs that gave 0, 1, 2 ... tokens

    def to_json(self) -> dict[str, Any]:
        return {k: finite(v) for k, v in asdict(self).items()}


def finite(value: Any) -> Any:
    """NaN and infinity become null: JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, (list, tuple)) else value


def known(numbers: Sequence[float]) -> tuple[float | None, ...]:
    """``finite`` of numbers, for every row of every run: None where one is undefined."""
    return tuple([number if math.isfinite(number) else None for number in numbers]) if numbers else ()


def strict_json(value: Any, **options: Any) -> str:
    """JSON that every parser takes: null where a number is undefined."""
    return json.dumps(finite(value), allow_nan=False, **options)


def summarise(trace: Trace) -> Stats:
    """Totals over totals: every rate is a ratio of sums over the whole trace."""
    records = trace.records
    tokens = sum(r.emitted for r in records)
    drafted = sum(len(r.drafted) if r.nodes is None else r.nodes for r in records)
    examined = sum(r.examined for r in records)
    overlaps = [x for r in records for x in r.overlaps]
    kept = sum(r.accepted for r in records)
    accepted = sum(min(r.accepted, r.emitted) for r in records)
    decoding = sum(trace.seconds[phase] for phase in PHASES)
    return Stats(
        drafter=trace.drafter,
        coupling=trace.coupling,
        exact=trace.exact,
        tokens=tokens,
        runs=len(records),
        tokens_per_run=ratio(tokens, len(records)),
        drafted=drafted,
        examined=examined,
        accepted=accepted,
        kept=kept,
        wasted=drafted - accepted,
        alpha=ratio(math.fsum(overlaps), len(overlaps)),
        alpha_counted=ratio(kept, examined),
        alpha_interval=wilson(kept, examined),
        seconds=dict(trace.seconds),
        tokens_per_second=ratio(tokens, decoding),
        drafter_error=trace.drafter_error,
        lenience=trace.lenience,
        levels=trace.levels,
        engine=trace.engine,
        dtype=trace.dtype,
        graphs=trace.graphs,
        finish_reasons=dict(Counter(ending.finish_reason for ending in trace.endings)),
        depths=tuple(
            (sum(r.examined > k for r in records), sum(r.accepted > k for r in records))
            for k in range(max((r.examined for r in records), default=0))
        ),
        emitted=tuple(
            sum(r.emitted == k for r in records) for k in range(max((r.emitted for r in records), default=-1) + 1)
        ),
    )


def ratio(top: float, bottom: float) -> float:
    return top / bottom if bottom else math.nan


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of a proportion: honest for few trials and near 0 and 1."""
    if trials == 0:
        return (math.nan, math.nan)
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return ((centre - spread) / scale, (centre + spread) / scale)


class Stopwatch:
    """Splits wall-clock time into phases: each lap adds the time since the last one to a phase."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self._last = timer.now()

    def lap(self, phase: str) -> None:
        now = timer.now()
        self.seconds[phase] += now - self._last
        self._last = now


def merge(traces: Iterable[Trace]) -> Trace:
    """Several traces as one, for statistics over many requests (of one drafter and coupling)."""
    merged = Trace()
    for trace in traces:
        merged.drafter, merged.coupling = trace.drafter, trace.coupling
        merged.engine, merged.dtype, merged.graphs = trace.engine, trace.dtype, merged.graphs or trace.graphs
        merged.endings.extend(trace.endings)
        merged.exact = merged.exact and trace.exact
        merged.lenience = min(merged.lenience, trace.lenience)
        merged.records.extend(trace.records)
        merged.runs += trace.runs
        merged.levels = add_levels(merged.levels, trace.levels)
        merged.drafter_error = merged.drafter_error or trace.drafter_error
        for phase, seconds in trace.seconds.items():
            merged.seconds[phase] += seconds
    return merged


def add_levels(ours: tuple[Level, ...], theirs: tuple[Level, ...]) -> tuple[Level, ...]:
    """The numbers of two calls, level by level; a call without levels has nothing to add."""
    if not ours or not theirs:
        return ours or theirs
    return tuple(
        Level(
            a.model, a.drafter, a.runs + b.runs, a.drafted + b.drafted, a.examined + b.examined,
            a.accepted + b.accepted, {phase: a.seconds[phase] + b.seconds[phase] for phase in a.seconds},
        )
        for a, b in zip(ours, theirs, strict=True)
    )  # fmt: skip
