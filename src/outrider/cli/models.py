"""``outrider models``: fetch, list and find the models Outrider keeps in its cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.errors import ModelError, ModelNotFound
from outrider.models import hub, manifest, pairs
from outrider.models.gguf import KNOWN, MB

app = typer.Typer(no_args_is_help=True, help="Fetch, list and find models.")

Name = Annotated[str, typer.Argument(help="A known name (smollm2-135m, t5-ende), a pair's directory or a .gguf file.")]
Force = Annotated[bool, typer.Option("--force", help="Fetch and convert again, replacing what is there.")]
Check = Annotated[bool, typer.Option("--check", help="Compare every file with its checksum (slow).")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def pull(name: Name, force: Force = False, as_json: Json = False) -> None:
    """Fetch a model, convert it to safetensors and print its directory."""
    _print_path(name, hub.pull(name, force=force), as_json)


@app.command("list")
def list_models(check: Check = False, as_json: Json = False) -> None:
    """List the models in the cache, the known ones that are not there yet, and the pairs in the package."""
    rows, problems = _rows(check)
    typer.echo(json.dumps(rows, indent=2) if as_json else _table(rows))
    if problems:  # after the whole list, so that one bad model does not hide the others
        raise problems[0]


@app.command()
def path(name: Name, as_json: Json = False) -> None:
    """Print the directory of a model that is there; fetch nothing."""
    found = hub.resolve(name, pull=False)
    if isinstance(found, str):
        raise ModelNotFound(f"model {name!r} is not here; known: {', '.join(hub.NAMES)}, a directory or a .gguf file")
    _print_path(name, found, as_json)


def _print_path(name: str, found: Path, as_json: bool) -> None:
    typer.echo(json.dumps({"name": name, "path": str(found)}) if as_json else str(found))


def _rows(check: bool) -> tuple[list[dict[str, Any]], list[ModelError]]:
    """One record per model, and what is wrong with any of them."""
    rows: list[dict[str, Any]] = []
    problems: list[ModelError] = []
    for model in manifest.installed():
        state = "ready"
        try:
            manifest.check(model.path, full=check)
            state = "checked" if check else "ready"
        except ModelError as error:
            state = "corrupt"
            problems.append(error)
        rows.append(
            {
                "name": model.name,
                "state": state,
                "bytes": model.size,
                "licence": model.licence,
                "path": str(model.path),
                "source": model.source,
            }
        )
    present = {row["name"] for row in rows}
    for name, source in KNOWN.items():
        if name not in present:
            absent = {"state": "not pulled", "bytes": None, "path": None, "source": source.requirement}
            rows.append({"name": name, "licence": source.licence, **absent})
    for name in pairs.SHIPPED:
        row, problem = _pair_row(name)
        rows.append(row)
        problems.extend(problem)
    return rows, problems


def _pair_row(name: str) -> tuple[dict[str, Any], list[ModelError]]:
    known = pairs.SHIPPED[name]
    row = {"name": name, "licence": known.licence, "source": f"in the package, made by {known.recipe}"}
    try:
        place = Path(hub.resolve(name))
    except ModelNotFound:
        return {**row, "state": "missing", "bytes": None, "path": None}, []
    except ModelError as error:
        return {**row, "state": "corrupt", "bytes": None, "path": None}, [error]
    return {**row, "state": "shipped", "bytes": pairs.size(place.parent), "path": str(place)}, []


def _table(rows: list[dict[str, Any]]) -> str:
    """Plain columns: a path is never wrapped or cut, so that it can be copied."""
    cells = [["name", "state", "size", "licence", "path"]]
    for row in rows:
        size = f"{row['bytes'] // MB} MB" if row["bytes"] is not None else "-"
        cells.append([row["name"], row["state"], size, row["licence"] or "-", row["path"] or "-"])
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    return "\n".join(lines)
