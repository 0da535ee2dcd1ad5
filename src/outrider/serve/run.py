"""An engine of the right size for a machine, and the server around it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import uvicorn

from outrider.core.abilities import Abilities
from outrider.core.model_facts import facts_of
from outrider.core.protocols import Drafter, Session
from outrider.errors import BadOption, require
from outrider.llm import LLM
from outrider.models.cached_session import CachedSession
from outrider.options import Options
from outrider.serve.app import make_app
from outrider.serve.engine import Engine, Limits
from outrider.serve.server import make_server
from outrider.serve.settings import ServerSettings, public_name


@dataclass(frozen=True)
class WantedSize:
    """The size that was asked for."""

    slots: int | None = None  # None: what suits the model
    context: int = 2016  # tokens of a prompt and its answer
    waiting: int = 64
    memory: float | None = None  # GiB for KV caches; None: half of what is free


def make_engine(llm: LLM, wanted: WantedSize, drafters: Mapping[str, Drafter] | None = None) -> Engine:
    """An engine whose KV caches fit into memory, those of all drafts included: nothing is allocated later for them.

    ``drafters``: beside the model's own, by the names that requests may give.
    """
    drafters = drafters or {}
    for name, value in (("slots", wanted.slots), ("context", wanted.context), ("waiting", wanted.waiting)):
        require(value is None or value >= 1, f"{name} must be at least 1, got {value}")
    model = llm.target.model
    require(not model.encoder_decoder, "serving is for decoder-only models; an encoder-decoder model cannot be served")
    context = min(wanted.context, model.max_length or wanted.context)
    require(wanted.memory is None or wanted.memory > 0, f"memory must be above 0 GiB, got {wanted.memory}")
    budget = wanted.memory * 2**30 if wanted.memory is not None else free_memory(model.device) / 2
    each = slot_bytes(llm, context, [llm.drafter, *drafters.values()])
    fitting = int(budget // each) if each else facts_of(model).slots
    if fitting < 1:
        raise BadOption(
            f"memory: a slot of {context} tokens needs {each / 2**30:.2f} GiB for its KV cache, and there are "
            f"{budget / 2**30:.2f} GiB; use a smaller context or more memory"
        )
    return Engine(llm, Limits(min(wanted.slots or facts_of(model).slots, fitting), context, wanted.waiting), drafters)


def load_drafters(llm: LLM, names: Sequence[str], trust: bool) -> dict[str, Drafter]:
    """Drafters beside the first, by the names that requests may give: of a path its last part."""
    found = {public_name(name): llm.with_draft(name, trust).drafter for name in names}
    require(len(found) == len(names), f"draft names {', '.join(map(public_name, names))}: one is given twice")
    return found


def slot_bytes(llm: LLM, context: int, drafters: Sequence[Drafter]) -> int:
    """Bytes of the KV caches of one slot, the target's and every draft's, as they are allocated."""
    decoder = llm.call(Options()).decoder
    shape = decoder.shape_for(context)
    target = llm.target.model.start(1, shape)
    drafts = [Abilities(drafter.start(1, shape, target)) for drafter in drafters]
    models = [session for draft in drafts for session in draft.model_sessions]
    return sum(map(_bytes, (target, *models)))


def _bytes(session: Session) -> int:
    if not isinstance(session, CachedSession):
        return 0
    tensors = [tensor for pair in session.cache.buffers() for tensor in pair]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def free_memory(device: torch.device) -> float:
    """Bytes that could be allocated on a device now."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) * 1024
    return 4.0 * 2**30


@dataclass(frozen=True)
class ListenAt:
    """Where to listen, and how to stop."""

    host: str = "127.0.0.1"
    port: int = 8000
    drain: float = 60.0  # seconds for answers under way
    access_log: bool = False


def run(engine: Engine, settings: ServerSettings, place: ListenAt, say: Callable[[str], object]) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    server = make_server(make_app(engine, settings), place.host, place.port, place.drain, place.access_log)

    def stopping() -> None:
        if engine.running:
            count = f"{engine.running} answer{'s' if engine.running > 1 else ''}"
            say(f"stopping: {count} under way may end first, for up to {place.drain:g} seconds")

    server.stopping = stopping
    threading.Thread(target=_announce, args=(server, place.host, say), daemon=True).start()
    # uvicorn raises the signal again once all is drained: the process has done what it asked for, and ends well.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    say("stopped")


def _announce(server: uvicorn.Server, host: str, say: Callable[[str], object]) -> None:
    """Say where it listens once it does."""
    while not server.started:
        if server.should_exit:
            return
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    say(f"http://{shown}:{port} (Ctrl-C stops)")
