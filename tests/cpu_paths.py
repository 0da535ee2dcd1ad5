"""Run the tests marked ``cpu_paths`` once for every lesser CPU that this one can pass for.

    python tests/cpu_paths.py [--jobs 2] [pytest's own options]

The libraries' own settings hold them back, in a process for each CPU: see ``outrider/runtime/cpu.py``. What the CPU
at hand chooses by itself is the ordinary run of all tests. Choices alone are tested for all CPUs anywhere: see
test_cpu_facts.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from outrider.runtime import cpu
from outrider.runtime.cpu import CpuFacts

TESTS = Path(__file__).parent


@dataclass(frozen=True)
class Lesser:
    """A CPU, by what one must have to pass for it and by the settings that make it do so."""

    name: str
    machine: str
    needs: frozenset[str]
    settings: dict[str, str]


def _x86(name: str, isa: str, vectors: str, mkl: str, features: str) -> Lesser:
    listed = ",".join(f"+{word}" for word in features.split())
    numba = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": listed}
    torch = {"ONEDNN_MAX_CPU_ISA": isa, "ATEN_CPU_CAPABILITY": vectors, "MKL_ENABLE_INSTRUCTIONS": mkl}
    return Lesser(name, "x86_64", frozenset(features.split()), numba | torch)


def _arm(name: str, features: str, needs: str) -> Lesser:
    settings = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features}
    return Lesser(name, "arm64", frozenset(needs.split()), settings)


_AVX2 = "sse4.2 popcnt avx avx2 fma f16c bmi bmi2"
_AVX512 = f"{_AVX2} avx512f avx512cd avx512bw avx512dq avx512vl"

CPUS = (
    _x86("x86 without AVX2", "SSE41", "default", "SSE4_2", "sse4.2 popcnt"),
    _x86("AVX2", "AVX2", "avx2", "AVX2", _AVX2),
    _x86("AVX-512 without bfloat16", "AVX512_CORE", "avx512", "AVX512", _AVX512),
    _x86("AVX512-BF16 without AMX", "AVX512_CORE_BF16", "avx512", "AVX512", f"{_AVX512} avx512vnni avx512bf16"),
    _arm("ARM without float16", "+neon,+dotprod", "asimddp"),
    _arm("ARM without dot products", "+neon,+fullfp16", "asimdhp"),
    _arm("ARM without both", "+neon", ""),
)
_LINUX = {"sse4.2": "sse4_2", "bmi": "bmi1", "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16"}


def possible(facts: CpuFacts) -> list[Lesser]:
    """Those that a CPU can pass for."""
    return [
        lesser
        for lesser in CPUS
        if lesser.machine == facts.machine and {_LINUX.get(word, word) for word in lesser.needs} <= facts.features
    ]


def marked() -> list[Path]:
    """Files with such tests: collecting all others takes longer than running these."""
    files = (file for file in TESTS.rglob("test_*.py") if "mark.cpu_paths" in file.read_text(encoding="utf-8"))
    return sorted(files)


def run(lesser: Lesser, options: list[str]) -> int:
    """pytest's exit status. What it printed comes in one piece: several run at once."""
    command = [sys.executable, "-m", "pytest", "-m", "cpu_paths", *options, *map(str, marked())]
    done = subprocess.run(command, env=os.environ | lesser.settings, capture_output=True, text=True, cwd=TESTS.parent)
    shown = done.stdout[-20_000:] + done.stderr[-2_000:] if done.returncode else done.stdout.strip().splitlines()[-1]
    print(f"{lesser.name}: {shown}", flush=True)
    return done.returncode


def main(arguments: list[str]) -> int:
    jobs = 2
    if arguments[:1] == ["--jobs"]:
        jobs, arguments = int(arguments[1]), arguments[2:]
    lesser = possible(cpu.facts())
    print(f"{cpu.facts().name} passes for: {', '.join(one.name for one in lesser) or 'no other CPU'}", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        return max(pool.map(lambda one: run(one, arguments), lesser), default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
