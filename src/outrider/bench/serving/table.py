"""Throughput and latency against load, with and without speculation: the ways take turns in one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.bench.serving.client import Address, Requests
from outrider.bench.serving.load import Clients, Load, LoadRun, Say, figures
from outrider.errors import require

WAYS = {"plain": False, "speculative": True}
ALONE = 1
"""The load that the others are compared with: one request after the other."""


@dataclass(frozen=True)
class TablePlan:
    """Which loads, and how often each is measured."""

    loads: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)
    turns: int = 3
    requests: int = 24  # per turn and load, at least

    def __post_init__(self) -> None:
        require(bool(self.loads) and min(self.loads) >= 1, f"loads must be numbers from 1 on, got {list(self.loads)}")
        require(self.turns >= 1, f"turns must be at least 1, got {self.turns}")
        require(self.requests >= 1, f"requests must be at least 1, got {self.requests}")

    @property
    def all_loads(self) -> list[int]:
        return sorted({ALONE, *self.loads})

    def count(self, load: int, prompts: int) -> int:
        """Requests of a turn: two for every client, in whole rounds over the prompts, so that every load has the same
        mixture."""
        return -(-max(self.requests, 2 * load) // prompts) * prompts


@dataclass
class LoadTable:
    """The runs so far, by load and way."""

    plan: TablePlan
    runs: dict[tuple[int, str], list[LoadRun]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)  # by number of the request: the first that came
    compared: int = 0
    differ: list[int] = field(default_factory=list)
    interrupted: bool = False

    def add(self, load: int, way: str, run: LoadRun) -> None:
        self.runs.setdefault((load, way), []).append(run)
        for answer in run.complete:
            if answer.number not in self.texts:
                self.texts[answer.number] = answer.text
            else:
                self.compared += 1
                if self.texts[answer.number] != answer.text:
                    self.differ.append(answer.number)

    def to_json(self) -> dict[str, Any]:
        """The points that are complete in both ways, and how many texts were the same at every load and in both."""
        points = [self._point(load) for load in self.plan.all_loads if all((load, way) in self.runs for way in WAYS)]
        return {
            "points": points,
            "texts": {"compared": self.compared, "same": self.compared - len(self.differ), "differ": self.differ},
            "interrupted": self.interrupted,
        }

    def _point(self, load: int) -> dict[str, Any]:
        point: dict[str, Any] = {"load": load}
        for way in WAYS:
            point[way] = figures(self.runs[load, way])
            point[f"{way}_over_one_by_one"] = self._ratio((load, way), (ALONE, way))
        point["speculative_over_plain"] = self._ratio((load, "speculative"), (load, "plain"))
        return point

    def _ratio(self, above: tuple[int, str], below: tuple[int, str]) -> dict[str, Any] | None:
        """Of median tokens per second, with the quartiles of single turns."""
        pairs = zip(self.runs.get(above, []), self.runs.get(below, []), strict=False)  # the last turn may be half done
        speeds = [(_speed(one), _speed(other)) for one, other in pairs if _speed(other)]
        if not speeds:
            return None
        single = [one / other for one, other in speeds]
        low, _, high = statistics.quantiles(single, n=4, method="inclusive") if len(single) > 1 else single * 3
        medians = [statistics.median(side) for side in zip(*speeds, strict=True)]
        return {"ratio": medians[0] / medians[1], "quartiles": [low, high], "turns": single, "n": len(single)}


def _speed(run: LoadRun) -> float:
    return run.tokens / run.seconds if run.seconds else 0.0


def measure(
    address: Address, requests: Requests, plan: TablePlan, say: Say, save: Callable[[LoadTable], object]
) -> LoadTable:
    """Every load in both ways, turn by turn; one round over the prompts beforehand, which is not counted. ``save`` is
    given the table after every run. After Ctrl-C: the runs that were finished."""
    table = LoadTable(plan)
    warm = Clients(address, requests, Load(4, requests=len(requests.prompts))).measure(say)
    table.interrupted = warm.interrupted
    for turn, load, way in _order(plan):
        if table.interrupted:
            break
        asked = replace(requests, speculation=WAYS[way])
        clients = Clients(address, asked, Load(load, requests=plan.count(load, len(requests.prompts))))

        def told(line: str, turn: int = turn, way: str = way) -> object:
            return say(f"turn {turn + 1} of {plan.turns}, {way}, {line}")

        run = clients.measure(told)
        if run.interrupted:
            table.interrupted = True
        else:
            table.add(load, way, run)
            save(table)
    return table


def _order(plan: TablePlan) -> Iterator[tuple[int, int, str]]:
    """Turn, load and way: the ways one behind the other at each load, in the other order in the next turn."""
    for turn in range(plan.turns):
        for place, load in enumerate(plan.all_loads):
            for way in list(WAYS)[:: 1 if (turn + place) % 2 == 0 else -1]:
                yield turn, load, way
