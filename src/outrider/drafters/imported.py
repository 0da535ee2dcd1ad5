"""A drafter of the user's own, named by where its class stands: ``file.py:Class`` or ``package.module:Class``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from outrider.core.protocols import Drafter
from outrider.errors import BadOption

_NAMED = re.compile(r"(?P<place>.+\.py|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)")


def names_a_class(draft: str) -> bool:
    """Is this ``file.py:Class`` or ``package.module:Class``?"""
    return _NAMED.fullmatch(draft) is not None


def imported(draft: str) -> Drafter:
    """The drafter that such a name means: an object of the class, made without arguments, or the object itself.

    The file is run as Python runs a module. A relative path counts from the working directory.
    """
    parts = _NAMED.fullmatch(draft)
    if parts is None:
        raise BadOption(f"draft {draft!r}: write file.py:Class or package.module:Class")
    place, name = parts["place"], parts["name"]
    module = _from_file(draft, Path(place)) if place.endswith(".py") else _from_path(draft, place)
    found = vars(module).get(name)
    if found is None:
        known = [k for k, v in vars(module).items() if inspect.isclass(v) and v.__module__ == module.__name__]
        has = f"it defines {', '.join(known)}" if known else "it defines no class"
        raise BadOption(f"draft {draft!r}: {place} has no {name!r}; {has}")
    made = _made(draft, found, place) if inspect.isclass(found) else found
    _check(draft, made, found)
    return made  # type: ignore[no-any-return]


def _from_file(draft: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise BadOption(
            f"draft {draft!r}: the file {path} does not exist (looked for {path.resolve()}); name one that does, as "
            "path/to/file.py:Class"
        )
    path = path.resolve()
    name = f"outrider_draft_{path.stem}_{abs(hash(path)):x}"  # no name of a module that something else may import
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    sys.path.append(str(path.parent))  # what lies beside it can be imported, behind everything installed
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise BadOption(f"draft {draft!r}: running {path.name} raised {_told(error)}") from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def _from_path(draft: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise BadOption(f"draft {draft!r}: importing {name} raised {_told(error)}") from error
        raise BadOption(
            f"draft {draft!r}: there is no module {name!r} to import; install it, put its directory on PYTHONPATH, or "
            "name its file: path/to/file.py:Class"
        ) from None
    except (Exception, SystemExit) as error:
        raise BadOption(f"draft {draft!r}: importing {name} raised {_told(error)}") from error


def _made(draft: str, cls: Any, place: str) -> Any:
    needed = [
        p.name
        for p in inspect.signature(cls).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise BadOption(
            f"draft {draft!r}: {cls.__name__} needs arguments ({', '.join(needed)}) and is made without any: give them "
            f"defaults, or make an object in {place} (mine = {cls.__name__}(...)) and name that: {place}:mine"
        )
    try:
        return cls()
    except Exception as error:
        raise BadOption(f"draft {draft!r}: making a {cls.__name__} raised {_told(error)}") from error


def _check(draft: str, made: Any, found: Any) -> None:
    what = found.__name__ if inspect.isclass(found) else type(found).__name__
    remedy = "see docs/adding-a-drafter.md"
    if not isinstance(made, Drafter):
        missing = " and ".join(f"`{name}`" for name in ("name", "start") if not hasattr(made, name))  # a user's class
        raise BadOption(
            f"draft {draft!r}: {what} is no drafter: it has no {missing}; a drafter has `name` and "
            f"`start(rows, shape, target)`: {remedy}"
        )
    if not isinstance(made.name, str):
        raise BadOption(f"draft {draft!r}: `name` of {what} must be a text, got {made.name!r}")
    try:
        inspect.signature(made.start).bind(1, None, None)
    except TypeError as error:
        raise BadOption(f"draft {draft!r}: {what}.start must take (rows, shape, target): {error}; {remedy}") from None


def _told(error: BaseException) -> str:
    """``NameError: name 'x' is not defined (again.py, line 12)``."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "importlib" not in f.filename and f.filename != __file__]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{where}"
