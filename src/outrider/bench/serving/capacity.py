"""What many replicas would do, predicted from the measured curve of one.

Replicas share nothing but the router in front of them, so R replicas under L clients are R times one replica under
L / R clients: rates add up, latencies stay. What this leaves out: a router that spreads requests unevenly, and replicas
that share cores or memory bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.errors import BadOption, require

KNEE = 0.9
"""Share of the highest throughput that is reached at the knee: more clients wait longer and gain little."""

GRID = 16
"""Steps between two measured loads in the search for the highest rate within a latency."""


@dataclass(frozen=True)
class Operating:
    """How a server does at a load."""

    load: float  # clients, each with one request at a time
    requests_per_second: float
    tokens_per_second: float
    first_token_p95: float  # seconds
    whole_p95: float

    def times(self, replicas: int) -> Operating:
        """So many of it, each under this load."""
        return Operating(
            self.load * replicas, self.requests_per_second * replicas, self.tokens_per_second * replicas,
            self.first_token_p95, self.whole_p95,
        )  # fmt: skip


@dataclass(frozen=True)
class LoadCurve:
    """Measured points of one replica, by load."""

    points: Sequence[Operating]

    @staticmethod
    def read(results: Mapping[str, Any], way: str = "speculative") -> LoadCurve:
        """Of what ``outrider bench serve --loads`` has written."""
        try:
            found = [
                Operating(
                    point["load"], point[way]["requests_per_second"], point[way]["tokens_per_second"],
                    point[way]["first_token"]["p95"], point[way]["whole"]["p95"],
                )
                for point in results["points"]
            ]  # fmt: skip
            points = sorted((one for one in found if one.requests_per_second > 0), key=lambda one: one.load)
        except (KeyError, TypeError):
            raise BadOption(
                f"no curve of way {way!r} in these results; name a file that `outrider bench serve --loads` wrote"
            ) from None
        require(bool(points), "the results have no point that was measured; measure them again")
        return LoadCurve(points)

    def at(self, load: float) -> Operating:
        """Between measured loads: in between. Below the first: so often as somebody asks. Beyond the last: no more
        throughput, and everybody waits for those before him (Little's law)."""
        first, last = self.points[0], self.points[-1]
        if load <= first.load:
            share = load / first.load
            return Operating(
                load, first.requests_per_second * share, first.tokens_per_second * share, first.first_token_p95,
                first.whole_p95,
            )  # fmt: skip
        if load >= last.load:
            more = (load - last.load) / last.requests_per_second
            return Operating(
                load, last.requests_per_second, last.tokens_per_second, last.first_token_p95 + more,
                last.whole_p95 + more,
            )  # fmt: skip
        low, high = next((a, b) for a, b in zip(self.points, self.points[1:], strict=False) if load <= b.load)
        share = (load - low.load) / (high.load - low.load)
        return Operating(
            load,
            low.requests_per_second + share * (high.requests_per_second - low.requests_per_second),
            low.tokens_per_second + share * (high.tokens_per_second - low.tokens_per_second),
            low.first_token_p95 + share * (high.first_token_p95 - low.first_token_p95),
            low.whole_p95 + share * (high.whole_p95 - low.whole_p95),
        )

    @property
    def knee(self) -> Operating:
        """The smallest measured load with nearly the highest throughput."""
        most = max(point.tokens_per_second for point in self.points)
        return next(point for point in self.points if point.tokens_per_second >= KNEE * most)

    def fastest_within(self, within: float | None) -> Operating:
        """The highest request rate whose 95th percentile of whole latency is within so many seconds."""
        loads = [self.points[0].load]
        for low, high in zip(self.points, self.points[1:], strict=False):
            loads += [low.load + (high.load - low.load) * step / GRID for step in range(1, GRID + 1)]
        allowed = [one for one in map(self.at, loads) if within is None or one.whole_p95 <= within]
        least = self.points[0].whole_p95
        require(bool(allowed), f"within must be at least {least:.2f} s, which a request alone takes, got {within}")
        return max(allowed, key=lambda one: one.requests_per_second)


def predict(curve: LoadCurve, replicas: int, load: float | None = None) -> Operating:
    """So many replicas under so many clients in all; None: each at its knee."""
    require(replicas >= 1, f"replicas must be at least 1, got {replicas}")
    return (curve.knee if load is None else curve.at(load / replicas)).times(replicas)


def replicas_for(curve: LoadCurve, rate: float, within: float | None = None) -> int:
    """Replicas that answer so many requests a second, 95 % of them within so many seconds."""
    require(rate > 0, f"rate must be above 0 requests per second, got {rate}")
    return math.ceil(rate / curve.fastest_within(within).requests_per_second)


def compare(curve: LoadCurve, measured: LoadCurve, replicas: int) -> list[dict[str, Any]]:
    """Measured loads of several replicas beside what the curve of one predicts for them."""
    rows = []
    for found in measured.points:
        expected = predict(curve, replicas, found.load)
        rows.append(
            {
                "load": found.load, "predicted_tokens_per_second": expected.tokens_per_second,
                "measured_tokens_per_second": found.tokens_per_second,
                "measured_over_predicted": found.tokens_per_second / expected.tokens_per_second,
                "predicted_whole_p95": expected.whole_p95, "measured_whole_p95": found.whole_p95,
            }
        )  # fmt: skip
    return rows
