"""What the rows of a run cost, in one run: a target run at width 9 against width 1, for 1, 4, 8 and 16 slots.

python recipes/width_cost.py smollm2-135m --device cpu --dtype float32

The shapes take turns, so that whatever else the machine does falls on all of them. "width ratio" is a run of the whole
width against one of a single token, with the same slots: what constant width costs where it is needed, and what eight
guesses cost where it is not; "slots ratio" is a run of all slots against a run of one, both at the whole width; "per
row" is that ratio divided by the slots.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from mistakes import guarded

from outrider.core.protocols import Session, Shape
from outrider.models.engine.choice import Kernels
from outrider.models.hub import loading

SLOTS = (1, 4, 8, 16)


def started(model: loading.HuggingFaceModel, slots: int, width: int, capacity: int) -> Session:
    session = model.start(slots, Shape(capacity, width))
    for row in range(slots):
        session.admit(row, [1, 2, 3, 4, 5])
    return session


def run_ms(session: Session, width: int) -> float:
    """Milliseconds of a run of so many tokens in each row."""
    guesses = torch.zeros((session.context.rows, width - 1), dtype=torch.int64, device=session.device)
    cuda = session.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    session.score(guesses)
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3


def measure(
    model: loading.HuggingFaceModel, width: int, capacity: int, repeats: int
) -> dict[tuple[int, int], list[float]]:
    """(slots, width) -> times; all shapes in turn, after two turns that warm up."""
    sessions = {(n, w): started(model, n, w, capacity) for n in SLOTS for w in (width, 1)}
    times: dict[tuple[int, int], list[float]] = {shape: [] for shape in sessions}
    for turn in range(repeats + 2):
        for shape, session in sessions.items():
            taken = run_ms(session, shape[1])
            if turn >= 2:
                times[shape].append(taken)
    return times


def table(times: dict[tuple[int, int], list[float]], width: int) -> list[dict[str, float]]:
    medians = {shape: statistics.median(values) for shape, values in times.items()}
    rows = []
    for n in SLOTS:
        wide, one = medians[n, width], medians[n, 1]
        slots_ratio = wide / medians[1, width]
        rows.append(
            {
                "slots": n, "wide_ms": wide, "wide_min": min(times[n, width]), "wide_max": max(times[n, width]),
                "one_ms": one, "one_min": min(times[n, 1]), "one_max": max(times[n, 1]),
                "width_ratio": wide / one, "slots_ratio": slots_ratio, "per_row": slots_ratio / n,
            }
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--engine", default="auto", help="numba, torch or auto")
    parser.add_argument("--weights", default="full", help="full or int8")
    parser.add_argument("--width", type=int, default=9)
    parser.add_argument("--capacity", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, help="also write the table here, as JSON")
    options = parser.parse_args()
    kernels = Kernels(options.engine, options.weights, rows=options.width, release=True)
    model = loading.load(options.target, options.device, options.dtype, kernels=kernels).model
    where = f"{options.target} {model.dtype} {model.device}, {model.facts.engine}, {torch.get_num_threads()} threads"
    rows = table(measure(model, options.width, options.capacity, options.repeats), options.width)
    sys.stdout.write(f"{where}, capacity {options.capacity}, medians of {options.repeats} (least-most)\n")
    for r in rows:
        sys.stdout.write(
            f"slots {r['slots']:2.0f}: width {options.width} {r['wide_ms']:7.1f} ms ({r['wide_min']:.1f}-"
            f"{r['wide_max']:.1f}), width 1 {r['one_ms']:7.1f} ms ({r['one_min']:.1f}-{r['one_max']:.1f}), "
            f"width ratio {r['width_ratio']:.2f}, slots ratio {r['slots_ratio']:.2f}, per row {r['per_row']:.2f}\n"
        )
    if options.out is not None:
        options.out.write_text(json.dumps({"conditions": where, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    guarded(main)
