"""Offline batches on a Ray cluster: Ray Data spreads lines over workers, each with a model of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outrider.cluster.answers import Advance, Answer, Loading, PromptLine, answers
from outrider.cluster.ray_cluster import connected

BLOCKS = 4
"""Blocks of lines per worker, at least: texts are written when their block is done."""


@dataclass(frozen=True)
class OnRay:
    """How a batch runs on a cluster."""

    loading: Loading
    workers: int | None = None  # models at a time; None: as many as the cluster has room for
    cpus: float = 1.0  # cores that each is given

    def __call__(self, lines: Sequence[PromptLine], slots: int) -> Callable[[Advance], Iterator[Answer]]:
        ray = connected()
        has = ray.cluster_resources()
        gpus = 1.0 if has.get("GPU", 0.0) >= 1 and self.loading.options["device"] != "cpu" else 0.0
        room = has["GPU"] if gpus else has.get("CPU", 1.0) / self.cpus
        workers = min(self.workers or max(1, int(room)), max(1, len(lines)))
        place = {"num_cpus": self.cpus, "num_gpus": gpus, "compute": ray.data.ActorPoolStrategy(size=workers)}
        blocks = min(len(lines), max(workers * BLOCKS, -(-len(lines) // (slots * BLOCKS))))

        def answered(advance: Advance) -> Iterator[Answer]:
            """Lines as their blocks are done. Every worker has the slots of a single process, and so gives its bits."""
            by_index = {line.index: line for line in lines}
            given = [{"line": json.dumps(asdict(line))} for line in lines]
            ray.data.DataContext.get_current().enable_progress_bars = False
            done = ray.data.from_items(given, override_num_blocks=blocks).map_batches(
                Worker, fn_constructor_args=(self.loading, slots), batch_size=None, **place
            )
            for row in done.iter_rows():
                record = json.loads(row["record"])
                advance(0, len(record.get("tokens", ())))
                yield by_index[int(row["index"])], record

        return answered if lines else lambda advance: iter(())


class Worker:
    """A model in a process of the cluster."""

    def __init__(self, loading: Loading, slots: int) -> None:
        self.llm, self.slots = loading.load(slots), slots

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        lines = [PromptLine(**json.loads(text)) for text in batch["line"]]
        found = list(answers(self.llm, lines, self.slots, lambda more_lines, more_tokens: None))
        return {
            "index": [line.index for line, _ in found],
            "record": [json.dumps(record, allow_nan=False) for _, record in found],
        }
