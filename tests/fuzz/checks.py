"""What must hold in every world: the exact distribution, the same text, and rows that know nothing of each other."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence

import torch
from reference import Outcome
from worlds import World

from outrider.decoding.loop import Request
from outrider.errors import NumericalError
from outrider.testing.distribution import SameDistribution, same_distribution
from outrider.trace import Trace

FALSE_FAIL = 1e-13
"""A right sampler fails one distribution check in so many: a run of ten thousand fails once in 1e9."""

SUSPICIOUS = 1e-2
"""A first sample this unlikely is drawn again, larger and with other seeds; only the second can fail a distribution."""


class Found(AssertionError):
    """A world in which something that must hold does not."""

    def __init__(self, world: World, what: str) -> None:
        super().__init__(f"{what}\nin {world!r}")


def run(world: World, requests: Sequence[Request], slots: int, plain: bool = False) -> list[Outcome]:
    """Tokens and reason of every request, by the product's own loop."""
    trace, rows = Trace("fuzz"), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a drafter that fails is said to; here some are made to
        try:
            for event in world.decoder(slots, plain).stream(requests, trace):
                rows[event.index] = event.row
        except NumericalError:
            if len(rows) < len(requests):
                raise
    if trace.drafter_error is not None and "hostile: this call fails" not in trace.drafter_error:
        raise Found(world, f"the drafter was left out: {trace.drafter_error}")
    return [(tuple(rows[i].tokens), str(rows[i].finish_reason)) for i in range(len(requests))]


def check_texts(world: World, rows: int = 4) -> None:
    """Each token has a probability above zero; what a seed alone decides is the text of plain decoding."""
    requests = [world.request(world.first_seed + i) for i in range(rows)]
    found = run(world, requests, world.slots)
    for outcome in found:
        _check_possible(world, outcome)
    if run(world, requests, world.slots) != found:
        raise Found(world, "the same seeds gave another text the second time")
    if world.one_text and (plain := run(world, requests, world.slots, plain=True)) != found:
        raise Found(world, f"plain decoding gives {plain}, with the drafter it is {found}")


def _check_possible(world: World, outcome: Outcome) -> None:
    tokens, reason = outcome
    for k, token in enumerate(tokens):
        distribution = world.reference.distribution(world.prompt, tokens[:k])
        if distribution is None:
            raise Found(world, f"{outcome}: no token is possible after {tokens[:k]}")
        if world.lenience < 1 and world.sampling.greedy:
            soft = world.reference.soft(world.prompt, tokens[:k], 1.0)
            assert soft is not None
            if soft[token] < world.lenience * max(soft) * (1 - 1e-6):
                raise Found(world, f"{outcome}: token {token} after {tokens[:k]} is less likely than lenience allows")
        elif distribution[token] == 0:
            raise Found(world, f"{outcome}: token {token} after {tokens[:k]} has probability zero")
    expected = world.reference.ends.reason(tokens) if tokens else None
    if reason != (expected or "error") or (reason == "error" and world.reference.distribution(world.prompt, tokens)):
        raise Found(world, f"{outcome} should end by {expected}")


def check_neighbours(world: World, rows: int = 4) -> None:
    """A row alone, in one slot, is the row beside others, in any slot, among any number of slots."""
    if not world.one_text and world.drafter.shared:
        return  # a drafter that goes by the number of calls tells rows of each other, by design of this test
    others = [world.request(a.seed, a.prompt, a.new) for a in world.beside]
    own = [world.request(world.first_seed + i) for i in range(rows)]
    alone = run(world, own, 1)  # one after another
    mixed = [*own[::2], *others, *own[1::2]]
    for slots in (world.slots + 1, len(mixed) + 1):
        for requests in (mixed, mixed[::-1]):
            found = dict(zip(map(id, requests), run(world, requests, slots), strict=True))
            for request, expected in zip(own, alone, strict=True):
                if found[id(request)] != expected:
                    raise Found(
                        world,
                        f"seed {request.seed}: alone it is {expected}, beside others in {slots} slots "
                        f"{found[id(request)]}",
                    )


def check_distribution(world: World, rows: int = 300, more: int = 4000) -> None:
    """The texts follow the enumerated distribution; where they seem not to, more rows with other seeds decide."""
    outcomes = _sample(world, 0, rows)
    for outcome in set(outcomes):
        _check_possible(world, outcome)
    if not world.verifier.exact:
        return
    distribution = world.reference.texts(world.prompt)
    assert abs(math.fsum(distribution.values()) - 1) < 1e-9
    first = _tested(outcomes, distribution, SUSPICIOUS)
    if first.statistic <= first.threshold:
        return
    outcomes = _sample(world, rows, more)
    tested = _tested(outcomes, distribution, FALSE_FAIL)
    if tested.statistic > tested.threshold:
        seen = Counter(outcomes)
        far = sorted(distribution, key=lambda o: -abs(seen[o] / more - distribution[o]))[:4]
        listed = ", ".join(f"{o}: {seen[o] / more:.3f} for {distribution[o]:.3f}" for o in far)
        raise Found(world, f"not the distribution: {tested.statistic:.0f} above {tested.threshold:.0f}; {listed}")


def _sample(world: World, first: int, rows: int) -> list[Outcome]:
    """Rows with different seeds, neighbours among them."""
    requests = [world.request(world.first_seed + first + i) for i in range(rows)]
    others = [world.request(a.seed, a.prompt, a.new) for a in world.beside]
    slots = rows if world.slots > 1 else max(1, rows // 2)
    return run(world, [*others, *requests], slots + len(others))[len(others) :]


def _tested(outcomes: Sequence[Outcome], distribution: dict[Outcome, float], rate: float) -> SameDistribution:
    seen = Counter(outcomes)
    counts = torch.tensor([float(seen[o]) for o in distribution])
    return same_distribution(counts, torch.tensor([*distribution.values()], dtype=torch.float64), false_fail_rate=rate)
