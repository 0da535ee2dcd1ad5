"""Runs experiments unit by unit: what is in the results already is not run again."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from outrider import __version__
from outrider.bench.machine import Neighbours, cpu_name
from outrider.paper.lab import Lab
from outrider.paper.results import KIND, VERSION, PaperResults
from outrider.paper.table import Experiment
from outrider.report.picture_json import to_json
from outrider.runtime import timer

Say = Callable[[str, int, int], None]
"""Told what runs next, and how many of how many units are done."""


def machine(device: str) -> dict[str, Any]:
    """What the figures belong to, and what made them: a unit is run again where any of it is another."""
    gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    return {
        "cpu": cpu_name(), "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if gpu else None,
        "python": platform.python_version(), "outrider": __version__, "torch": torch.__version__,
        "transformers": version("transformers"), "numba": _version("numba"),
    }  # fmt: skip


def _version(package: str) -> str | None:
    """None: it is not installed, and another engine runs."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def run(experiments: Sequence[Experiment], lab: Lab, results: PaperResults, say: Say) -> list[dict[str, Any]]:
    """The records of all units, in order. Ctrl-C leaves those that were finished in the results."""
    settings = {**asdict(lab.amount), "device": lab.device, "dtype": lab.dtype, "data": dict(lab.texts.given)}
    here = machine(lab.device)
    units = [(experiment, unit) for experiment in experiments for unit in experiment.units]
    found = []
    for number, (experiment, unit) in enumerate(units):
        record = results.find(experiment.name, unit.name, settings, here)
        if record is None:
            say(f"{experiment.name}: {unit.name}", number, len(units))
            began, others = timer.now(), Neighbours(lambda: sum(os.times()[:2]))
            given = unit.run(lab)
            record = {
                "kind": KIND, "version": VERSION, "paper": experiment.paper, "experiment": experiment.name,
                "title": experiment.title, "differs": experiment.differs, "unit": unit.name,
                "settings": settings, "machine": here, "rows": [row.to_json() for row in given.rows],
                "pictures": [to_json(picture) for picture in given.pictures], "notes": list(given.notes),
                "seconds": round(timer.now() - began, 1),
                "others_cores": None if (cores := others.cores()) is None else round(cores, 2),
            }  # fmt: skip
            results.add(record)
        found.append(record)
    say("done", len(units), len(units))
    return found
