"""From the start of a process to its first token: seconds and resident memory at every stage.

Every measurement is a process of its own. A model that was used before is warm: its files are in the system's cache
and its conversion is done.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import outrider
from outrider.bench.timing import spread
from outrider.errors import OutriderError, require
from outrider.models import hub

STAGES = ("python", "torch", "transformers", "loaded", "first token", "end")

CHILD = """
import json, sys, time

began, target, draft, dtype, tokens = float(sys.argv[1]), *sys.argv[2:5], int(sys.argv[5])

def stage(name):
    try:
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    except OSError:
        status = {}
    sizes = {key: int(status[name].split()[0]) * 1024 for key, name in
             (("resident", "VmRSS"), ("peak", "VmHWM"), ("private", "RssAnon")) if name in status}
    print(json.dumps({"stage": name, "seconds": time.time() - began, **sizes}), flush=True)

stage("python")
import outrider
import torch
stage("torch")
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
stage("transformers")
llm = outrider.load(target, draft, "cpu", dtype)
model = llm.target.model
stage("loaded")
chunks = llm.stream("The capital of France is", max_new_tokens=tokens)
next(chunks)
stage("first token")
for chunk in chunks:
    pass
stage("end")
print(json.dumps({"dtype": str(model.dtype).removeprefix("torch.")}), flush=True)
"""


def start(
    target: str,
    draft: str = "auto",
    dtype: str = "auto",
    tokens: int = 64,
    repeats: int = 5,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> dict[str, Any]:
    """Start ``repeats`` processes, one after another, and one before them that is not counted -> the report."""
    require(repeats >= 1, f"repeats must be at least 1, got {repeats}")
    hub.resolve(target)  # fetched and converted, if need be, before any clock runs
    runs = []
    for number in range(repeats + 1):
        progress("warming up" if number == 0 else f"start {number} of {repeats}", number / (repeats + 1))
        runs.append(_once(target, draft, dtype, tokens))
    stages = [_summary(runs[1:], name) for name in STAGES]
    bare = stages[STAGES.index("transformers")].get("resident", 0)  # what a process has before it has a model
    for stage in stages:
        if "peak" in stage:
            stage["beyond_libraries"] = max(0, stage["peak"] - bare)
    return {"dtype": runs[-1]["dtype"], "repeats": repeats, "stages": stages}


def _summary(runs: list[dict[str, Any]], name: str) -> dict[str, Any]:
    found = [run[name] for run in runs]
    sizes = {key: median(f[key] for f in found) for key in ("resident", "peak", "private") if key in found[0]}
    return {"stage": name, "seconds": spread([f["seconds"] for f in found]), **sizes}


def _once(target: str, draft: str, dtype: str, tokens: int) -> dict[str, Any]:
    home = str(Path(outrider.__file__).parents[1])
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", CHILD, str(time.time()), target, draft, dtype, str(tokens)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env={**os.environ, "PYTHONPATH": path})
    if done.returncode != 0:
        raise OutriderError(f"a process that loads {target!r} failed: {done.stderr.strip().splitlines()[-1:]}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["stage"]: line for line in lines if "stage" in line} | {"dtype": lines[-1]["dtype"]}
