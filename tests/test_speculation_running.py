"""Two functions at once: they do run together, nothing leaks, and errors are of what really happened."""

from __future__ import annotations

import math
import multiprocessing
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import outrider
from executors import AtOnce, Lazy
from outrider import speculation
from outrider.errors import BadOption

P = {"a": 0.42, "b": 0.3, "d": 0.2, "e": 0.08}
FAR = {"a": 0.05, "b": 0.05, "c": 0.5, "d": 0.1, "e": 0.3}


# --- running at the same time ------------------------------------------------------------------------


def test_g_runs_while_f_runs() -> None:
    """f ends only when it has seen g start; plain execution would have to wait for the time-out."""
    started = threading.Event()

    def f() -> dict[str, float]:
        return {"seen": 1.0} if started.wait(60) else {"alone": 1.0}

    def g(x: str) -> str:
        started.set()
        return x

    with ThreadPoolExecutor(2) as executor:
        seen = outrider.speculate(f, lambda: ["seen"] and {"seen": 1.0}, g, executor)
    assert (seen.value, seen.kept) == ("seen", True)


@pytest.mark.parametrize("guesses", [1, 2])
def test_one_worker_is_enough_to_be_right(guesses: int) -> None:
    """Slow, but no deadlock: the correction waits behind a guess that had already started."""
    with ThreadPoolExecutor(1) as executor:
        for seed in range(20):
            seen = outrider.speculate(
                lambda: P, lambda: {"x": 1, "y": 1}, str.upper, executor, guesses=guesses, seed=seed
            )
            assert seen.value == seen.outcome.upper() and not seen.kept


def test_processes() -> None:
    """Functions and outcomes travel to other processes and back."""
    f, approximate = partial(dict, a=1, b=3), partial(dict, b=1)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        seen = [outrider.speculate(f, approximate, str.upper, executor, seed=s) for s in range(6)]
        with pytest.raises(TypeError, match="unsupported operand"):  # raised in another process
            outrider.speculate(f, approximate, partial(pow, 2), executor, seed=0)
    assert {s.value for s in seen} == {"A", "B"} and all(s.value == s.outcome.upper() for s in seen)
    assert all(s.kept == (s.outcome == "b") for s in seen)


def test_a_seed_repeats_everything() -> None:
    def run(executor: Any, seed: Any) -> list[Any]:
        q = FAR
        return [outrider.speculate(lambda: P, lambda: q, str.upper, executor, guesses=2, seed=seed) for _ in range(5)]

    with ThreadPoolExecutor(3) as executor:
        assert run(executor, 3) == run(AtOnce(), 3)
        assert run(executor, Random(3)) == run(AtOnce(), Random(3))
    assert len(set(run(AtOnce(), 3))) == 1 < len(set(run(AtOnce(), Random(3))))


# --- what is cancelled, what is raised ---------------------------------------------------------------


def test_nothing_is_left_waiting() -> None:
    """Kept or not: the value's task ran, every other guess was cancelled before it started."""
    fates = set()
    for seed in range(50):
        executor = Lazy()
        q = FAR
        seen = outrider.speculate(lambda: P, lambda q=q: q, str.upper, executor, guesses=3, seed=seed)
        assert "waiting" not in executor.states()
        ran = [task.arguments[0] for task in executor.tasks[1:] if task.state == "run"]
        assert ran == [seen.outcome]
        assert len(executor.tasks) == 4 + (not seen.kept)
        fates.add(seen.kept)
    assert fates == {True, False}


def raiser(error: Exception) -> Callable[..., Any]:
    def function(*_: Any) -> Any:
        raise error

    return function


def test_f_fails() -> None:
    executor = Lazy()
    with pytest.raises(RuntimeError, match="f broke"):
        outrider.speculate(raiser(RuntimeError("f broke")), lambda: P, str.upper, executor, guesses=2)
    assert executor.states() == ["run", "cancelled", "cancelled"]


def test_f_approx_fails() -> None:
    executor = Lazy()
    with pytest.raises(RuntimeError, match="f_approx broke"):
        outrider.speculate(lambda: P, raiser(RuntimeError("f_approx broke")), str.upper, executor)
    assert executor.states() == ["cancelled"]


def test_g_fails_on_the_outcome() -> None:
    for q in (P, {"x": 1.0}):  # as a kept guess, and as a correction
        with pytest.raises(RuntimeError, match="g broke"):
            outrider.speculate(lambda: {"a": 1}, lambda q=q: q, raiser(RuntimeError("g broke")), AtOnce(), seed=1)


def test_g_fails_on_a_guess_that_never_was() -> None:
    """g may be undefined where f has no weight: what it raises there did not happen."""
    seen = outrider.speculate(lambda: [0, 0, 1], lambda: [1, 0, 0], lambda x: 1 / x, AtOnce())
    assert (seen.outcome, seen.value, seen.kept, seen.guesses) == (2, 0.5, False, (0,))


def test_an_executor_that_is_shut_down() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="shutdown"):
        outrider.speculate(lambda: P, lambda: P, str.upper, executor)


# --- input -------------------------------------------------------------------------------------------


def test_weights_in_every_form() -> None:
    for weights in ([0, 2], (0.0, 2.0), torch.tensor([0.0, 2.0]), {1: 2}, {0: 0, 1: 7}):
        seen = outrider.speculate(lambda w=weights: w, lambda w=weights: w, lambda x: x, AtOnce())
        assert (seen.outcome, seen.kept, seen.overlap) == (1, True, 1.0)


def test_more_guesses_than_outcomes() -> None:
    seen = outrider.speculate(lambda: P, lambda: {"a": 1, "b": 2, "c": 0}, str.upper, AtOnce(), guesses=9)
    assert sorted(seen.guesses) == ["a", "b"]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": -1.0, "b": 2.0}, "must give weights of at least 0, got -1.0 for outcome 'a'"),
        ([1.0, math.nan], "must give weights of at least 0, got nan for outcome 1"),
        ([math.inf], "must give weights of at least 0, got inf for outcome 0"),
        ([0.0, 0.0], "must give weights with a sum above 0, got 0.0 over 2 outcomes"),
        ([1e308, 1e308], "must give weights with a sum above 0, got inf over 2 outcomes"),
        ({}, "must give weights with a sum above 0, got 0 over 0 outcomes"),
        (None, "must return a mapping from outcomes to weights or a sequence of weights, got None"),
        ("ab", "must return a mapping from outcomes to weights or a sequence of weights, got 'ab'"),
    ],
)  # fmt: skip
def test_bad_weights_are_named(weights: Any, message: str) -> None:
    for name, f, approximate in (("f", weights, [1]), ("f_approx", [1], weights)):
        with pytest.raises(BadOption, match=re.escape(f"{name} {message}")):
            outrider.speculate(lambda f=f: f, lambda a=approximate: a, str, AtOnce())


def test_bad_options_are_named() -> None:
    with pytest.raises(BadOption, match="guesses must be at least 0, got -1"):
        outrider.speculate(lambda: P, lambda: P, str.upper, AtOnce(), guesses=-1)
    with pytest.raises(BadOption, match="executor must have a method submit, got None"):
        outrider.speculate(lambda: P, lambda: P, str.upper, None)  # type: ignore[arg-type]


def test_expected_seconds() -> None:
    """Always kept: the longer of the two. Never kept: one after the other. No gain is lost to a wrong guess."""
    assert speculation.expected_seconds(1.0, 3.0, 2.0) == 3.0
    assert speculation.expected_seconds(1.0, 2.0, 3.0, 0.5) == 3.5
    assert speculation.expected_seconds(0.0, 3.0, 2.0, 0.5) == 5.0
    assert speculation.expected_seconds(0.5, 2.0, 2.0) == 3.0


# --- the page and the example ------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]


def test_the_connect_four_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's game is Connect Four, its search sees a win, and its games run."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.delitem(sys.modules, "connect_four", raising=False)
    import connect_four as game

    assert len(game.MASKS) == 69
    for line in ((0, 6, 0, 6, 0, 6, 0), (0, 0, 1, 1, 2, 2, 3), (0, 1, 1, 2, 2, 3, 2, 3, 3, 6, 3)):
        assert game.Board(line).won and not game.Board(line[:-1]).won
    about_to_win = (0, 6, 0, 6, 0, 5)
    visits = game.search(about_to_win, 300)
    assert max(visits, key=visits.__getitem__) == 0 and visits == game.search(about_to_win, 300)
    assert game.reply(about_to_win, 10, 0) == {}
    tally = game.play(1, 20, AtOnce())
    assert tally.pairs >= 3 and 0 < tally.overlap <= tally.pairs
