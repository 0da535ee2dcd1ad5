"""What a wheel needs before it is built: files, metadata, declared imports, and instructions that work today."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "outrider"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# Peers to compare with, each in an environment of its own; what comes with torch and with numba; torch's own tools for
# eight bits, used where somebody has installed them.
NOT_OURS = {"vllm", "openvino", "openvino_genai", "xllamacpp", "triton", "llvmlite", "torchao"}


def test_types_are_announced() -> None:
    """pyproject.toml named a py.typed that did not exist: type checkers ignored every annotation."""
    assert (PACKAGE / "py.typed").is_file() and "Typing :: Typed" in PROJECT["classifiers"]


def test_metadata_can_be_shown() -> None:
    """Without a readme `twine check --strict` refuses the package, and an index has nothing to show."""
    assert (ROOT / PROJECT["readme"]).is_file() and (ROOT / PROJECT["license-files"][0]).is_file()
    versions = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    lowest, highest = re.fullmatch(r">=(3\.\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()  # type: ignore[union-attr]
    assert versions[0] == lowest and versions[-1] == f"3.{int(highest) - 1}"


def test_what_is_imported_is_declared() -> None:
    """Catches a package that only this environment happens to have: a wheel would fail where it is missing."""
    extras = PROJECT["optional-dependencies"]
    declared = [*PROJECT["dependencies"], *(line for name in extras if name != "dev" for line in extras[name])]
    names = {_normal(re.match(r"[\w.-]+", line).group()) for line in declared}  # type: ignore[union-attr]
    homes = packages_distributions()
    for path in PACKAGE.rglob("*.py"):
        beside = {file.stem for file in path.parent.glob("*.py")}  # of a script that runs under another Python
        for module in _imports(path) - sys.stdlib_module_names - {"outrider"} - NOT_OURS - beside:
            found = {_normal(name) for name in homes.get(module, [module])}
            assert found & names, f"{path.name} imports {module}, which pyproject.toml does not declare"


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(str(node.module).partition(".")[0])
    return names


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_no_instruction_needs_an_index() -> None:
    """README, docs and errors said pip install 'outrider[cpu]', which no index has: from a checkout it is '.[cpu]'."""
    files = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *PACKAGE.rglob("*.py"),
        *(ROOT / "recipes").glob("*.py"),
    ]
    for path in files:
        if path.parent.name != "decisions":  # what was once the case
            found = re.search(r"pip install '?outrider|`outrider\[", path.read_text(encoding="utf-8"))
            assert found is None, f"{path.name}: {found.group()}"
