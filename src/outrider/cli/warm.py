"""``outrider warm``: prepare a model for its CPU engine now instead of at its first load."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import typer

from outrider.cli import common
from outrider.cli.common import answers, notes
from outrider.errors import BadOption, ModelNotFound
from outrider.models.hub import inventory
from outrider.models.hub.gguf import MB
from outrider.runtime import timer
from outrider.runtime.cache_dir import cache_dir


def warm(
    target: common.TargetArgument,
    engine: common.Engine = "auto",
    weights: common.Weights = "full",
    dtype: common.Dtype = "auto",
    as_json: common.Json = False,
) -> None:
    """Prepare a model for its engine on this CPU: weights as it reads them, code for its draft, what runs cost."""
    from outrider.models.engine.model import EngineModel

    began = timer.now()
    try:
        model = _prepared(target, engine, weights, dtype)
    except KeyboardInterrupt:
        notes.print(f"interrupted; {_kept(target)}; the same command goes on from there", markup=False)
        raise typer.Exit(130) from None
    if not isinstance(model, EngineModel):
        reason = (
            "no other engine can run it in that dtype, or it is too small to gain"
            if engine == "auto"
            else "as you asked"
        )
        raise BadOption(f"{target} is run by torch, which needs nothing prepared: {reason}")
    facts = model.facts
    taken, folder, size = timer.now() - began, model.prepared.folder, model.prepared.bytes
    if as_json:
        found = {
            "target": target, "engine": facts.engine, "any_width": facts.batch_invariant, "path": str(folder),
            "width_costs": facts.width_costs, "bytes": size, "seconds": taken,
        }  # fmt: skip
        answers.out(json.dumps(found), highlight=False)
        return
    runs = "as narrow as they can be" if facts.batch_invariant else "of constant width"
    answers.print(f"{target}: ready for {facts.engine} in {folder}", markup=False)
    notes.print(f"{size // MB} MB, runs {runs}, {taken:.1f} s", markup=False)
    if facts.width_costs is not None:
        costs = ", ".join(f"{width}: {cost:g}" for width, cost in facts.width_costs.items())
        notes.print(f"cost of a run by its tokens, in runs of one: {costs}", markup=False)


def _prepared(target: str, engine: str, weights: str, dtype: str) -> Any:
    """Load a model and generate once each way: what drafts and drawn tokens need is compiled when it is first used."""
    from outrider import llm
    from outrider.models.engine.model import EngineModel

    with notes.status(f"preparing {target}"):
        loaded = llm.load(target, device="cpu", dtype=dtype, engine=engine, weights=weights)
    if isinstance(loaded.target.model, EngineModel):
        for temperature in (0.0, 1.0):
            loaded.generate([0, 1, 2, 3], max_new_tokens=2, gamma=1, temperature=temperature, seed=0)
    return loaded.target.model


def _kept(target: str) -> str:
    """What an interruption has left in the cache, in words."""
    found = [part for entry in inventory.entries() if entry.source is None for part in entry.parts]
    with contextlib.suppress(ModelNotFound):
        found = [*inventory.find(target).parts, *found]
    useful = [part for part in found if part.kind not in ("unfinished", "unused")]
    parts = [f"{part.detail or part.kind} ({part.bytes // MB} MB)" for part in useful]
    return f"kept in {cache_dir()}: {', '.join(parts)}" if parts else "nothing was finished yet"
