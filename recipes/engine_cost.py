"""Milliseconds of one run of a model by the number of tokens in it, engine by engine, in one process.

python recipes/engine_cost.py smollm2-135m
python recipes/engine_cost.py smollm2-135m --engines numba,numba:float16,numba:int8 --widths 1-9

Engines and widths take turns, so that whatever else the machine does falls on all of them. The floor is the time to
read the weights of a run once, in the form the engine keeps them in, at the bandwidth measured in the same process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from mistakes import guarded
from width_cost import run_ms, started

from outrider.bench.machine import read_bandwidth
from outrider.models.engine.choice import Kernels
from outrider.models.engine.sizes import Sizes
from outrider.models.hub import loading

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1 + 2 / 32}
"""Of a weight, with its share of a scale."""


def loaded(target: str, name: str, rows: int) -> Any:
    """An engine's name, in float32, or with what else it is to compute in or to keep weights in behind a colon."""
    engine, _, form = name.partition(":")
    weights, dtype = ("full", form) if form in loading.DTYPES else (form or "full", "float32")
    kernels = Kernels(engine, weights, rows=rows, release=True)
    return loading.load(target, "cpu", dtype, kernels=kernels).model


def kept_in(model: Any) -> str:
    """The form of the weights that a run reads."""
    return str(model.facts.weights_in)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--engines", default="numba,numba:int8,torch")
    parser.add_argument("--widths", default="1-9", help="tokens of a run: FIRST-LAST")
    parser.add_argument("--capacity", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, help="also write the table here, as JSON")
    options = parser.parse_args()
    first, last = (int(part) for part in options.widths.split("-"))
    widths = range(first, last + 1)
    models = {name: loaded(options.target, name, last) for name in options.engines.split(",")}
    sessions = {name: started(model, 1, last, options.capacity) for name, model in models.items()}
    times: dict[str, dict[int, list[float]]] = {name: {width: [] for width in widths} for name in models}
    for turn in range(options.repeats + 2):
        for name, session in sessions.items():
            for width in widths:
                session.forget_guesses()
                taken = run_ms(session, width)
                if turn >= 2:
                    times[name][width].append(taken)
    speed = read_bandwidth(torch.get_num_threads())["median"]
    sizes = Sizes.of(next(iter(models.values())).config)
    numbers = sizes.weights + sizes.hidden * next(iter(models.values())).vocab_size
    report: dict[str, Any] = {"target": options.target, "threads": torch.get_num_threads(), "read_gb_s": speed / 1e9}
    sys.stdout.write(
        f"{options.target}, {report['threads']} threads, {speed / 1e9:.1f} GB/s, capacity {options.capacity}, medians "
        f"of {options.repeats} (least-most), ms\n"
    )
    for name, model in models.items():
        floor = numbers * BYTES[kept_in(model)] / speed * 1e3
        cells = [f"{statistics.median(t):.1f} ({min(t):.1f}-{max(t):.1f})" for t in times[name].values()]
        sys.stdout.write(f"{name:18s} {model.facts.engine}; floor {floor:.1f}\n")
        sys.stdout.writelines(f"  {width:2d}: {cell}\n" for width, cell in zip(widths, cells, strict=True))
        report[name] = {"engine": model.facts.engine, "floor_ms": floor, "ms": times[name]}
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    guarded(main)
