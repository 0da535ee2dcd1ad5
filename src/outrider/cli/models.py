"""``outrider models``: fetch, list, find and remove the models Outrider keeps in its cache."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.errors import BadOption, ModelError, ModelNotFound
from outrider.models.hub import inventory, manifest, names, pairs
from outrider.models.hub.gguf import KNOWN, MB
from outrider.runtime.cache_dir import cache_dir

app = typer.Typer(
    no_args_is_help=True,
    help="Fetch, list, find and remove models. They are kept in the directory that OUTRIDER_CACHE names, else in "
    "~/.cache/outrider.",
)

Name = Annotated[str, typer.Argument(help="A known name (smollm2-135m, t5-ende), a pair's directory or a .gguf file.")]
Force = Annotated[bool, typer.Option("--force", help="Fetch and convert again, replacing what is there.")]
Check = Annotated[bool, typer.Option("--check", help="Compare every file with its checksum (slow).")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Kept = Annotated[str, typer.Argument(help="What `outrider models du` lists, or the .gguf file it was made from.")]
OnlyPrepared = Annotated[
    bool, typer.Option("--prepared", help="Only what engines read: the next load writes it again, in seconds.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_NAME = 28
"""Characters of a name beside which the rest fits into 80 columns."""


@app.command()
def pull(name: Name, force: Force = False, as_json: Json = False) -> None:
    """Fetch a model, convert it to safetensors and print its directory."""
    _print_path(name, names.pull(name, force=force), as_json)


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
    found = names.resolve(name, pull=False)
    if isinstance(found, str):
        raise ModelNotFound(f"model {name!r} is not here; known: {', '.join(names.NAMES)}, a directory or a .gguf file")
    _print_path(name, found, as_json)


@app.command()
def du(as_json: Json = False) -> None:
    """Show what every model occupies in the cache, part by part."""
    found = inventory.entries()
    if as_json:
        typer.echo(
            json.dumps(
                {"cache": str(cache_dir()), "bytes": _total(found), "entries": [_row(entry) for entry in found]},
                indent=2,
            )
        )
        return
    for entry in found:
        typer.echo(f"{_shown(entry.name)}: {_size(entry.bytes)}")
        for part in entry.parts:
            typer.echo(f"  {part.detail or part.kind:<22}{_size(part.bytes):>10}  {part.path.name}")
    typer.echo(f"total: {_size(_total(found))} in {cache_dir()} (another place: OUTRIDER_CACHE)")


@app.command()
def rm(name: Kept, prepared: OnlyPrepared = False, yes: Yes = False, as_json: Json = False) -> None:
    """Remove a model from the cache: converted weights, and all that was prepared from them for engines."""
    entry = _find(name)
    chosen = [part for part in entry.parts if not prepared or part.kind == "prepared"]
    if not yes:
        _ask(name, chosen, as_json)
    removed = inventory.remove(entry, only_prepared=prepared)
    freed = sum(part.bytes for part in removed)
    if as_json:
        paths = [str(part.path) for part in removed]
        typer.echo(json.dumps({"name": entry.name, "removed": paths, "bytes": freed}))
        return
    typer.echo(f"{_shown(entry.name)}: removed, {_size(freed)}")


def _find(name: str) -> inventory.Entry:
    try:
        return inventory.find(name)
    except ModelNotFound as error:
        if name not in pairs.SHIPPED:
            raise
        raise BadOption(f"model {name} ships with the package and is not in the cache; it cannot be removed") from error


def _ask(name: str, chosen: list[inventory.Part], as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise BadOption(f"models rm {name}: no terminal to confirm it on; add --yes")
    for part in chosen:
        typer.echo(f"{part.path} ({_size(part.bytes)})", err=True)
    typer.confirm("Remove?", abort=True, err=True)


def _total(found: list[inventory.Entry]) -> int:
    return sum(entry.bytes for entry in found)


def _parts(entry: inventory.Entry) -> list[dict[str, Any]]:
    return [
        {"kind": part.kind, "detail": part.detail or None, "bytes": part.bytes, "path": str(part.path)}
        for part in entry.parts
    ]


def _print_path(name: str, found: Path, as_json: bool) -> None:
    typer.echo(json.dumps({"name": name, "path": str(found)}) if as_json else str(found))


def _rows(check: bool) -> tuple[list[dict[str, Any]], list[ModelError]]:
    """One record per model, and what is wrong with any of them."""
    rows: list[dict[str, Any]] = []
    problems: list[ModelError] = []
    installed = {model.path: model for model in manifest.installed()}
    for entry in inventory.entries():
        model = installed.get(entry.parts[0].path)
        if model is None:  # shared code, or a directory of the user's own that an engine has files for
            if entry.source is not None:
                rows.append({**_row(entry), "state": "prepared", "licence": None, "path": entry.source})
            continue
        state = "checked" if check else "ready"
        try:
            manifest.check(model.path, full=check)
        except ModelError as error:
            state = "corrupt"
            problems.append(error)
        rows.append({**_row(entry), "state": state, "licence": model.licence, "path": str(model.path)})
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
        place = Path(names.resolve(name))
    except ModelNotFound:
        return {**row, "state": "missing", "bytes": None, "path": None}, []
    except ModelError as error:
        return {**row, "state": "corrupt", "bytes": None, "path": None}, [error]
    return {**row, "state": "shipped", "bytes": pairs.size(place.parent), "path": str(place)}, []


def _row(entry: inventory.Entry) -> dict[str, Any]:
    return {"name": entry.name, "source": entry.source, "bytes": entry.bytes, "parts": _parts(entry)}


def _table(rows: list[dict[str, Any]]) -> str:
    """For 80 columns. A path stands on a line of its own and is never wrapped or cut, so that it can be copied."""
    names = [_shown(row["name"]) for row in rows]
    width = max([4, *(len(name) for name in names if len(name) <= _NAME)])
    lines = [f"{'name':<{width}}  {'state':<10}  {'on disk':>9}  licence"]
    for name, row in zip(names, rows, strict=True):
        if len(name) > width:
            lines.append(name)
            name = ""
        size = "-" if row["bytes"] is None else _size(row["bytes"])
        lines.append(f"{name:<{width}}  {row['state']:<10}  {size:>9}  {row['licence'] or '-'}")
        lines += [f"  {row['path']}"] if row["path"] else []
    return "\n".join(lines)


def _shown(name: str) -> str:
    """A file or directory by its last name: the path has a line of its own."""
    return Path(name).name if Path(name).is_absolute() else name


def _size(size: int) -> str:
    return f"{max(1, round(size / MB)) if size else 0:,} MB"
