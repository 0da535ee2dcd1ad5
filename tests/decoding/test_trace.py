"""Statistics by their definitions, on a trace written by hand, and traces that survive a file."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from torch import Tensor

from helpers import run
from outrider.beam.search import beam_search
from outrider.cli.render import stats_table
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import ModelDrafter, Nothing
from outrider.models.toy import ToyModel, ToySession
from outrider.options import Options
from outrider.runtime import timer
from outrider.trace import Ending, Record, Stopwatch, Trace, merge, summarise, wilson


def by_hand() -> Trace:
    """Row 0: 2 of 3 kept; none proposed; all 3 kept, the text ending after 2. Row 1: the first rejected."""
    records = [
        Record(0, 5, (1, 2, 3), 2, 9, (0.5, 0.7, 0.1), 3),
        Record(1, 2, (4, 4), 0, 6, (0.2, 0.9), 1),
        Record(0, 8, (), 0, 7, (), 1),
        Record(0, 9, (1, 1, 1), 3, 8, (1.0, 0.6, 0.4), 2),
    ]
    seconds = {"draft": 1.0, "target": 2.0, "accept": 0.5, "host": 0.5, "prefill": 10.0}
    return Trace("copy", "maximal", True, records, runs=3, seconds=seconds)


def test_statistics_by_hand() -> None:
    """Catches every statistic that is not what the glossary says."""
    stats = summarise(by_hand())
    assert stats.tokens == 3 + 1 + 1 + 2
    assert stats.runs == 4  # as rows see them: a run that serves two rows counts for both
    assert stats.tokens_per_run == 7 / 4
    assert stats.drafted == 3 + 2 + 0 + 3
    assert stats.examined == 3 + 1 + 0 + 3  # up to and including the first rejection
    assert stats.kept == 2 + 0 + 0 + 3
    assert stats.accepted == 2 + 0 + 0 + 2  # the third guess was kept, but the text had ended
    assert stats.wasted == stats.drafted - stats.accepted == 4
    assert stats.alpha == pytest.approx((0.5 + 0.7 + 0.1 + 0.2 + 1.0 + 0.6 + 0.4) / 7)
    assert stats.alpha_counted == 5 / 7
    assert stats.alpha_interval == wilson(5, 7)
    assert stats.tokens_per_second == 7 / 4.0  # prefill is not decoding
    assert stats.drafter_error is None


def test_rates_are_totals_over_totals() -> None:
    """Catches an average of averages: a long and a short trace together are not their mean."""
    trace = by_hand()
    parts = [trace.for_row(0), trace.for_row(1)]
    assert [len(p.records) for p in parts] == [3, 1]
    merged = summarise(merge(parts))
    assert merged.alpha == pytest.approx(summarise(trace).alpha)
    assert merged.alpha != pytest.approx(sum(summarise(p).alpha for p in parts) / 2)


def test_nothing_to_count_is_nan_and_null() -> None:
    """Catches a division by zero, and NaN in JSON, which no parser takes."""
    stats = summarise(Trace())
    assert math.isnan(stats.alpha)
    assert math.isnan(stats.tokens_per_run)
    text = json.dumps(stats.to_json(), allow_nan=False)
    assert json.loads(text)["alpha"] is None
    assert json.loads(text)["alpha_interval"] == [None, None]


def strict(line: str) -> object:
    """A parser that takes JSON only: Python's own lets NaN and Infinity through."""

    def refuse(word: str) -> object:
        raise AssertionError(f"{word} is no JSON: {line}")

    return json.loads(line, parse_constant=refuse)


def test_a_beam_trace_is_strict_json(tmp_path: Path) -> None:
    """Beam search has no overlaps. Its traces said NaN, which no strict parser takes; alpha was a mean of NaNs."""
    target, trace = ToyModel(10, seed=2), Trace("self", "beam")
    decoder = Decoder(target, ModelDrafter(target), gumbel_coupling, Sampling(), 2)
    request = Request((1, 2), Stopping(9, decode=str))
    beam_search(decoder, request, Options(beams=3, max_new_tokens=9), trace)
    assert any(record.drafted for record in trace.records)
    for line in trace.lines():
        strict(line)
    trace.save(tmp_path / "trace.jsonl")
    assert Trace.load(tmp_path / "trace.jsonl") == trace
    stats = summarise(trace)
    assert stats.finish_reasons == {"length": 1}
    assert math.isnan(stats.alpha) and stats.alpha_counted > 0
    assert "nan" not in " ".join(str(cell) for column in stats_table(stats).columns for cell in column._cells)


class BadBehind(ToyModel):
    """Logits that are not numbers at positions from ``limit`` on."""

    def __init__(self, limit: int) -> None:
        super().__init__(10, seed=2)
        self.limit = limit

    def start(self, rows: int, shape: Shape) -> ToySession:
        session = super().start(rows, shape)
        honest = session.score

        def score(tail: Tensor) -> Tensor:
            logits = honest(tail).clone()
            logits[session.context.positions(tail.shape[1] + 1) >= self.limit] = math.nan
            return logits

        session.score = score  # type: ignore[method-assign]
        return session


@pytest.mark.parametrize("gamma", [3, 5, 8])
def test_bad_logits_behind_the_text_leave_no_mark(gamma: int) -> None:
    """A text that ends before its model's bad logits is healthy: the guesses that met them are not in its alpha."""
    model, request = BadBehind(11), Request((1, 2, 3), Stopping(8), seed=4)
    texts, trace = run(model, ModelDrafter(ToyModel(10, seed=2)), [request], gamma, Sampling(1.0), maximal_coupling)
    assert len(texts[0]) == 8 and trace.endings == [Ending(0, "length")]
    for line in trace.lines():
        strict(line)
    stats = summarise(trace)
    assert stats.alpha == pytest.approx(1.0)
    assert stats.alpha_counted == 1.0, "a guess cannot be rejected by logits that are no numbers"


def test_accepted_guesses_are_in_the_text() -> None:
    """A text of 4 tokens in one run of 8 guesses had 8 accepted: more than it has tokens."""
    target = ToyModel(10, seed=2)
    texts, trace = run(target, ModelDrafter(target), [Request((1,), Stopping(4))], 8)
    stats = summarise(trace)
    assert (len(texts[0]), stats.tokens, stats.accepted, stats.kept, stats.wasted) == (4, 4, 4, 8, 4)
    assert stats.alpha_counted == 1.0


def test_wilson_interval() -> None:
    """Catches an interval that leaves [0, 1] or misses the textbook value (8 of 10: 0.490 to 0.943)."""
    assert wilson(8, 10) == pytest.approx((0.490, 0.943), abs=1e-3)
    assert wilson(0, 5)[0] == pytest.approx(0.0, abs=1e-12)
    assert wilson(5, 5)[1] == pytest.approx(1.0, abs=1e-12)


def test_save_and_load(tmp_path: Path) -> None:
    """Catches a trace that comes back different, so that a report could not be made from its file."""
    trace = by_hand()
    trace.drafter_error = "RuntimeError: naïve"
    trace.endings = [Ending(1, "eos", 2), Ending(0, "stop", "\n\n")]
    trace.save(tmp_path / "trace.jsonl")
    assert Trace.load(tmp_path / "trace.jsonl") == trace
    lines = (tmp_path / "trace.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + len(trace.records)


def test_a_real_trace_adds_up() -> None:
    """Catches records that do not tell what happened: tokens, positions and overlaps of a whole generation."""
    target = ToyModel(10, seed=2)
    requests = [Request((1, 2, 3)[: i + 1], Stopping(15 + i), seed=i) for i in range(3)]
    texts, trace = run(target, ModelDrafter(target.near(0.4)), requests, 3, Sampling(1.0), maximal_coupling, slots=2)
    for row, request in enumerate(requests):
        told: list[int] = []
        for record in trace.for_row(row).records:
            assert record.position == len(request.prompt) + len(told)
            assert all(0 <= x <= 1 + 1e-6 for x in record.overlap)
            assert len(record.overlap) == len(record.drafted) == 3
            told += [*record.drafted[: record.accepted], record.token][: record.emitted]
        assert told == texts[row]
    assert summarise(trace).tokens == sum(len(t) for t in texts)
    assert trace.runs <= len(trace.records)


def test_plain_decoding_has_one_token_per_run() -> None:
    """Catches a baseline counted differently from the method."""
    target = ToyModel(10, seed=2)
    _, trace = run(target, Nothing(), [Request((1,), Stopping(9))], 0)
    stats = summarise(trace)
    assert (stats.tokens, stats.runs, stats.drafted, stats.tokens_per_run) == (9, 9, 0, 1.0)


def test_phases_are_the_whole_time() -> None:
    """Catches time that is counted twice or falls between two phases."""
    seconds = dict.fromkeys(("a", "b"), 0.0)
    with timer.using(iter([0.0, 1.0, 3.0, 7.0, 15.0]).__next__):
        watch = Stopwatch(seconds)
        for phase in "abab":
            watch.lap(phase)
    assert seconds == {"a": 1.0 + 4.0, "b": 2.0 + 8.0}
