"""What many replicas would do, from curves whose answer is known; and the command around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outrider.bench.serving.capacity import LoadCurve, Operating, compare, predict, replicas_for
from outrider.cli.main import app
from outrider.errors import BadOption


def queueing(slots: int, loads: tuple[int, ...] = (1, 2, 4, 8, 16, 32), replicas: int = 1) -> LoadCurve:
    """Servers whose slots each answer one request of 10 tokens a second, whatever the others do."""

    def at(load: int) -> Operating:
        rate = min(load, slots * replicas)
        return Operating(load, rate, 10.0 * rate, max(0.0, load / rate - 1) + 0.1, load / rate)

    return LoadCurve([at(load) for load in loads])


def test_replicas_multiply_rates_and_keep_latencies() -> None:
    one = queueing(slots=4)
    assert one.knee.load == 4 and one.knee.requests_per_second == 4
    for count in (1, 2, 10, 100, 1000):
        assert predict(one, count) == Operating(4 * count, 4 * count, 40 * count, 0.1, 1.0)
        assert predict(one, count, load=8 * count).whole_p95 == 2.0
    assert predict(one, 10, load=5).requests_per_second == 5  # fewer clients than replicas: some are idle
    assert predict(one, 1, load=3).tokens_per_second == 30  # between measured loads
    assert predict(one, 1, load=64) == Operating(64, 4, 40, 7.1 + 8, 8 + 8)  # beyond them: Little's law


def test_two_replicas_measured_are_two_predicted() -> None:
    """Catches a comparison at the load of one replica instead of that of all."""
    rows = compare(queueing(slots=4), queueing(slots=4, replicas=2, loads=(2, 8, 16, 64)), replicas=2)
    assert [row["measured_over_predicted"] for row in rows] == [1.0] * 4
    assert [row["predicted_whole_p95"] for row in rows] == [row["measured_whole_p95"] for row in rows] == [1, 1, 2, 8]


def test_replicas_for_a_rate_and_a_latency() -> None:
    slower = LoadCurve(
        [Operating(1, 1, 10, 0.1, 1.0), Operating(2, 1.5, 15, 0.1, 2.0), Operating(4, 1.6, 16, 0.2, 4.0)]
    )
    assert replicas_for(slower, 16) == 10 and replicas_for(slower, 16.1) == 11
    assert replicas_for(slower, 15, within=2.0) == 10 and replicas_for(slower, 10, within=1.0) == 10
    assert slower.fastest_within(1.5).requests_per_second == pytest.approx(1.25)
    with pytest.raises(BadOption, match=r"within must be at least 1.00 s, which a request alone takes, got 0.5"):
        replicas_for(slower, 10, within=0.5)
    with pytest.raises(BadOption, match="rate must be above 0"):
        replicas_for(slower, 0)


def results(curve: LoadCurve) -> dict[str, Any]:
    """As ``outrider bench serve --loads`` writes them."""

    def point(one: Operating) -> dict[str, Any]:
        found = {
            "requests_per_second": one.requests_per_second, "tokens_per_second": one.tokens_per_second,
            "first_token": {"p95": one.first_token_p95}, "whole": {"p95": one.whole_p95},
        }  # fmt: skip
        return {"load": one.load, "plain": found, "speculative": found}

    return {"points": [point(one) for one in curve.points]}


def test_the_command(tmp_path: Path) -> None:
    for name, curve in (("one", queueing(4)), ("two", queueing(4, replicas=2))):
        (tmp_path / f"{name}.json").write_text(json.dumps(results(curve)))
    words = ["bench", "capacity", str(tmp_path / "one.json"), "--compare", str(tmp_path / "two.json")]
    words += ["--rate", "21", "--within", "1", "--replicas", "2,1000"]
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert [row["replicas"] for row in found["predicted"]] == [2, 1000] and found["needed"]["replicas"] == 6
    assert [row["measured_over_predicted"] for row in found["compared"]["loads"]] == [1.0] * 6
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0 and "21 answers per second, 95 % of them within 1 s: 6 replicas" in shown.output
    (tmp_path / "other.json").write_text("{}")
    for wrong, says in (("other", "no curve of way 'plain'"), ("none", "cannot be read")):
        given = ["bench", "capacity", str(tmp_path / f"{wrong}.json"), "--way", "plain"]
        assert says in str(CliRunner().invoke(app, given).exception)
