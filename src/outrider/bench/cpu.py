"""Compares engines on one CPU with the same weights, prompts and token counts: tokens per second and texts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from outrider.bench import llamacpp
from outrider.bench.cpu_contexts import PLACE, context_prompt, context_rows
from outrider.bench.cpu_rows import EngineCell, EngineResults, rows
from outrider.bench.machine import Neighbours, available_bytes, cpu_name, read_bandwidth
from outrider.bench.peers import MODULES, SEPARATE, Contender, Peer, PeerFailed, engine_and_dtype, process_seconds
from outrider.drafters import built_in
from outrider.drafters.head import CONFIG
from outrider.drafters.published import is_checkpoint
from outrider.errors import require
from outrider.models.hub import names, pairs
from outrider.models.hub.checkpoint import Checkpoint
from outrider.runtime.threads import available_cores
from outrider.trace import strict_json

SIZES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "int4": 0.5}
LOADING, DECODING = 900.0, 900.0  # seconds after which an engine is given up

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class CpuPlan:
    """What is measured, on what, how often."""

    target: str
    engines: tuple[str, ...]  # each an engine, or engine:dtype
    tokens: int = 128
    temperatures: tuple[float, ...] = (0.0,)
    repeats: int = 1
    draft: str = "auto"
    dtype: str = "auto"
    threads: int | None = None  # None: as many as there are cores at hand
    pythons: Mapping[str, str] = field(default_factory=dict)  # of engines that live elsewhere
    models: Mapping[str, str] = field(default_factory=dict)  # of engines that read another format
    out: Path | None = None
    contexts: tuple[int, ...] = ()  # lengths of prompts whose prefill and decoding are measured by themselves

    def __post_init__(self) -> None:
        for length in self.contexts:
            require(length >= 1, f"contexts must be at least 1, got {length}")
        require(len(set(self.contexts)) == len(self.contexts), f"contexts name a length twice: {self.contexts}")
        require(self.tokens >= 2, f"tokens must be at least 2 (the first belongs to the prompt), got {self.tokens}")
        require(self.repeats >= 1, f"repeats must be at least 1, got {self.repeats}")
        require(self.threads is None or self.threads >= 1, f"threads must be at least 1, got {self.threads}")
        require(len(self.temperatures) > 0, "temperatures is empty; name at least one")
        for t in self.temperatures:
            require(t >= 0, f"temperature must be at least 0, got {t:g}")
        require(len(self.engines) > 0, f"engines is empty; known: {', '.join(MODULES)}")
        require(len(set(self.engines)) == len(self.engines), f"engines name one twice: {', '.join(self.engines)}")
        for text in self.engines:
            engine_and_dtype(text)

    @property
    def cores(self) -> int:
        return self.threads or int(os.environ.get("OMP_NUM_THREADS") or 0) or available_cores()


def draft_place(target: str, draft: str) -> str | None:
    """The directory of a draft model that other engines can use, too; None where the draft is of another kind."""
    if draft == "auto":
        partner = pairs.draft_of(target)
        return None if partner is None else str(partner)
    if draft in built_in() or ">" in draft or (Path(draft) / CONFIG).is_file() or is_checkpoint(Path(draft)):
        return None
    partner = pairs.draft_of(draft)
    return str(names.resolve(draft) if partner is None else partner)


def contenders(plan: CpuPlan, checkpoint: Checkpoint) -> list[Contender]:
    """Who takes part. Engines that fix their way of decoding when they are loaded get a process for each way."""
    draft, found = draft_place(plan.target, plan.draft), []
    several = [engine_and_dtype(text)[0] for text in plan.engines]
    for text in plan.engines:
        engine, asked = engine_and_dtype(text)
        dtype = asked or plan.dtype
        common = {"shown": text if several.count(engine) > 1 else engine}
        if engine in plan.pythons:
            common["python"] = plan.pythons[engine]
        if engine == "outrider":
            found.append(Contender(engine, dtype, plan.target, ("plain", "speculative"), plan.draft, **common))
            continue
        if engine == "llamacpp":
            file = plan.models.get(engine) or llamacpp.gguf_file(plan.target, checkpoint.place)
            drafting = None if draft is None else llamacpp.gguf_file(plan.draft, draft)
            found += llamacpp.contenders(file, drafting, **common)
            continue
        ways = ["plain", "lookup"] + (["assisted"] if draft is not None and engine != "openvino" else [])
        place = plan.models.get(engine) or checkpoint.unpacked()
        dtype = checkpoint.dtype if dtype == "auto" else dtype
        groups = [(way,) for way in ways] if engine in SEPARATE else [tuple(ways)]
        found += [Contender(engine, dtype, place, group, draft, **common) for group in groups]
    return found


class Bench:
    """A run: its engines, and what they have given so far."""

    def __init__(
        self, plan: CpuPlan, checkpoint: Checkpoint, tasks: Mapping[str, Sequence[str]], command: str = ""
    ) -> None:
        self.plan, self.checkpoint = plan, checkpoint
        encoded = [(task, checkpoint.encode(text)) for task, texts in tasks.items() for text in texts]
        self.prompts = [(task, ids) for task, ids in encoded if len(ids) + plan.tokens <= checkpoint.longest]
        require(
            len(self.prompts) > 0,
            f"no prompt of {len(encoded)} fits: with {plan.tokens} tokens each is longer than the {checkpoint.longest} "
            f"that {plan.target!r} reads; give shorter ones with --prompts",
        )
        self.contexts = [
            (PLACE, length, context_prompt([ids for _, ids in encoded], length))
            for length in sorted(plan.contexts)
            if length + plan.tokens <= checkpoint.longest
        ]
        self.numbers = checkpoint.numbers_read()
        self.peers: list[Peer] = []
        self.results, self.at_contexts = EngineResults(), EngineResults()
        self.report: dict[str, Any] = {
            "target": plan.target, "command": command, "cpu": cpu_name(), "threads": plan.cores,
            "prompts": len(self.prompts), "tokens": plan.tokens, "repeats": plan.repeats, "weights": self.numbers,
            "left_out": len(encoded) - len(self.prompts),
            "contexts_left_out": sorted(set(plan.contexts) - {length for _, length, _ in self.contexts}),
            "engines": {}, "failed": {}, "interrupted": False,
        }  # fmt: skip

    def run(self, progress: Progress = lambda what, share: None) -> dict[str, Any]:
        """Everything that was asked for -> the report. Ctrl-C ends it early and keeps what was measured."""
        try:
            progress("reading memory", 0.0)
            self.report["bytes_per_second"] = read_bandwidth(self.plan.cores)
            self._load(progress)
            watch = Neighbours(self._own_seconds)
            for done, total, what in self._rounds():
                self.report["other_cores"] = watch.cores()
                self.save()
                progress(what, done / total)
        except KeyboardInterrupt:
            self.report["interrupted"] = True
        finally:
            for peer in self.peers:
                self._note_peak(peer)
                peer.end()
            self.save()
        return self.report

    def _note_peak(self, peer: Peer) -> None:
        for way in peer.contender.ways:
            about = self.report["engines"].get(f"{peer.contender.name} {way}")  # none: it was interrupted while loading
            if about is not None:
                about["peak_bytes"] = peer.peak_bytes()

    def save(self) -> None:
        self.report["rows"] = [asdict(row) for row in rows(self.results, self._floor)]
        self.report["contexts"] = [asdict(row) for row in context_rows(self.at_contexts)]
        self.report["samples"] = self.results.samples() + self.at_contexts.samples()
        if self.plan.out is not None:  # whole or not at all, whenever it is interrupted
            partial = self.plan.out.with_name(f".{self.plan.out.name}.partial")
            partial.write_text(strict_json(self.report, indent=1) + "\n", encoding="utf-8")
            partial.replace(self.plan.out)

    def _own_seconds(self) -> float:
        return process_seconds(os.getpid()) + sum(peer.cpu_seconds() for peer in self.peers)

    def _floor(self, name: str) -> float | None:
        """Tokens per second if a token took the reading of its weights and nothing else."""
        size = self.report["engines"][name]["bytes_each"]
        return None if size is None else self.report["bytes_per_second"]["median"] / (self.numbers * size)

    def _bytes_each(self, contender: Contender, dtype: str) -> float | None:
        """Of a weight as an engine reads it; None: not known."""
        if dtype in SIZES:
            return SIZES[dtype]
        place = contender.target if contender.engine == "llamacpp" else None
        file = place or llamacpp.gguf_file(self.plan.target, self.checkpoint.place)
        return None if file is None else llamacpp.weights_of(file)[1]

    def _load(self, progress: Progress) -> None:
        """Every engine and a short text from each of its ways, outside the clock."""
        found = contenders(self.plan, self.checkpoint)
        longest = max([len(ids) for _, ids in self.prompts] + [length for _, length, _ in self.contexts])
        for number, contender in enumerate(found):
            progress(f"loading {contender.name} {' '.join(contender.ways)}", number / len(found))
            if contender.obstacle:
                self._failed(contender, contender.obstacle)
            elif self._has_room(contender):
                self._start(contender, longest)

    def _has_room(self, contender: Contender) -> bool:
        """Whether there is memory for an engine; if not, that is its failure."""
        each = 4.0 if contender.dtype == "auto" else self._bytes_each(contender, contender.dtype) or 4.0
        needed = 2.5 * self.numbers * each + 2**29
        free = available_bytes()
        if free < needed:
            gib = f"{needed / 2**30:.1f} GiB, and {free / 2**30:.1f} are free"
            self._failed(contender, f"needs about {gib}; name fewer with --engines")
        return free >= needed

    def _failed(self, contender: Contender, reason: str, way: str | None = None) -> None:
        for each in contender.ways if way is None else (way,):
            self.report["failed"][f"{contender.name} {each}"] = " ".join(reason.split())[:500]

    def _start(self, contender: Contender, longest: int) -> None:
        peer = Peer(contender, self.plan.cores)
        request = {
            "do": "load", "engine": contender.engine, "target": contender.target, "dtype": contender.dtype,
            "ways": contender.ways, "draft": contender.draft, "threads": self.plan.cores,
            "length": longest + self.plan.tokens + 64,
        }  # fmt: skip
        try:
            about = peer.ask(request, LOADING)
        except (PeerFailed, KeyboardInterrupt) as error:
            peer.end()
            if isinstance(error, KeyboardInterrupt):
                raise
            self._failed(contender, str(error))
            return
        self.peers.append(peer)
        working = []
        for way in contender.ways:
            try:
                peer.ask(self._request(way, self.prompts[0][1], min(16, self.plan.tokens), 0.0), DECODING)
                working.append(way)
            except PeerFailed as error:
                self._failed(contender, str(error), way)
        peer.contender = replace(contender, ways=tuple(working))
        for way in working:
            self.report["engines"][f"{contender.name} {way}"] = {
                "engine": contender.engine, "version": about["version"], "dtype": about["dtype"],
                "note": about["notes"].get(way, ""), "same_python": contender.python == sys.executable,
                "bytes_each": self._bytes_each(contender, about["dtype"]),
            }  # fmt: skip

    @staticmethod
    def _request(way: str, prompt: Sequence[int], tokens: int, temperature: float) -> dict[str, Any]:
        settings = {"tokens": tokens, "temperature": temperature, "seed": 0}
        return {"do": "generate", "way": way, "prompt": list(prompt), **settings}

    def _rounds(self) -> Iterator[tuple[int, int, str]]:
        """Prompt by prompt, every engine in turn, a different one first each time."""
        texts = [
            (temperature, (task, number, prompt), self.results)
            for temperature in self.plan.temperatures
            for number, (task, prompt) in enumerate(self.prompts)
        ] + [(0.0, asked, self.at_contexts) for asked in self.contexts]
        for done, (temperature, asked, results) in enumerate(texts):
            for repeat in range(self.plan.repeats):
                turns = [(peer, way) for peer in self.peers for way in peer.contender.ways]
                first = (done + repeat) % max(1, len(turns))
                for peer, way in turns[first:] + turns[:first]:
                    self._decode(peer, way, temperature, asked, results)
            what = f"{asked[0]} of {asked[1]} tokens" if results is self.at_contexts else asked[0]
            yield done + 1, len(texts), f"{what}, temperature {temperature:g}"

    def _decode(
        self, peer: Peer, way: str, temperature: float, asked: tuple[str, int, list[int]], results: EngineResults
    ) -> None:
        """One text. An engine that fails does so once; the others go on."""
        (task, number, prompt), name = asked, f"{peer.contender.name} {way}"
        if name in self.report["failed"]:
            return
        try:
            got = peer.ask(self._request(way, prompt, self.plan.tokens, temperature), DECODING)
            require(
                len(got["tokens"]) == self.plan.tokens,
                f"gave {len(got['tokens'])} tokens where {self.plan.tokens} were asked for",
                PeerFailed,
            )
            results.add(temperature, task, number, name, EngineCell.of(got, len(prompt)))
        except PeerFailed as error:
            self._failed(peer.contender, f"{task}, temperature {temperature:g}: {error}", way)
