"""What a process imports before it decodes: start-up is mostly imports, and one careless line doubles it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "import outrider": ("torch", "transformers", "numpy", "rich", "typer"),
    "import outrider.cli.main": ("torch", "transformers", "numpy", "matplotlib"),
    "import outrider; outrider.load": ("torch._inductor.compile_fx", "onnx", "matplotlib", "outrider.training"),
}


@pytest.mark.parametrize(("code", "heavy"), HEAVY.items(), ids=list(HEAVY))
def test_nothing_heavy_is_imported(code: str, heavy: tuple[str, ...]) -> None:
    """torch.compile in the body of a module brought the whole compiler in: 1.5 s for every process."""
    shown = f"{code}\nimport sys; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
