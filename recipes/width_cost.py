"""What fixed width costs: milliseconds of one target run at width 9 and at width 1, for several numbers of slots.

python recipes/width_cost.py smollm2-135m --device cpu --dtype float32
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch

from outrider.models import loading
from outrider.types import Shape


def run_ms(model: loading.HuggingFaceModel, slots: int, width: int, capacity: int, repeats: int) -> list[float]:
    """Time runs that score nothing but the last token of each row."""
    session = model.start(slots, Shape(capacity, width))
    for row in range(slots):
        session.admit(row, [1, 2, 3, 4, 5])
    nothing = torch.zeros((slots, 0), dtype=torch.int64, device=model.device)
    times = []
    for _ in range(repeats + 2):
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        session.score(nothing)
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    return times[2:]  # the first runs warm up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--width", type=int, default=9)
    parser.add_argument("--capacity", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    model = loading.load(options.target, options.device, options.dtype).model
    where = f"{model.dtype} {model.device}, {torch.get_num_threads()} threads"
    sys.stdout.write(f"{options.target} {where}, medians of {options.repeats}\n")
    for slots in (1, 4, 8, 16):
        wide = run_ms(model, slots, options.width, options.capacity, options.repeats)
        one = run_ms(model, slots, 1, options.capacity, options.repeats)
        a, b = statistics.median(wide), statistics.median(one)
        spread = f"{min(wide):.1f}-{max(wide):.1f} and {min(one):.1f}-{max(one):.1f}"
        line = f"slots {slots:2d}: width {options.width} {a:7.1f} ms, width 1 {b:7.1f} ms, ratio {a / b:.2f} ({spread})"
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
