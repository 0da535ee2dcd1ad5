"""Speculative against plain decoding on the same prompts in one run: acceptance, cost and speed-up with intervals."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.drafters import Nothing
from outrider.llm import LLM, Output
from outrider.trace import PHASES, Stats, finite, merge, ratio, summarise


@dataclass
class Arms:
    """Every output of every way of decoding, prompt by prompt, for one task."""

    speculative: list[Output] = field(default_factory=list)
    plain: list[Output] = field(default_factory=list)  # same shapes, hence the same text
    narrow: list[Output] = field(default_factory=list)  # plain and unpadded: the fastest plain decoding there is

    def add(self, other: Arms) -> None:
        for name in ("speculative", "plain", "narrow"):
            getattr(self, name).extend(getattr(other, name))


@dataclass(frozen=True)
class Row:
    """One task, or all of them."""

    task: str
    prompts: int
    stats: Stats  # of the speculative runs
    plain_tokens_per_second: float
    narrow_tokens_per_second: float
    speedup: float  # against plain decoding with the same shapes; totals over totals
    speedup_interval: tuple[float, float]  # 95 %, bootstrap over prompts
    speedup_narrow: float  # against unpadded plain decoding
    cost: float  # c: seconds per guess over seconds per target run
    identical: int  # prompts whose text equals plain decoding's

    def to_json(self) -> dict[str, Any]:
        return {k: finite(v) for k, v in vars(self).items() if k != "stats"} | {"stats": self.stats.to_json()}


def measure(
    llm: LLM, tasks: dict[str, Sequence[Any]], options: dict[str, Any], progress: Callable[[str, float], None]
) -> list[Row]:
    """Run every prompt three ways, one after the other, the order turning from prompt to prompt."""
    plain = LLM(llm.target, Nothing(), width=llm.width, slots=1, exact=llm.exact, graphs=llm.graphs)
    narrow = LLM(llm.target, Nothing(), width=llm.width, slots=1, exact=False, graphs=llm.graphs)
    engines = {"speculative": llm, "plain": plain, "narrow": narrow}
    asked = {name: options if name == "speculative" else _plainly(options) for name in engines}
    for name, engine in engines.items():  # warm-up, not counted
        engine.generate(next(iter(tasks.values()))[0], **{**asked[name], "max_new_tokens": 8})
    total, done = sum(len(p) for p in tasks.values()), 0
    results: dict[str, Arms] = {}
    for task, prompts in tasks.items():
        for prompt in prompts:
            order = list(engines)
            order = order[done % 3 :] + order[: done % 3]
            for name in order:
                output = engines[name].generate(prompt, **asked[name])
                getattr(results.setdefault(task, Arms()), name).append(output)
            done += 1
            progress(task, done / total)
    everything = Arms()
    for arms in results.values():
        everything.add(arms)
    return [*(_row(task, arms) for task, arms in results.items()), _row("all", everything)]


def _plainly(options: dict[str, Any]) -> dict[str, Any]:
    """The same without what concerns guesses: plain decoding is exact and has no draft."""
    return {k: v for k, v in options.items() if k != "lenience" and not k.startswith("draft_")}


def _row(task: str, arms: Arms) -> Row:
    stats = summarise(merge(o.trace for o in arms.speculative))
    return Row(
        task=task,
        prompts=len(arms.plain),
        stats=stats,
        plain_tokens_per_second=_speed(arms.plain),
        narrow_tokens_per_second=_speed(arms.narrow),
        speedup=ratio(_speed(arms.speculative), _speed(arms.plain)),
        speedup_interval=_bootstrap(arms),
        speedup_narrow=ratio(_speed(arms.speculative), _speed(arms.narrow)),
        cost=ratio(
            ratio(stats.seconds["draft"], stats.drafted), ratio(stats.seconds["target"], stats.runs)
        ),
        identical=sum(a.tokens == b.tokens for a, b in zip(arms.plain, arms.speculative, strict=True)),
    )  # fmt: skip


def _seconds(output: Output) -> float:
    return sum(output.trace.seconds[phase] for phase in PHASES)


def _speed(outputs: Iterable[Output]) -> float:
    """Tokens over seconds, summed first: a mean of ratios would favour short texts."""
    outputs = list(outputs)
    return ratio(sum(len(o.tokens) for o in outputs), sum(map(_seconds, outputs)))


def _bootstrap(arms: Arms, rounds: int = 1000) -> tuple[float, float]:
    """Prompts drawn again with replacement: how much the speed-up depends on which prompts were asked."""
    chance = random.Random(0)
    count = len(arms.plain)
    ratios = []
    for _ in range(rounds):
        drawn = [chance.randrange(count) for _ in range(count)]
        ratios.append(ratio(_speed(arms.speculative[i] for i in drawn), _speed(arms.plain[i] for i in drawn)))
    ratios.sort()
    return ratios[int(0.025 * rounds)], ratios[int(0.975 * rounds)]
