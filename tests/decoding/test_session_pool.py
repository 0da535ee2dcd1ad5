"""The decoder through replayed steps: the same text as without, and recordings that outlive a call.

On a CPU a replay is calling the step again, so everything but the launch of a CUDA graph is tested here.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator

import pytest
import torch

import library
import outrider
from helpers import case, wrapped
from outrider.core import host_sync
from outrider.core.protocols import Drafter, Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding import session_pool as lanes_module
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.step_runner import StepRunner
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying, ModelDrafter
from outrider.errors import BadOption, DeviceError, NumericalError
from outrider.planning.policies import Auto
from outrider.trace import Trace

RULES = {"greedy": (gumbel_coupling, Sampling()), "maximal": (maximal_coupling, Sampling(1.0))}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is captured reads no values on the host."""
    monkeypatch.setattr(host_sync, "on_cpu", False)


@pytest.fixture
def pool() -> SessionPool:
    return SessionPool(graphs=True)


def texts(pool: SessionPool, drafter: Drafter, requests: list[Request], rule: str = "greedy", gamma: int = 3) -> object:
    verifier, sampling = RULES[rule]
    trace = Trace(drafter.name)
    decoder = Decoder(wrapped("llama"), drafter, verifier, sampling, gamma, slots=2, pool=pool)
    rows = {event.index: event.row.tokens for event in decoder.stream(requests, trace)}
    return rows, trace.records


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["other", "copy", "none"])
def test_replayed_text_is_eager_text(name: str, rule: str, pool: SessionPool) -> None:
    """Three ragged requests through two slots, twice: text and trace are those of the eager loop."""
    known = case("llama")
    drafter, requests = known.drafter(name), known.requests if rule == "greedy" else known.seeded()
    expected = texts(SessionPool(), drafter, requests, rule)
    assert texts(pool, drafter, requests, rule) == expected
    (runner,) = pool.idle
    assert runner.graphs and runner.captures == 1
    assert texts(pool, drafter, requests, rule) == expected
    assert pool.idle == (runner,) and runner.captures == 1, "the second call records nothing"


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the next step is launched before the caller hears of the last one."""
    monkeypatch.setattr(StepRunner, "ahead", property(lambda runner: runner.graphs))


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize("gamma", [3, Auto(0.05)], ids=["fixed", "planned"])
@pytest.mark.parametrize("rule", RULES)
def test_a_step_begun_early_changes_nothing(rule: str, gamma: int | Auto, pool: SessionPool) -> None:
    """Nor does a row that ended while the next step was under way, or one that enters then.

    Where text depends on gamma, gamma is what it is in the eager loop; else it may be chosen a step earlier.
    """
    known = case("llama")
    drafter, requests = known.drafter("other"), known.requests if rule == "greedy" else known.seeded()
    verifier, sampling = RULES[rule]
    found = []
    for used in (SessionPool(), pool):
        trace = Trace()
        decoder = Decoder(wrapped("llama"), drafter, verifier, sampling, gamma, slots=2, pool=used)
        texts = {event.index: event.row.tokens for event in decoder.stream(requests, trace)}
        records = sorted(trace.records, key=lambda record: (record.row, record.position))
        found.append((texts, records if rule == "maximal" or isinstance(gamma, int) else None))
        assert len(trace.endings) == len(requests)
    assert found[0] == found[1]


@pytest.mark.usefixtures("ahead")
def test_the_caller_hears_of_a_step_while_the_next_one_runs(pool: SessionPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one who stops listening then leaves sessions behind that serves the next call."""
    launched: list[int] = []
    launch = StepRunner.launch

    def counted(self: StepRunner, *arguments: object) -> object:
        launched.append(1)
        return launch(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(StepRunner, "launch", counted)
    request = Request((5, 6, 7, 8), Stopping(20))
    decoder = Decoder(wrapped("llama"), Copying(), *RULES["greedy"], 3, slots=1, pool=pool)
    heard = decoder.stream([request], Trace())
    for count in (2, 3, 4):
        next(heard)
        assert len(launched) == count
    heard.close()  # type: ignore[attr-defined]
    launched.clear()
    trace = Trace()
    found = [event.row.tokens for event in decoder.stream([request], trace)][-1]
    assert texts(SessionPool(), decoder.drafter, [request])[0] == {0: found}  # type: ignore[index]
    assert trace.runs == len(trace.records), "no run is wasted at the end"


def test_an_encoder_decoder_is_replayed_too(pool: SessionPool) -> None:
    known = case("t5")
    decoder = Decoder(known.model, Copying(), gumbel_coupling, Sampling(), 3, slots=2, pool=pool)
    rows = {event.index: event.row.tokens for event in decoder.stream(known.requests, Trace())}
    assert [rows[i] for i in range(len(rows))] == known.expected
    assert pool.idle[0].captures > 0


def test_a_stream_left_early_gives_its_slots_back(pool: SessionPool) -> None:
    """Catches rows of an abandoned call that go on running beside those of the next one."""
    known = case("llama")
    verifier, sampling = RULES["greedy"]
    decoder = Decoder(wrapped("llama"), Copying(), verifier, sampling, 3, slots=2, pool=pool)
    stream: Iterator[object] = decoder.stream(known.requests, Trace())
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    (runner,) = pool.idle
    with pool.lend((decoder.target, decoder.drafter), 2, decoder.shape(known.requests[0])) as lent:
        assert lent is runner and not bool(lent.target.context.active.any())
    rows = {event.index: event.row.tokens for event in decoder.stream(known.requests, Trace())}
    assert [rows[i] for i in range(len(rows))] == known.expected


def test_equal_drafters_are_not_the_same_drafter(pool: SessionPool) -> None:
    """A recording holds the memory of one model's session; another model of that name must not be given it."""
    requests = case("llama").seeded()
    first, second = (ModelDrafter(wrapped("llama", seed=s), "draft") for s in (1, 0))
    texts(pool, first, requests, "maximal")
    assert texts(pool, second, requests, "maximal") == texts(SessionPool(), second, requests, "maximal")
    assert len(pool.idle) == 2


def test_only_a_few_idle_lanes_are_kept(pool: SessionPool) -> None:
    requests = case("llama").requests[:1]
    for _ in range(lanes_module.MOST_IDLE + 2):
        texts(pool, ModelDrafter(wrapped("llama", seed=1)), requests)
    assert len(pool.idle) == lanes_module.MOST_IDLE


def test_a_drafter_that_fails_is_left_out_as_ever(pool: SessionPool) -> None:
    """It raises while its first step is being recorded; the request must not notice."""

    class Failing(Copying):
        def start(self, *arguments: object) -> object:
            session = super().start(*arguments)  # type: ignore[arg-type]
            session.propose = lambda *a: 1 / 0  # type: ignore[method-assign, assignment, return-value]
            return session

    known = case("llama")
    with pytest.warns(UserWarning, match="left out"):
        rows, _ = texts(pool, Failing(), known.requests)  # type: ignore[misc]
    assert [rows[i] for i in range(len(rows))] == known.expected
    assert not pool.idle, "what failed is not lent again"


def test_a_reason_is_given_once(pool: SessionPool) -> None:
    """Not once a call: the pool remembers which drafters cannot be recorded."""

    class Unmarked(Copying):
        def start(self, *arguments: object) -> object:
            session = super().start(*arguments)  # type: ignore[arg-type]
            session.capturable = False  # type: ignore[attr-defined]
            return session

    drafter, requests = Unmarked(), case("llama").requests
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            texts(pool, drafter, requests)
    assert len(said) == 1 and "'copy'" in str(said[0].message)


def test_bad_numbers_do_not_reach_the_next_call(pool: SessionPool) -> None:
    """A row that ended in NaN leaves it in the memory of its slot: that session is not lent again."""
    requests = [Request((5, 6), Stopping(6))]
    poison = Sampling(processors=(lambda ids, scores: scores * float("nan"),))
    decoder = Decoder(wrapped("llama"), Copying(), gumbel_coupling, poison, 2, slots=1, pool=pool)
    with pytest.raises(NumericalError):
        list(decoder.stream(requests, Trace()))
    assert not pool.idle


def test_no_memory_drops_what_is_idle_then_says_what_to_do(pool: SessionPool, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = case("llama").requests
    texts(pool, Copying(), requests)
    assert pool.idle
    real, refusals = StepRunner.__init__, [1]

    def start(self: StepRunner, *arguments: object) -> None:
        refusals[0] -= 1
        if refusals[0] >= 0:
            raise torch.cuda.OutOfMemoryError("full")
        real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(StepRunner, "__init__", start)
    with pool.lend((wrapped("llama"), Copying()), 2, Shape(256, 9)):
        assert not pool.idle, "what was idle made room"
    refusals[0] = 2
    with pytest.raises(DeviceError, match="fewer slots"), pool.lend((wrapped("llama"), Copying()), 3, Shape(256, 9)):
        pass


@pytest.mark.parametrize(
    ("error", "kind", "match"),
    [
        (torch.cuda.OutOfMemoryError("full"), DeviceError, "2 slots of 256 tokens; use fewer slots"),
        (
            RuntimeError("CUDA error: device lost\nmore"),
            DeviceError,
            r"failed \(CUDA error: device lost more\)",
        ),
        (RuntimeError("something else"), RuntimeError, "something else"),
    ],
)
def test_a_gpu_that_fails_in_a_step_is_named(
    error: Exception, kind: type[Exception], match: str, pool: SessionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever in a step it happens, and the sessions it happened in are not used again."""
    requests = case("llama").requests
    texts(pool, Copying(), requests)

    def fail(self: StepRunner, *ignored: object) -> None:
        raise error

    monkeypatch.setattr(StepRunner, "launch", fail)
    with pytest.raises(kind, match=match):
        texts(pool, Copying(), requests)
    assert len(pool.idle) == (kind is RuntimeError), "what is idle may hold the memory that is missing"


def test_a_stream_collected_in_the_middle_of_lending_is_no_deadlock(pool: SessionPool) -> None:
    """The garbage collector ends forgotten streams, which return their runners: a lock was held by the same thread."""
    known = case("llama")
    decoder = Decoder(known.model, Copying(), *RULES["greedy"], 3, slots=2, pool=pool)
    forgotten = decoder.stream(known.requests, Trace())
    next(forgotten)
    expected = {event.index: event.row.tokens for event in decoder.stream(known.requests, Trace())}

    class Collecting(Shape):
        """A shape during whose comparison the collector runs, as it may anywhere."""

        def __eq__(self, other: object) -> bool:
            forgotten.close()  # type: ignore[attr-defined]
            return Shape(**vars(self)) == other

        __hash__ = Shape.__hash__

    def lend() -> None:
        shape = Collecting(**vars(decoder.shape(known.requests[0])))
        with pool.lend((known.model, decoder.drafter), 2, shape):
            lent.append(len(pool.idle))

    lent: list[int] = []
    thread = threading.Thread(target=lend, daemon=True)
    thread.start()
    thread.join(30)
    assert lent == [1], "the thread waits for itself, or the runner of the forgotten stream is lost"
    assert {event.index: event.row.tokens for event in decoder.stream(known.requests, Trace())} == expected


@pytest.mark.parametrize(("asked", "match"), [(True, "needs a CUDA device"), ("yes", "must be True, False")])
def test_graphs_that_cannot_be(asked: object, match: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("model")
    library.save_llama(folder)
    assert not outrider.load(str(folder), "copy", device="cpu").graphs
    with pytest.raises(BadOption, match=match):
        outrider.load(str(folder), "copy", device="cpu", graphs=asked)  # type: ignore[arg-type]
