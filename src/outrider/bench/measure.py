"""Speculative against plain decoding on the same prompts in one run: acceptance, cost and speed-up with intervals.

Several drafts and several temperatures share the plain runs they are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import chain
from statistics import quantiles
from typing import Any

from outrider.bench.best_single import AutoRow, auto_rows
from outrider.bench.cells import NARROW, PLAIN, Cell
from outrider.bench.intervals import Interval, bootstrap, total_ratio
from outrider.core.traits import traits_of
from outrider.decoding.loop import bucket
from outrider.decoding.step_runner import Rule
from outrider.drafters import Nothing
from outrider.errors import require
from outrider.llm import LLM
from outrider.options import Options
from outrider.output import Output
from outrider.theory import oracle_tokens
from outrider.trace import PHASES, Stats, Trace, finite, merge, ratio, summarise


@dataclass(frozen=True)
class MeasureSettings:
    """What every prompt is run with."""

    temperatures: tuple[float, ...] = (0.0,)
    repeats: int = 1  # timed runs of each prompt and way of decoding; the median of them counts
    options: Mapping[str, Any] = field(default_factory=dict)  # of every call
    gammas: tuple[int | str, ...] = ()  # each with every draft; none: the gamma of the options

    def __post_init__(self) -> None:
        for name, values in (("gamma", self.gammas), ("temperatures", self.temperatures)):
            given = ", ".join(map(str, values))
            require(len(set(values)) == len(values), f"{name}: values must differ from each other, got {given}")
        require(self.repeats >= 1, f"repeats must be at least 1, got {self.repeats}")
        require(len(self.temperatures) > 0, "temperatures is empty; name at least one")


@dataclass(frozen=True)
class MeasuredRow:
    """A draft and gamma at one temperature on one task, or on all of them. Intervals: 95 %, bootstrap over prompts."""

    draft: str
    gamma: int | str
    temperature: float
    task: str
    prompts: int
    repeats: int
    stats: Stats  # of the speculative runs, each prompt counted once
    alpha_interval: Interval
    plain_tokens_per_second: float
    narrow_tokens_per_second: float
    tokens_per_second: float
    speedup: float  # against plain decoding with the same shapes; totals over totals
    speedup_interval: Interval
    speedup_middle: float  # median over prompts
    speedup_quartiles: Interval  # half of the prompts lie between
    speedup_narrow: float  # against unpadded plain decoding
    speedup_narrow_interval: Interval
    cost: float  # c: seconds per guess over seconds per plain step of the same prompts
    oracle_tokens: float  # 1 / (1 - alpha): tokens per run if gamma were right every time, an upper bound
    identical: int  # prompts whose text equals plain decoding's

    def to_json(self) -> dict[str, Any]:
        return {k: finite(v) for k, v in vars(self).items() if k != "stats"} | {"stats": self.stats.to_json()}


def measure(
    drafts: Mapping[str, LLM],
    tasks: Mapping[str, Sequence[Any]],
    settings: MeasureSettings,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> Figures:
    """Run every prompt with every draft and gamma and plainly, one after the other, the order turning from run to run.

    All the engines must be on one target. Rows: per temperature, draft and gamma, the tasks and then ``all``. Ctrl-C
    ends it: rows are then of the prompts that were finished.
    """
    ways = _ways(drafts, settings.gammas or (settings.options.get("gamma", "auto"),))
    warm_up = _options_for(ways[PLAIN], settings.options) | {"max_new_tokens": 8}
    for way in ways.values():  # not counted
        way.engine.generate(next(iter(tasks.values()))[0], **warm_up)
    total, done = sum(map(len, tasks.values())) * len(settings.temperatures), 0
    rows: list[MeasuredRow] = []
    choices: list[AutoRow] = []
    texts: dict[float, list[Mapping[str, Cell]]] = {}
    for temperature in settings.temperatures:
        options = {**settings.options, "temperature": temperature}
        results: dict[str, list[dict[str, Cell]]] = {}
        try:
            progress(f"every text once, temperature {temperature:g}", done / total)
            _capture(ways, tasks, options)
            for task, prompts in tasks.items():
                for prompt in prompts:
                    cells = timed_text(ways, prompt, options, settings.repeats, done)
                    results.setdefault(task, []).append(cells)
                    texts.setdefault(temperature, []).append(cells)
                    done += 1
                    progress(f"{task}, temperature {temperature:g}", done / total)
        except KeyboardInterrupt:
            found = _rows(ways, options, results), _choices(ways, temperature, results)
            return Figures([*rows, *found[0]], done, total, texts, [*choices, *found[1]], interrupted=True)
        rows += _rows(ways, options, results)
        choices += _choices(ways, temperature, results)
    return Figures(rows, done, total, texts, choices)


def _capture(ways: Mapping[str, Way], tasks: Mapping[str, Sequence[Any]], options: Mapping[str, Any]) -> None:
    """Where steps are CUDA graphs, every text once before it is timed: a graph is captured when a step is first run."""
    for way in (way for way in ways.values() if way.engine.graphs):
        engine = copy(way.engine)
        engine.memory = None  # what is written here is nobody's output
        for prompt in chain(*tasks.values()):
            engine.generate(prompt, **_options_for(way, options))


@dataclass(frozen=True)
class Figures:
    """What was measured: all of it, or what was finished before Ctrl-C."""

    rows: list[MeasuredRow]
    done: int  # prompts, counted once for each temperature
    wanted: int
    texts: Mapping[float, Sequence[Mapping[str, Cell]]]  # by temperature: each prompt in every way, see ``way_name``
    choices: list[AutoRow] = field(default_factory=list)  # "auto" beside the best single draft, where both were run
    interrupted: bool = False


@dataclass(frozen=True)
class Way:
    """A way of decoding: an engine with its draft, and how many guesses it makes. Plainly: no draft."""

    engine: LLM
    draft: str | None = None
    gamma: Any = None  # what the option of that name takes


def _rows(
    ways: Mapping[str, Way], options: Mapping[str, Any], results: dict[str, list[dict[str, Cell]]]
) -> list[MeasuredRow]:
    if not results:
        return []
    groups = _with_all(results)
    rows: list[MeasuredRow] = []
    for name, way in ways.items():
        if way.draft is None:
            continue
        known = _phases_are_known(way.engine)
        cost = None if known else _timed_cost(way.engine, _options_for(way, options), groups["all"][0][name])
        rows += [
            measured_row(way, name, float(options["temperature"]), task, cells, cost) for task, cells in groups.items()
        ]
    return rows


def _with_all(results: Mapping[str, list[dict[str, Cell]]]) -> dict[str, list[dict[str, Cell]]]:
    return {**results, "all": [cells for group in results.values() for cells in group]}


def _choices(
    ways: Mapping[str, Way], temperature: float, results: Mapping[str, list[dict[str, Cell]]]
) -> list[AutoRow]:
    drafting = {name: (way.draft, way.gamma) for name, way in ways.items() if way.draft is not None}
    return [
        row
        for task, cells in (_with_all(results) if results else {}).items()
        for row in auto_rows(temperature, task, {way: [c[name].work for c in cells] for name, way in drafting.items()})
    ]


def _phases_are_known(engine: LLM) -> bool:
    """A replayed step is one launch, and on a GPU the clock sees work being launched, not done."""
    return not engine.graphs and engine.target.model.device.type == "cpu"


def _timed_cost(engine: LLM, options: Mapping[str, Any], cell: Cell) -> float:
    """c from a guess and a plain step timed by themselves, where a trace cannot tell."""
    from outrider.bench.gpu import StepSetting
    from outrider.bench.parts import cost

    decoder = engine.decoder(Options.parse(dict(options)))
    gamma = decoder.gamma if isinstance(decoder.gamma, int) else traits_of(decoder.drafter).gamma or 4
    gamma = min(gamma, engine.width - 1)
    if gamma == 0 or isinstance(decoder.drafter, Nothing):
        return math.nan
    model, context = engine.target.transformers_model, max(r.position for r in cell.outputs[0].trace.records)
    setting = StepSetting(model, model, context, bucket(context + 256), engine.width, gamma)
    return cost(setting, decoder.drafter, Rule(decoder.verifier, decoder.sampling), engine.graphs)


def _ways(drafts: Mapping[str, LLM], gammas: Sequence[Any]) -> dict[str, Way]:
    require(len(drafts) > 0, "drafts is empty; name at least one")
    first = next(iter(drafts.values()))
    taken = sorted({PLAIN, NARROW} & drafts.keys())
    require(
        not taken, f"draft {' '.join(taken)!r} has the name of what it is compared with; write it with ./ before it"
    )
    require(all(d.target is first.target for d in drafts.values()), "drafts are compared on one target only")
    wide, narrow = (
        LLM(first.target, Nothing(), width=first.width, slots=1, exact=e, graphs=first.graphs)
        for e in (first.exact, False)
    )
    guessing = {way_name(name, g): Way(engine, name, g) for name, engine in drafts.items() for g in gammas}
    return {PLAIN: Way(wide), NARROW: Way(narrow), **guessing}


def way_name(draft: str, gamma: int | str) -> str:
    """What a draft with a gamma is called among the ways of decoding."""
    return f"{draft}, gamma {gamma}"


def timed_text(
    ways: Mapping[str, Way], prompt: Any, options: Mapping[str, Any], repeats: int, turn: int
) -> dict[str, Cell]:
    """One prompt in every way. Whatever slows the machine down for a while hits all of them alike."""
    outputs: dict[str, list[Output]] = {name: [] for name in ways}
    names = list(ways)
    for repeat in range(repeats):
        first = (turn + repeat) % len(names)
        for name in names[first:] + names[:first]:
            outputs[name].append(ways[name].engine.generate(prompt, **_options_for(ways[name], options)))
    return {name: Cell(tuple(found)) for name, found in outputs.items()}


def _options_for(way: Way, options: Mapping[str, Any]) -> dict[str, Any]:
    """Plain decoding is exact and has no draft: what concerns guesses is left out."""
    if way.draft is not None:
        return {**options, "gamma": way.gamma}
    return {k: v for k, v in options.items() if k != "lenience" and not k.startswith("draft_")}


def measured_row(
    way: Way, name: str, temperature: float, task: str, cells: Sequence[Mapping[str, Cell]], cost: float | None
) -> MeasuredRow:
    """``cost``: c, where it was timed apart."""
    ours, plain, narrow = ([c[key] for c in cells] for key in (name, PLAIN, NARROW))
    stats = summarise(merge(c.outputs[0].trace for c in ours))
    timed = summarise(merge(o.trace for c in ours for o in c.outputs))
    each = [ratio(_speed([a]), _speed([b])) for a, b in zip(ours, plain, strict=True)]
    low, middle, high = quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
    return MeasuredRow(
        draft=str(way.draft),
        gamma=way.gamma if isinstance(way.gamma, int) else str(way.gamma),
        temperature=temperature,
        task=task,
        prompts=len(cells),
        repeats=len(ours[0].outputs),
        stats=stats,
        alpha_interval=bootstrap([c.shared for c in ours]),
        plain_tokens_per_second=_speed(plain),
        narrow_tokens_per_second=_speed(narrow),
        tokens_per_second=_speed(ours),
        speedup=ratio(_speed(ours), _speed(plain)),
        speedup_interval=bootstrap([c.work for c in ours], [c.work for c in plain]),
        speedup_middle=middle,
        speedup_quartiles=(low, high),
        speedup_narrow=ratio(_speed(ours), _speed(narrow)),
        speedup_narrow_interval=bootstrap([c.work for c in ours], [c.work for c in narrow]),
        cost=_traced_cost(timed, merge(o.trace for c in plain for o in c.outputs)) if cost is None else cost,
        oracle_tokens=oracle_tokens(min(stats.alpha, 1.0)) if stats.examined else math.nan,  # rounding may exceed 1
        identical=sum(a.tokens == b.tokens for a, b in zip(plain, ours, strict=True)),
    )


def _traced_cost(ours: Stats, plain: Trace) -> float:
    """Definition 3.7, with a plain step as a run of M_p: not a run that checks guesses, which is wider.

    What a call of the drafter takes however few guesses it makes is shared by them: c falls as gamma grows.
    """
    step = ratio(sum(plain.seconds[phase] for phase in PHASES), plain.runs)
    return ratio(ratio(ours.seconds["draft"], ours.drafted), step)


def _speed(cells: Sequence[Cell]) -> float:
    """Tokens over seconds, summed first: a mean of ratios would favour short texts."""
    return total_ratio([c.work for c in cells])
