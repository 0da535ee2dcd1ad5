"""What ``python -m build`` has made, as a user would get it: nothing is missing, and the wheel runs by itself.

    python .ci/check_package.py dist

The wheel goes into a new virtual environment. Of the packages it needs that environment borrows those of the
interpreter this runs with, which takes no time; the package itself can only come from the wheel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(dist: Path) -> None:
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    check_wheel(wheel)
    check_sdist(sdist)
    with tempfile.TemporaryDirectory() as folder:
        run_from(wheel, Path(folder))
    print(f"{wheel.name} and {sdist.name}: complete, and the wheel runs")


def sources() -> dict[str, bytes]:
    """Every file of the package by its name in a wheel."""
    package = ROOT / "src" / "outrider"
    files = [p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return {p.relative_to(package.parent).as_posix(): p.read_bytes() for p in files}


def check_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name, data in sources().items():
            assert name in archive.namelist(), f"{wheel.name} lacks {name}"
            assert archive.read(name) == data, f"{wheel.name} has another {name} than src"
        assert "outrider/py.typed" in archive.namelist(), f"{wheel.name} lacks py.typed: its types are not used"
        extra = [n for n in archive.namelist() if not n.startswith("outrider/") and ".dist-info/" not in n]
        assert not extra, f"{wheel.name} has files outside the package: {extra}"


def check_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {f"src/{name}" for name in sources()} | {
        "LICENSE",
        "README.md",
        "CONTRIBUTING.md",
        "Makefile",
        "constraints.txt",
        "mkdocs.yml",
    }
    for folder in ("tests", "docs", "examples", "recipes"):
        files = [p for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        wanted |= {p.relative_to(ROOT).as_posix() for p in files}
    assert not (missing := sorted(wanted - names)), f"{sdist.name} lacks {missing}"


def run_from(wheel: Path, folder: Path) -> None:
    """Install the wheel and decode with the pair of models that is in it."""
    venv.create(folder / "env")
    python = folder / "env" / "bin" / "python"
    own = Path(answer(folder, python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (own / "borrowed.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    answer(folder, *pip, "install", "--no-deps", "--no-index", "--force-reinstall", wheel.resolve())
    answer(folder, *pip, "check")  # what the wheel asks for is there
    place = answer(folder, python, "-c", "import outrider; print(outrider.__file__)").strip()
    assert Path(place).is_relative_to(own), f"outrider was imported from {place}, not from the wheel"
    command = folder / "env" / "bin" / "outrider"
    version = answer(folder, command, "--version").strip()
    assert wheel.name.startswith(f"outrider-{version}-"), f"{wheel.name} says that it is {version}"
    words = ("generate", "The old man went to the", "--target", "gpt-small", "-n", "16", "--json", "--draft")
    ours, plain = (json.loads(answer(folder, command, *words, draft)) for draft in ("auto", "none"))
    assert ours["tokens"] == plain["tokens"] and ours["stats"]["drafted"] > 0, (ours, plain)


def answer(folder: Path, *command: Path | str) -> str:
    """What a command says, with nothing of this checkout on its path."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    cache = {"OUTRIDER_CACHE": str(folder / "cache")}
    done = subprocess.run([str(c) for c in command], cwd=folder, env=kept | cache, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
