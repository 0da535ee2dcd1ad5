"""``outrider warm``: do now what the first load of a model on a CPU would do."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from outrider import timer
from outrider.cli import common
from outrider.cli.common import answers, notes
from outrider.errors import BadOption
from outrider.models.gguf import MB


def warm(
    target: Annotated[str, typer.Argument(help="Model: a short name, a directory, a .gguf file or a hub id.")],
    engine: common.Engine = "auto",
    weights: common.Weights = "full",
    dtype: common.Dtype = "auto",
    as_json: common.Json = False,
) -> None:
    """Prepare a model for its engine on this CPU: weights as it reads them, code for its draft, what runs cost."""
    from outrider import llm
    from outrider.models.engine_model import EngineModel

    began = timer.now()
    with notes.status(f"preparing {target}"):
        loaded = llm.load(target, device="cpu", dtype=dtype, engine=engine, weights=weights)
        model = loaded.target.model
    if not isinstance(model, EngineModel):
        reason = (
            "no other engine can run it in that dtype, or it is too small to gain"
            if engine == "auto"
            else "as you asked"
        )
        raise BadOption(f"{target} is run by torch, which needs nothing prepared: {reason}")
    for temperature in (0.0, 1.0):  # what drafts and drawn tokens need is compiled when it is first asked for
        loaded.generate([0, 1, 2, 3], max_new_tokens=2, gamma=1, temperature=temperature, seed=0)
    taken, folder, size = timer.now() - began, model.prepared.folder, model.prepared.bytes
    if as_json:
        found = {
            "target": target, "engine": model.engine_name, "any_width": model.any_width, "path": str(folder),
            "width_costs": model.width_costs, "bytes": size, "seconds": taken,
        }  # fmt: skip
        answers.out(json.dumps(found), highlight=False)
        return
    runs = "as narrow as they can be" if model.any_width else "of constant width"
    answers.print(f"{target}: ready for {model.engine_name} in {folder}", markup=False)
    notes.print(f"{size // MB} MB, runs {runs}, {taken:.1f} s", markup=False)
    if model.width_costs is not None:
        costs = ", ".join(f"{width}: {cost:g}" for width, cost in model.width_costs.items())
        notes.print(f"cost of a run by its tokens, in runs of one: {costs}", markup=False)
