"""Which skipped tests are to be expected on the machine at hand. Any other skip is a test that nobody runs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from importlib.util import find_spec

import torch

from outrider.runtime import cpu

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
"""Programs that the tests of the page can run in."""


def _no_gpu() -> bool:
    return not torch.cuda.is_available()


EXPECTED: dict[str, Callable[[], bool]] = {
    r"needs a CUDA device|no GPU": _no_gpu,
    r"could not import '(triton|torchao)'": _no_gpu,  # which belong to GPUs
    r"could not import 'xllamacpp'": lambda: find_spec("xllamacpp") is None,  # to compare with, if somebody has it
    r"could not import 'speculators'": lambda: find_spec("speculators") is None,  # it wants an older transformers
    r"Triton's interpreter has no|interpreted, not compiled": lambda: os.environ.get("TRITON_INTERPRET") == "1",
    r"this CPU does not compute in float16": lambda: not cpu.facts().computes_in_half,
    r"this CPU has no float16": lambda: not cpu.facts().converts_half,
    r"this CPU computes in float16": lambda: cpu.facts().computes_in_half,
    r"this CPU has no AMX": lambda: not cpu.facts().has_amx,
    r"products of bytes": lambda: not cpu.facts().multiplies_bytes,
    r"no fused multiplication": lambda: not cpu.facts().fuses_multiplication,
    r"npm's openai is not here": lambda: shutil.which("npm") is None or os.environ.get("OUTRIDER_NPM") == "none",
    r"no Chromium here": lambda: not any(map(shutil.which, CHROMIUM)),
    r"refused: see test_": lambda: True,  # covered by the test that it names
    r"run it with -m slow": lambda: True,
    r"another OpenMP runtime": lambda: True,  # of torch's build, which a user cannot choose
    r"no such thing here|no fork here|the system does not tell": lambda: True,  # of the operating system
}
"""By what the reason says: whether this machine has cause for it."""


def expected(reason: str) -> bool:
    return any(re.search(pattern, reason) and has_cause() for pattern, has_cause in EXPECTED.items())
