"""All experiments, in the order of the papers."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from outrider.errors import BadOption
from outrider.paper import acceptance, beams, chen, formulas, lenience, speed, traces, tulsian
from outrider.paper.table import Experiment

_FOUND = (
    *formulas.EXPERIMENTS, *traces.EXPERIMENTS, *speed.EXPERIMENTS, *acceptance.EXPERIMENTS, *lenience.EXPERIMENTS,
    *beams.EXPERIMENTS, *chen.EXPERIMENTS, *tulsian.EXPERIMENTS,
)  # fmt: skip
_ORDER = (
    "table1", "figure1", "figure2", "figure3", "figure4", "figure5", "table2", "table3", "sampling", "rejection",
    "beams", "table5", "lenience",
    "chen-table1", "chen-figure1", "tulsian-table1", "tulsian-table2", "tulsian-table3", "tulsian-table4",
    "tulsian-table5",
)  # fmt: skip
EXPERIMENTS = tuple(sorted(_FOUND, key=lambda experiment: _ORDER.index(experiment.name)))


def chosen(only: str | None) -> Sequence[Experiment]:
    """Those that ``--only`` names, all if it names none."""
    if only is None:
        return EXPERIMENTS
    known = {experiment.name: experiment for experiment in EXPERIMENTS} | {"table4": _named("table2")}
    found = []
    for name in filter(None, (part.strip() for part in only.split(","))):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? There are" if near else "there are"
            raise BadOption(f"--only {name!r}: no such experiment; {hint} {', '.join(known)}")
        found.append(known[name])
    if not found:
        raise BadOption(f"--only {only!r} names nothing; write for instance --only table2,table3")
    return [experiment for experiment in EXPERIMENTS if experiment in found]


def _named(name: str) -> Experiment:
    return next(experiment for experiment in EXPERIMENTS if experiment.name == name)
