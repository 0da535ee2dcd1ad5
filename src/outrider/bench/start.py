"""Measures the start of a process up to its first token: seconds and resident memory at every stage.

Every measurement is a process of its own. A model that was used before is warm: its files are in the system's cache
and its conversion is done. Libraries are what is private to a process that has imported everything, and the pages of
shared libraries whenever they are touched; the rest of a process is its model: mapped weights and memory of its own.
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
from outrider.models.hub import names

STAGES = ("python", "torch", "imports", "loaded", "first token", "end")

CHILD = """
import json, sys, time

began, target, draft, dtype, tokens, engine = float(sys.argv[1]), *sys.argv[2:5], int(sys.argv[5]), sys.argv[6]

def mapped_code():
    size, inside = 0, False
    for line in open("/proc/self/smaps"):
        if "-" in line.split(" ", 1)[0]:
            inside = ".so" in line
        elif inside and line.startswith("Rss:"):
            size += int(line.split()[1]) * 1024
    return size

def stage(name):
    global began
    now = time.time()
    try:
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        sizes = {key: int(status[name].split()[0]) * 1024 for key, name in
                 (("resident", "VmRSS"), ("peak", "VmHWM"), ("private", "RssAnon"))}
        sizes["code"] = mapped_code()
    except (OSError, KeyError):  # not on Linux
        sizes = {}
    print(json.dumps({"stage": name, "seconds": now - began, **sizes}), flush=True)
    began += time.time() - now  # looking is not starting

stage("python")
import importlib, outrider, outrider.runtime.gc_pause
with outrider.runtime.gc_pause.gc_paused():  # as outrider.load imports it
    import torch
stage("torch")
load = outrider.load
if engine:
    importlib.import_module(engine)
stage("imports")
llm = load(target, draft, "cpu", dtype)
model = llm.target.model
stage("loaded")
chunks = llm.stream("The capital of France is", max_new_tokens=tokens)
next(chunks)
stage("first token")
for chunk in chunks:
    pass
stage("end")
facts = model.facts
module = type(model.engine).__module__
print(json.dumps({"engine": facts.engine, "weights": facts.weights_in, "module": module}), flush=True)
"""


def start(
    target: str,
    draft: str = "auto",
    dtype: str = "auto",
    tokens: int = 64,
    repeats: int = 5,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> dict[str, Any]:
    """Start ``repeats`` processes, one after another, and one before them that is not counted -> the report.

    Ctrl-C ends it: the report is then of the processes that were finished.
    """
    require(repeats >= 1, f"repeats must be at least 1, got {repeats}")
    names.resolve(target)  # fetched and converted, if need be, before any clock runs
    progress("warming up", 0.0)
    warm = start_once(target, draft, dtype, tokens, "")
    # What an engine imports when a model is loaded: named beforehand, it counts as a library and not as the model's.
    engine = warm["module"]
    runs: list[dict[str, Any]] = []
    try:
        for number in range(1, repeats + 1):
            progress(f"start {number} of {repeats}", number / (repeats + 1))
            runs.append(start_once(target, draft, dtype, tokens, engine))
    except KeyboardInterrupt:
        if not runs:
            raise
    stages = [_summary(runs, name) for name in STAGES]
    bare = stages[STAGES.index("imports")].get("private", 0)  # what a process has before it has a model
    for stage in stages:
        if "peak" in stage:
            stage["beyond_libraries"] = max(0, stage["peak"] - stage["code"] - bare)
    return {"engine": warm["engine"], "weights": warm["weights"], "repeats": len(runs), "stages": stages}


def _summary(runs: list[dict[str, Any]], name: str) -> dict[str, Any]:
    found = [run[name] for run in runs]
    sizes = {key: median(f[key] for f in found) for key in ("resident", "peak", "private", "code") if key in found[0]}
    return {"stage": name, "seconds": spread([f["seconds"] for f in found]), **sizes}


def start_once(target: str, draft: str, dtype: str, tokens: int, engine: str) -> dict[str, Any]:
    home = str(Path(outrider.__file__).parents[1])
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", CHILD, str(time.time()), target, draft, dtype, str(tokens), engine]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env={**os.environ, "PYTHONPATH": path})
    if done.returncode != 0:
        raise OutriderError(f"a process that loads {target!r} failed: {done.stderr.strip().splitlines()[-1:]}")
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["stage"]: line for line in lines if "stage" in line} | lines[-1]
