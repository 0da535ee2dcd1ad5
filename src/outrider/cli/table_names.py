"""The names in a table of the package, for help texts that follow the table.

They are read from its source: importing the tables of drafters and engines would import torch, and `--help` would take
seconds.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path


def names_in(module: str, table: str) -> tuple[str, ...]:
    """The keys of ``table``, a dict with strings as keys. A table whose source is no plain dict is imported."""
    if module not in sys.modules and (names := _in_source(module, table)) is not None:
        return names
    return tuple(vars(import_module(module))[table])


def _in_source(module: str, table: str) -> tuple[str, ...] | None:
    spec = find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    for node in ast.parse(Path(spec.origin).read_text("utf-8")).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == table and isinstance(node.value, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.value.keys]
            return tuple(map(str, keys)) if all(isinstance(key, str) for key in keys) else None
    return None
