"""A step that is to be replayed: the same tokens as the eager one, and nothing in it that a graph cannot hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tiny
from helpers import wrapped
from outrider.decoding.stepper import Rule, Stepper
from outrider.drafters import Copying, ModelDrafter, Nothing, Uniform
from outrider.drafters.recorded import Recorded
from outrider.errors import OutriderError
from outrider.models.graphs import Recorder
from outrider.noise import Noise
from outrider.sampling import Sampling
from outrider.types import Drafter, Shape
from outrider.verification.coupling import maximal_coupling
from outrider.verification.matching import gumbel_coupling

SHAPE = Shape(capacity=256, width=5, source_capacity=64, chunk=8)
GREEDY = Rule(gumbel_coupling, Sampling())
RULES = {
    "greedy": GREEDY,
    "gumbel": Rule(gumbel_coupling, Sampling(1.0)),
    "maximal": Rule(maximal_coupling, Sampling(1.0)),
    "filtered": Rule(maximal_coupling, Sampling(0.8, top_k=40, top_p=0.9, min_p=0.01)),
    "penalised": Rule(
        gumbel_coupling, Sampling(0.7, repetition_penalty=1.2, frequency_penalty=0.5, logit_bias={5: 2.0})
    ),
}


def drafter(name: str, family: str = "llama") -> Drafter:
    return {
        "other": ModelDrafter(wrapped(family, seed=1)),
        "self": ModelDrafter(wrapped(family)),
        "none": Nothing(),
        "copy": Copying(),
        "uniform": Uniform(),
        "recorded": Recorded(torch.arange(200).remainder(tiny.VOCAB).expand(2, -1), 0.3),
    }[name]


def stepper(name: str, family: str = "llama", graphs: bool = True) -> Stepper:
    made = Stepper((wrapped(family), drafter(name, family)), 2, SHAPE, graphs)
    for row, prompt in enumerate(([3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [9])):
        source = (4, 5, 6) if family in tiny.ENCODER_DECODER else None
        made.target.admit(row, prompt, source)
        made.drafter.admit(row, prompt, source)
        made.seeds[row] = row
    return made


def steps(made: Stepper, rule: Rule, gammas: list[int]) -> list[list[int]]:
    found: list[list[int]] = [[], []]
    for gamma in gammas:
        host = made.launch(rule, gamma).read()
        for row in range(2):
            found[row] += host.row(row)[0]
    assert made.drafter.error is None
    return found


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["other", "self", "none", "copy", "recorded"])
def test_replayed_steps_give_the_eager_tokens(name: str, rule: str) -> None:
    """Through one recording only: a second one would mean that the shapes were not constant."""
    replayed = stepper(name)
    assert steps(replayed, RULES[rule], [4] * 7) == steps(stepper(name, graphs=False), RULES[rule], [4] * 7)
    assert replayed._recorder is not None and replayed._recorder.recorded == 1


@pytest.mark.parametrize("name", ["other", "self", "copy"])
def test_gamma_may_change_from_step_to_step(name: str) -> None:
    """After a step without guesses a draft model has more to catch up with: that is another recording."""
    gammas = [4, 4, 0, 4, 2, 0, 0, 3, 4]
    assert steps(stepper(name), GREEDY, gammas) == steps(stepper(name, graphs=False), GREEDY, gammas)


def test_rows_come_and_go_without_a_new_recording() -> None:
    made, eager = stepper("other"), stepper("other", graphs=False)
    for one in (made, eager):
        steps(one, GREEDY, [4, 4])
        one.target.release(1)
        one.drafter.release(1)
        steps(one, GREEDY, [4])
        for session in (one.target, one.drafter):
            session.admit(1, [20, 21, 22])
    assert steps(made, GREEDY, [4] * 4) == steps(eager, GREEDY, [4] * 4)
    assert made._recorder is not None and made._recorder.recorded == 1


def test_selected_rows_are_recorded_anew() -> None:
    """The buffers are others after a selection; a graph that still wrote to the old ones would be silently wrong."""
    made, eager = stepper("self"), stepper("self", graphs=False)
    for one in (made, eager):
        steps(one, GREEDY, [4, 4])
        for session in (one.target, one.drafter):
            session.select(torch.tensor([1, 0]))
    assert steps(made, GREEDY, [4] * 3) == steps(eager, GREEDY, [4] * 3)


def test_recording_leaves_no_trace_in_the_state() -> None:
    """Warming up runs steps for real; what they did is undone before the first replay counts."""
    made = stepper("self")
    assert isinstance(made._recorder, type(None))
    recorder = Recorder(made.target, made.drafter)
    before = [tensor.clone() for tensor in recorder.state()]
    recorder._record("step", lambda: made._step_table(GREEDY, Noise(made.seeds), 4, made.drafter.session))
    assert all(torch.equal(a, b) for a, b in zip(before, recorder.state(), strict=True))


class _Watch(TorchDispatchMode):
    """Raises at what a CUDA graph cannot hold: values asked of the device, and constants sent to it."""

    forbidden = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "lift_fresh",
        "equal.default",
        "is_nonzero",
        "unique",
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if any(word in name for word in self.forbidden):
            raise AssertionError(f"{name} cannot be recorded")
        if name.startswith(("aten.index.", "aten.index_put")) and any(
            isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in (args[1] if len(args) > 1 else ()) or ()
        ):
            raise AssertionError("a boolean index has a size only the device knows")
        return func(*args, **(kwargs or {}))


@contextmanager
def nothing_asked() -> Iterator[None]:
    with _Watch():
        yield


def assert_recordable(made: Stepper, rule: Rule, gamma: int = 4) -> None:
    steps(made, rule, [gamma])  # what is lazy happens here, as in a warm-up
    session, noise = made.drafter.session, Noise(made.seeds)
    assert session is not None
    with nothing_asked():
        made._step_table(rule, noise, gamma, session)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_asks_nothing_of_the_device(family: str) -> None:
    assert_recordable(stepper("other", family, graphs=False), RULES["maximal"])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["none", "copy", "uniform", "recorded"])
def test_every_rule_and_drafter_asks_nothing_of_the_device(name: str, rule: str) -> None:
    assert_recordable(stepper(name, graphs=False), RULES[rule])


def test_the_watch_sees_a_question() -> None:
    """A draft model that does not know whether its own guesses are verified asks how far behind it is."""
    made = stepper("other", graphs=False)
    made.drafter.session.sole = False  # type: ignore[union-attr]
    with pytest.raises(AssertionError, match="_local_scalar_dense"):
        assert_recordable(made, GREEDY)


def test_processors_run_eagerly() -> None:
    """A processor is called row by row with the tokens so far: no graph can hold that, and no error is raised."""
    rule = Rule(gumbel_coupling, Sampling(processors=(lambda ids, scores: scores,)))
    made = stepper("other")
    assert steps(made, rule, [4] * 3) == steps(stepper("other", graphs=False), GREEDY, [4] * 3)
    assert made._recorder is None


def test_errors_have_a_home() -> None:
    from outrider.errors import DeviceError

    assert issubclass(DeviceError, OutriderError)
