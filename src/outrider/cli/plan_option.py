"""``--plan FILE``: a plan's draft and gamma where a command was given none."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.common import loading_options, notes
from outrider.errors import require

Plan = Annotated[
    Path | None,
    typer.Option(
        "--plan", help="A file of `outrider plan --out`: its draft, gamma and width are used where none is given."
    ),
]


def planned(
    context: typer.Context, path: Path | None, batch: int = 1, temperature: float | None = None
) -> dict[str, Any]:
    """What the plan sets: draft, gamma and width, as far as they were not given. Nothing without a plan.

    A plan for another target is refused. Another machine, dtype, engine or temperature is a warning: the text is right
    with any drafter and gamma, but speeds may not be as planned.
    """
    if path is None:
        return {}
    from outrider.bench.plan.place import device_name, files_fingerprint
    from outrider.bench.plan.plan_file import PlanFile
    from outrider.drafters.imported import names_a_class

    plan = PlanFile.read(path)
    choice = plan.choice(batch)
    target, loading = str(context.params["target"]), loading_options(context)
    plan.check_target(target, files_fingerprint(target))
    for difference in plan.differences(loading, device_name(loading["device"]), temperature):
        notes.print(f"warning: plan {path}: {difference}; speeds may differ", style="yellow", markup=False)
    require(
        given(context, "draft") or not names_a_class(choice.draft),
        f"plan {path}: its draft {choice.draft!r} is code, which a plan does not run; name it with --draft",
    )
    values: dict[str, Any] = {"draft": choice.draft, "width": plan.content["width"]}
    if choice.draft != "none" and not given(context, "draft"):  # its gamma is for its own draft
        values["gamma"] = choice.gamma
    return {name: value for name, value in values.items() if not given(context, name)}


def given(context: typer.Context, name: str) -> bool:
    """Whether an option was given, on the command line or by the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")
