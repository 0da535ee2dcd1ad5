"""A captured step reads memory where it was when it was captured: whoever holds the recording must own that memory.

On a CPU a replay calls the function again, which would find or make the tensors it needs. So the tensors that a
capture would have read are noted when the step is recorded, and must still exist when it is replayed.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from checks import Found
from hypothesis import HealthCheck, Phase, given, settings
from strategies import worlds
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from worlds import Ends, Model, Named, Sampling, Toy, Two, World, inf

from outrider.core import host_sync
from outrider.decoding import step_runner
from outrider.decoding.capture.graphs import StepGraphs
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.session_pool import SessionPool
from outrider.errors import NumericalError
from outrider.trace import Trace


class Reads(TorchDispatchMode):
    """Notes the memory that is read, and was not made, while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, Any] = {}  # kept, so that no address is used twice
        self.read: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                self._note(tensor)
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self.read:
                self.made[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return result

    def _note(self, tensor: Tensor) -> None:
        memory = tensor.untyped_storage()
        if memory._cdata not in self.made:
            self.read.setdefault(memory._cdata, StorageWeakRef(memory))


class Watched(StepGraphs):
    """Looks, before every replay, whether what the captured step reads is still there."""

    gone = replays = 0

    def run(self, name: Hashable, step: Callable[[], Tensor], drafting: bool = True) -> Tensor:
        read: list[StorageWeakRef] = []
        calls = 0

        def watched() -> Tensor:
            nonlocal calls
            calls += 1
            if calls > 2:  # recording runs it twice; from then on this is a replay
                Watched.replays += 1
                Watched.gone += sum(memory.expired() for memory in read)
                return step()
            with Reads() as reads:
                output = step()
            if calls == 2:
                read.extend(reads.read.values())
            return output

        return super().run(name, watched, drafting)


def forget_all() -> None:
    """Empty every cache that drops what was not used for long."""
    for module in [m for name, m in sys.modules.items() if name.startswith("outrider")]:
        for thing in vars(module).values():
            if type(thing) is functools._lru_cache_wrapper and thing.cache_parameters()["maxsize"] is not None:
                thing.cache_clear()


def check_captured(world: World) -> None:
    """The same call three times by the same recordings, each with options of its own and all caches used up between."""
    requests = [world.request(world.first_seed + i) for i in range(3)]
    decoder = world.decoder(3)
    replayed = replace(decoder, pool=SessionPool(graphs=True))
    Watched.gone = Watched.replays = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_runner, "StepGraphs", Watched)
        patch.setattr(host_sync, "on_cpu", False)  # as on a GPU
        eager = _texts(decoder, requests)
        for _ in range(3):
            own = replace(world.sampling, logit_bias=dict(world.sampling.logit_bias))
            again = _texts(replace(replayed, sampling=own), requests)
            del own
            if again != eager:
                raise Found(world, f"replayed it is {again}, step by step {eager}")
            forget_all()
    if Watched.gone:
        raise Found(world, f"a recording reads {Watched.gone} tensors that nobody holds any more")


def _texts(decoder: Decoder, requests: list[Request]) -> list[list[int]]:
    rows = {}
    with warnings.catch_warnings(), suppress(NumericalError):
        warnings.simplefilter("ignore")  # what cannot be recorded runs eagerly, and says so
        for event in decoder.stream(requests, Trace("fuzz")):
            rows[event.index] = event.row
    return [rows[i].tokens for i in range(len(requests))]


BIASED = World(
    Toy(5), Sampling(1.0, top_p=0.9, logit_bias={1: -inf, 3: 2.0}), Ends(6), (1, 2), Named("uniform"), gamma=2
)


@pytest.mark.parametrize("drafter", [Named("uniform"), Named("ngram"), Model(1), Named("none")])
@pytest.mark.parametrize("coupling", ["maximal", "gumbel", "block"])
def test_a_recording_owns_what_it_reads(drafter: Any, coupling: str) -> None:
    """A bias was held by a cache of 64: after 64 others a replay read freed memory, and forced tokens were others."""
    check_captured(replace(BIASED, drafter=drafter, coupling=coupling))
    assert Watched.replays, "nothing was replayed: nothing was tested"


@pytest.mark.parametrize("first", ["copy", "ngram", "uniform"])
@pytest.mark.parametrize("kind", ["mixture", "fallback"])
@pytest.mark.parametrize("coupling", ["maximal", "gumbel"])
def test_so_does_one_of_two_drafters(kind: str, first: str, coupling: str) -> None:
    """On a CPU their sessions took themselves for those of a CPU, so no recording of theirs was ever looked at."""
    drafter = Two(kind, Named(first), Named("ngram"))
    check_captured(replace(BIASED, drafter=drafter, coupling=coupling, slots=2))
    assert Watched.replays, "nothing was replayed: nothing was tested"


@settings(
    suppress_health_check=list(HealthCheck), max_examples=40, phases=[Phase.explicit, Phase.generate, Phase.shrink]
)
@given(worlds(new=(4, 1, 6)).filter(lambda world: not world.sampling.processors))
def test_recordings_own_what_they_read(world: World) -> None:
    """The same for whatever can be recorded; the rest runs eagerly, with the same text."""
    if world.one_text or not world.drafter.shared:  # recording calls the drafter more often
        check_captured(world)


def test_the_watch_sees_memory_that_goes() -> None:
    """Catches a watch that sees nothing: a step that reads what a cache holds, which is emptied."""
    held = [torch.ones(3)]
    with Reads() as reads:
        held[0] + torch.zeros(3)
    (memory,) = reads.read.values()
    assert not memory.expired()
    held.clear()
    assert memory.expired()
