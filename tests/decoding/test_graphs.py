"""A step that is to be replayed: the same tokens as the eager one, and nothing in it that a graph cannot hold."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tiny
from outrider.core import host_sync
from outrider.core.noise import Noise
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.capture.checks import CaptureCheck, NotCapturable
from outrider.decoding.capture.graphs import StepGraphs
from outrider.decoding.step_runner import Rule, StepRunner
from outrider.errors import DeviceError
from step_runners import GREEDY, RULES, runner, steps


@pytest.fixture(autouse=True)
def ask_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: top-p there asks nothing either."""
    monkeypatch.setattr(host_sync, "on_cpu", False)


@pytest.mark.parametrize(
    ("name", "rule"),
    [("other", r) for r in ("greedy", "gumbel", "maximal", "filtered", "penalised", "block", "lenient")]
    + [("self", "greedy"), ("self", "maximal"), ("standardised", "maximal"), ("none", "gumbel"), ("copy", "greedy")]
    + [("copy", "penalised"), ("known text", "gumbel"), ("ngram", "maximal"), ("table", "maximal")]
    + [("fallback", "greedy"), ("mixture", "greedy"), ("mixture", "maximal"), ("head", "maximal"), ("head", "greedy")],
)
def test_replayed_steps_give_the_eager_tokens(name: str, rule: str) -> None:
    """Through one recording only: a second one would mean that the shapes were not constant."""
    replayed = runner(name)
    assert steps(replayed, RULES[rule], [4] * 7) == steps(runner(name, graphs=False), RULES[rule], [4] * 7)
    assert replayed.captures == 1


@pytest.mark.parametrize("name", ["other", "self", "copy"])
def test_gamma_may_change_from_step_to_step(name: str) -> None:
    """After a step without guesses a draft model has more to catch up with: that is another recording."""
    gammas = [4, 4, 0, 4, 2, 0, 0, 3, 4]
    assert steps(runner(name), GREEDY, gammas) == steps(runner(name, graphs=False), GREEDY, gammas)


def test_rows_come_and_go_without_a_new_recording() -> None:
    made, eager = runner("other"), runner("other", graphs=False)
    for one in (made, eager):
        steps(one, GREEDY, [4, 4])
        one.target.release(1)
        one.drafter.release(1)
        steps(one, GREEDY, [4])
        for session in (one.target, one.drafter):
            session.admit(1, [20, 21, 22])
    assert steps(made, GREEDY, [4] * 4) == steps(eager, GREEDY, [4] * 4)
    assert made.captures == 1


def test_selected_rows_are_recorded_anew() -> None:
    """The buffers are others after a selection; a graph that still wrote to the old ones would be silently wrong."""
    made, eager = runner("self"), runner("self", graphs=False)
    for one in (made, eager):
        steps(one, GREEDY, [4, 4])
        for session in (one.target, one.drafter):
            session.select(torch.tensor([1, 0]))
    assert steps(made, GREEDY, [4] * 3) == steps(eager, GREEDY, [4] * 3)


def test_recording_leaves_no_trace_in_the_state() -> None:
    """Warming up runs steps for real; what they did is undone before the first replay counts."""
    made = runner("self")
    captured = StepGraphs(made.target, made.drafter)
    before = [tensor.clone() for tensor in captured.state()]
    captured.capture("step", lambda: made.step_table(GREEDY, Noise(made.seeds), 4), len(captured.sessions))
    assert all(torch.equal(a, b) for a, b in zip(before, captured.state(), strict=True))


def assert_capturable(made: StepRunner, rule: Rule, gamma: int = 4) -> None:
    noise = Noise(made.seeds)
    made.step_table(rule, noise, gamma)  # what is lazy happens here, as in a warm-up
    with CaptureCheck(made.target.device, constants=True):
        made.step_table(rule, noise, gamma)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_asks_nothing_of_the_device(family: str) -> None:
    assert_capturable(runner("other", family), RULES["maximal"])


@pytest.mark.parametrize("rule", ["filtered", "penalised", "block"])
@pytest.mark.parametrize("name", ["none", "copy", "uniform", "known text", "ngram", "table", "mixture", "head"])
def test_every_rule_and_drafter_asks_nothing_of_the_device(name: str, rule: str) -> None:
    assert_capturable(runner(name), RULES[rule])


def test_the_watch_sees_a_question() -> None:
    """A draft model that does not know whether its own guesses are verified asks how far behind it is."""
    made = runner("other")
    made.drafter.session.only_drafter = False  # type: ignore[union-attr]
    with pytest.raises(NotCapturable, match="_local_scalar_dense"):
        assert_capturable(made, GREEDY)


@pytest.mark.parametrize(
    "question",
    [
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.equal(x, x),
        lambda x: torch.tensor([1, 2]) + 1,
    ],
)
def test_the_watch_sees_every_kind_of_question(question: Callable[[torch.Tensor], object]) -> None:
    x = torch.arange(3)
    with pytest.raises(NotCapturable), CaptureCheck(x.device, constants=True):
        question(x)


def test_plain_steps_of_a_draft_model_are_one_recording() -> None:
    """A planner that stops guessing leaves a draft model ever further behind: that must not mean ever new graphs."""
    made, eager = runner("other"), runner("other", graphs=False)
    gammas = [3, 0, 0, 0, 0, 0, 3, 3]
    assert steps(made, GREEDY, gammas) == steps(eager, GREEDY, gammas)
    assert made.captures == 2


@pytest.mark.parametrize("name", ["cascade", "unmarked"])
def test_what_cannot_be_recorded_runs_eagerly_and_says_so_once(name: str) -> None:
    """Catches a warm-up that leaves a session ahead of the text, and a warning in every step."""
    made = runner(name)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = steps(made, GREEDY, [3] * 5)
    assert found == steps(runner(name, graphs=False), GREEDY, [3] * 5)
    assert [str(w.message).split(":")[0] for w in said] == [
        "steps cannot be replayed as CUDA graphs and run one by one, with the same text"
    ]


def test_a_question_found_while_recording_leaves_no_trace() -> None:
    """A drafter that says it can be recorded and cannot: the steps tried are undone, and the text is the same."""
    made, eager = runner("liar"), runner("liar", graphs=False)
    with pytest.warns(UserWarning, match="waits for a value of the device"):
        found = steps(made, RULES["gumbel"], [3] * 5)
    assert found == steps(eager, RULES["gumbel"], [3] * 5)


def test_processors_run_eagerly() -> None:
    """A processor is called row by row with the tokens so far: no graph can hold that, and no error is raised."""
    rule = Rule(gumbel_coupling, Sampling(processors=(lambda ids, scores: scores,)))
    made = runner("other")
    assert steps(made, rule, [4] * 3) == steps(runner("other", graphs=False), GREEDY, [4] * 3)
    assert made.captures == 0


class _Additions(TorchDispatchMode):  # type: ignore[misc]
    """Remembers, weakly, the token ids that biases are added to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[weakref.ref[torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "index_add" in str(func):
            self.seen.append(weakref.ref(args[2]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["none", "standardised"])
def test_a_recording_keeps_the_biases_it_reads(name: str) -> None:
    """They were kept for the last 64 biases only: then a recorded step read memory that had become somebody else's."""

    def biased(token: int) -> Rule:
        return Rule(maximal_coupling, Sampling(1.0, logit_bias={token: 100.0}))

    made = runner(name)
    with _Additions() as additions:
        made.launch(biased(5), 2).read()
    assert additions.seen
    other = runner(name)
    for token in range(6, 6 + 80):
        other.launch(biased(token % tiny.VOCAB), 2, None).read()
        if token % 16 == 0:
            other = runner(name)  # recordings of its own
    gc.collect()
    assert all(tensor() is not None for tensor in additions.seen)
    del made
    gc.collect()
    assert not any(tensor() is not None for tensor in additions.seen), "kept for longer than anybody reads them"


@pytest.mark.parametrize(
    ("error", "kind", "match"),
    [
        (torch.cuda.OutOfMemoryError("full"), DeviceError, "fewer slots, a smaller max_new_tokens, or graphs=False"),
        (RuntimeError("operation not permitted when stream is capturing"), NotCapturable, "not permitted"),
    ],
)
def test_a_capture_that_fails(
    error: Exception, kind: type[Exception], match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No memory is an error with a remedy; anything else sends the step back to run eagerly."""

    @contextmanager
    def capturing(*ignored: object, **also: object) -> Iterator[None]:
        yield

    def step() -> torch.Tensor:
        raise error

    made = runner("none")
    captured = StepGraphs(made.target, made.drafter)
    for name, stand_in in {"graph_pool_handle": int, "CUDAGraph": object, "graph": capturing}.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(StepGraphs, "side_stream", lambda self: None)
    with pytest.raises(kind, match=match):
        captured.cuda_graph(step, torch.zeros(1))


def test_a_capture_that_fails_leaves_the_text_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: StepGraphs, *ignored: object) -> None:
        raise NotCapturable("the driver says no")

    monkeypatch.setattr(StepGraphs, "capture", refuse)
    made = runner("other")
    with pytest.warns(UserWarning, match="one by one, with the same text: the driver says no"):
        found = steps(made, GREEDY, [3] * 5)
    assert found == steps(runner("other", graphs=False), GREEDY, [3] * 5)
