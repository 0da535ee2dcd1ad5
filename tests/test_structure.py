"""The shape of the source, counted: attributes looked up by a literal name, long files, docstrings, import circles.

Every ceiling here may only be lowered. A number that has sunk below its ceiling lowers the ceiling in the same commit.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "outrider"
LONGEST = 300

CONFIG = "attributes of a transformers config, which differ from family to family"
CALLABLE = "a caller's own callable, which may have no name"

BORDERS: dict[str, tuple[str, set[str]]] = {
    "core/processors.py": (CALLABLE, {"__name__"}),
    "decoding/stopping.py": (CALLABLE, {"__name__"}),
    "hf/keywords.py": ("a function or a bound method of transformers", {"__func__"}),
    "hf/lent.py": ("a transformers model with adapters", {"_hf_peft_config_loaded"}),
    "hf/processors.py": (
        "transformers' logits processors, and functions that may refuse attributes",
        {"min_tokens_to_keep", "filter_value", "top_p", "__dict__"},
    ),
    "hf/refusals.py": ("transformers' caches", {"_is_user_defined"}),
    "prompts.py": ("arrays of any library", {"tolist"}),
    "speculation.py": ("an executor of any library", {"submit"}),
    "training/head_shape.py": (CONFIG, {"num_key_value_heads"}),
}  # fmt: skip
"""Files at the border to other libraries: why an attribute may be missing there, and which attributes."""

LOOKUPS: dict[str, int] = {}
"""getattr and hasattr with a literal name outside the borders, by folder. A folder that is not named has none."""

PRIVATE = {
    "bench": 1, "certificate": 2, "drafters": 11, "fuzz": 3, "gpu": 4, "hf": 3, "models": 1, "planning": 1,
    "runtime": 1, "statistics": 2, "test_imports.py": 1, "training": 2,
}  # fmt: skip
"""Private names of the package that tests use, by folder of the tests. A folder that is not named uses none."""

TOO_LONG = {
    "src/outrider/drafters/head_sessions.py": 321,
    "src/outrider/models/transformers/model.py": 338,
}
"""Files that are longer than they may be, and the length each may have until it is split."""

ALGORITHM = 80
"""Lines of core/algorithm.py, which is read beside the paper."""

CIRCLES: list[set[str]] = []
"""Files that import each other when the program runs."""

NAMING_CIRCLES = [
    *CIRCLES,
    {"outrider.models.transformers.model", "outrider.models.transformers.selfcheck"},
]
"""The same with imports that only type checkers follow."""

SAME_NAMES = {"Engine": 3, "Weights": 2}
"""Public classes of the package that share a name, and how many do."""

FILES = sorted(SOURCE.rglob("*.py"))
WRITTEN = [path for folder in ("src", "tests", "recipes") for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def literal_lookups(tree: ast.AST) -> Iterator[str]:
    """The names that getattr and hasattr are called with as literals."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1):
            continue
        name = node.args[1]
        if node.func.id in ("getattr", "hasattr") and isinstance(name, ast.Constant):
            yield str(name.value)


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def private_definitions(tree: ast.AST) -> Iterator[str]:
    """Private functions, classes, variables and attributes that a file defines."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store):
            yield node.attr if isinstance(node, ast.Attribute) else node.id


def private_uses(tree: ast.AST) -> Iterator[str]:
    """Private names that a file takes from others: attributes, imports, and strings that a fixture replaces."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls", "super()"):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".setattr", ".delattr")):
            strings = (word.value for word in node.args[:2] if isinstance(word, ast.Constant))
            yield from (str(string).rpartition(".")[2] for string in strings)


def imports(node: ast.AST, modules: set[str], for_types: bool) -> Iterator[str]:
    """Modules of the package that a file imports, inside functions, too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test) and not for_types:
            for other in child.orelse:
                yield from imports(ast.Module([other], []), modules, for_types)
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            for alias in child.names:
                whole = f"{child.module}.{alias.name}"
                yield whole if whole in modules else str(child.module)
        else:
            yield from imports(child, modules, for_types)


def graph(for_types: bool) -> dict[str, set[str]]:
    paths = {}
    for path in FILES:
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {
        name: {other for other in imports(parsed(path), set(paths), for_types) if other in paths and other != name}
        for name, path in paths.items()
    }


def circles(arrows: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules each of which reaches every other."""
    reach = {}
    for start in arrows:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            new = arrows[ahead.pop()] - seen
            seen |= new
            ahead += new
        reach[start] = seen
    found: list[set[str]] = []
    for name in sorted(arrows):
        group = {other for other in reach[name] if name in reach[other]}
        if group and group not in found:
            found.append(group)
    return found


def test_attributes_are_not_looked_up_by_name() -> None:
    """Some forty methods were known to nobody but getattr, and wrappers forgot to pass them on."""
    found: Counter[str] = Counter()
    places = []
    for path in FILES:
        place = path.relative_to(SOURCE)
        _, allowed = BORDERS.get(place.as_posix(), ("", set()))
        more = [name for name in literal_lookups(parsed(path)) if name not in allowed]
        found[place.parts[0]] += len(more)
        places += [f"{place}: {name}" for name in more]
    above = {folder: count for folder, count in found.items() if count > LOOKUPS.get(folder, 0)}
    assert not above, "\n".join(places)


def test_borders_are_used() -> None:
    """Catches a permission that outlived its reason."""
    for place, (_, allowed) in BORDERS.items():
        unused = allowed - set(literal_lookups(parsed(SOURCE / place)))
        assert not unused, f"{place} no longer looks up {sorted(unused)}: take it out of BORDERS"


def test_tests_use_no_private_names() -> None:
    """A test of a private name breaks when its module is written anew, though nothing a user sees has changed."""
    owned = {name for path in FILES for name in private_definitions(parsed(path)) if private(name)}
    found: Counter[str] = Counter()
    places = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        tree, place = parsed(path), path.relative_to(ROOT / "tests")
        own = set(private_definitions(tree))
        used = [name for name in private_uses(tree) if name in owned - own]
        found[place.parts[0]] += len(used)
        places += [f"{place}: {name}" for name in used]
    above = {folder: count for folder, count in found.items() if count > PRIVATE.get(folder, 0)}
    assert not above, "\n".join(places)


def test_a_class_has_a_name_of_its_own() -> None:
    """There were three Weights, three Engines, four Plans and four Rows: a reader could not tell which was meant."""
    classes = (node for path in FILES for node in parsed(path).body if isinstance(node, ast.ClassDef))
    count = Counter(node.name for node in classes if not private(node.name))
    assert {name: n for name, n in count.items() if n > SAME_NAMES.get(name, 1)} == {}


def test_files_are_short() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines()) for path in WRITTEN}
    above = {place: lines for place, lines in lengths.items() if lines > TOO_LONG.get(place, LONGEST)}
    assert not above


def test_algorithm_1_fits_a_screen() -> None:
    assert len((SOURCE / "core" / "algorithm.py").read_text("utf-8").splitlines()) <= ALGORITHM


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(path.relative_to(ROOT)) for path in WRITTEN if not ast.get_docstring(parsed(path))]
    assert not silent


@pytest.mark.parametrize("for_types", [False, True], ids=["running", "naming"])
def test_no_two_files_import_each_other(for_types: bool) -> None:
    """An import inside a function hides a circle from Python, not from a reader."""
    known = NAMING_CIRCLES if for_types else CIRCLES
    assert [circle for circle in circles(graph(for_types)) if circle not in known] == []


def test_the_counts_count() -> None:
    """Catches a count that finds nothing: a lookup, a hidden import and a circle of three are found."""
    code = "if TYPE_CHECKING:\n    import b\ndef f(x):\n    from a import c\n    return getattr(x, 'y', hasattr(x, z))"
    tree = ast.parse(code)
    assert list(literal_lookups(tree)) == ["y"]
    assert list(imports(tree, {"a.c", "b"}, False)) == ["a.c"]
    assert list(imports(tree, {"a.c", "b"}, True)) == ["b", "a.c"]
    touching = ast.parse("from a import _b\nc._d, self._e, monkeypatch.setattr('f._g', 1), h.__name__")
    assert sorted(filter(private, private_uses(touching))) == ["_b", "_d", "_g"]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == [{"a", "b", "c"}]
