"""Facts about this CPU by which engine, dtype and kernels are chosen. Tests can replace them.

They are read once, and everything that chooses by them asks ``facts()``. Settings of the libraries below narrow them
down: ONEDNN_MAX_CPU_ISA and ATEN_CPU_CAPABILITY what torch uses, NUMBA_CPU_NAME, NUMBA_CPU_FEATURES and
NUMBA_ENABLE_AVX what numba compiles for. A test can put other facts in their place: see ``using``.

Cores are not among them: a process may be moved to others while it runs (``threads.available_cores``).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class CpuFacts:
    """What a CPU can do and what the libraries here make of it. Instruction sets have the names that Linux gives."""

    machine: str  # "arm64", "x86_64", or what the system calls any other
    name: str = "unknown"
    features: frozenset[str] = frozenset()  # instruction sets of the CPU
    onednn: frozenset[str] = frozenset()  # those that torch's matrix products may use
    vectors: str = "DEFAULT"  # those that torch's other operations use: DEFAULT, AVX2, AVX512, ...
    compiler: frozenset[str] = frozenset()  # those that numba compiles for; none where it is not installed
    packs: bool = True  # whether torch has oneDNN, which multiplies with weights packed in advance
    kleidiai: bool = False  # whether torch has KleidiAI, which multiplies with weights of four bits
    identity: str = ""  # a short name for this kind of CPU with these settings

    @property
    def arm(self) -> bool:
        return self.machine == "arm64"

    @property
    def fast_at_bfloat16(self) -> bool:
        """AMX or AVX512-BF16, or ARM's own instructions; elsewhere torch emulates bfloat16."""
        return not {"amx_bf16", "avx512_bf16", "bf16"}.isdisjoint(self.onednn)

    @property
    def computes_in_half(self) -> bool:
        """Whether compiled code multiplies vectors of float16 as they are, not through float32. ARM only."""
        return self.arm and "asimdhp" in self.compiler

    @property
    def converts_half(self) -> bool:
        """Whether compiled code turns float16 into float32 and back by instructions."""
        return self.arm or "f16c" in self.compiler

    @property
    def multiplies_bytes(self) -> bool:
        """Whether compiled code has dot products of bytes."""
        return ("asimddp" if self.arm else "avx512_vnni") in self.compiler

    @property
    def multiplies_bytes_by_vectors(self) -> bool:
        """Whether compiled code has products of bytes on vectors: dot products, or those of AVX2."""
        return self.multiplies_bytes or (not self.arm and "avx2" in self.compiler)

    @property
    def fuses_multiplication(self) -> bool:
        """Whether compiled code multiplies and adds in one instruction."""
        return self.arm or "fma" in self.compiler

    @property
    def wide_vectors(self) -> bool:
        """Whether compiled code has vectors of 512 bits, and 32 registers for them."""
        return not self.arm and "avx512vl" in self.compiler

    @property
    def has_amx(self) -> bool:
        """Whether compiled code has AMX, which multiplies blocks of bfloat16, and rounds to bfloat16 on vectors."""
        return self.wide_vectors and {"amx_tile", "amx_bf16", "avx512_bf16"} <= self.compiler

    @property
    def multiplies_bytes_by_amx(self) -> bool:
        """Whether compiled code has AMX's products of bytes, and dot products of bytes on vectors beside them."""
        return self.has_amx and self.multiplies_bytes and "amx_int8" in self.compiler

    @property
    def multiplies_nibbles(self) -> bool:
        """Whether torch multiplies with weights of four bits at the speed of memory."""
        return self.kleidiai and "asimddp" in self.features


_injected: CpuFacts | None = None


def facts() -> CpuFacts:
    """Of this process. Imports torch."""
    return _injected or _read_once()


@contextmanager
def using(other: CpuFacts) -> Iterator[None]:
    """Let everything in this process choose by other facts: for tests of choices.

    What is compiled when a module of ``outrider.kernels.numba`` is imported stays as it is.
    """
    global _injected
    before, _injected = _injected, other
    try:
        yield
    finally:
        _injected = before


@cache
def _read_once() -> CpuFacts:
    return read()


def read(environment: Mapping[str, str] = os.environ) -> CpuFacts:
    """As the system, torch and numba tell them."""
    import torch

    machine = {"aarch64": "arm64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    about = description()
    host, known = llvm_host()
    features = _features(about) or known
    if machine == "arm64" and platform.system() == "Darwin":  # every Mac with an ARM CPU
        features = features | {"asimdhp", "asimddp"}
    set_by_user = [f"{name}={environment[name]}" for name in SETTINGS if environment.get(name)]
    named = [line.partition(":")[2].strip() for line in about if line.startswith("model name")]
    return CpuFacts(
        machine=machine,
        name=named[0] if named else host or platform.processor() or machine,
        features=features,
        onednn=_allowed_in_onednn(features, environment),
        vectors=torch.backends.cpu.get_cpu_capability(),
        compiler=_compiled_for(machine, host, features, known, environment),
        packs=torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
        kleidiai=torch.backends.kleidiai.is_available(),  # type: ignore[no-untyped-call]
        identity=_digest([platform.machine(), platform.processor(), *about, *set_by_user]),
    )


def make_mkl_batch_invariant(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set MKL to batch-invariant matrix products where its default is not: with AVX2.

    There, rows left over after full tiles are summed in another order; with AVX-512 they are not. MKL reads the setting
    at its first product, so call this at the start of a process. A user's own setting stays.
    """
    if platform.machine() not in ("x86_64", "AMD64") or "MKL_CBWR" in environment:
        return
    features = _features(description())
    held_back = environment.get("MKL_ENABLE_INSTRUCTIONS", "").upper() == "AVX2"
    if "avx2" in features and (held_back or "avx512f" not in features):
        environment["MKL_CBWR"] = "AVX2,STRICT"


SETTINGS = (
    "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX",
)  # fmt: skip
"""By which a user, or a test, narrows down what the libraries use."""


def description() -> list[str]:
    """Lines that tell this kind of CPU from others."""
    telling = ("model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")
    if platform.system() == "Darwin":
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        named = subprocess.run(asked, capture_output=True, text=True, check=False)
        return [f"model name: {named.stdout.strip()}"]
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return sorted({line for line in lines if line.startswith(telling)})


def _features(about: list[str]) -> frozenset[str]:
    listed = [line.partition(":")[2].split() for line in about if line.startswith(("flags", "Features"))]
    return frozenset(word for words in listed for word in words)


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


_BY_LLVM = {
    "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "amx-tile": "amx_tile", "amx-bf16": "amx_bf16",
    "amx-int8": "amx_int8", "fullfp16": "asimdhp", "dotprod": "asimddp",
}  # fmt: skip
"""Instruction sets that LLVM, and so NUMBA_CPU_FEATURES, calls by another name than Linux."""


def llvm_host() -> tuple[str, frozenset[str]]:
    """LLVM's name for this CPU, and the instruction sets it finds; nothing where it is not installed."""
    try:
        from llvmlite.binding import get_host_cpu_features, get_host_cpu_name

        found = get_host_cpu_features()
    except (ImportError, OSError, RuntimeError):  # not installed, a broken library, a system it does not know
        return "", frozenset()
    return get_host_cpu_name(), frozenset(_BY_LLVM.get(name, name) for name, there in found.items() if there)


def _compiled_for(
    machine: str, host: str, features: frozenset[str], known: frozenset[str], environment: Mapping[str, str]
) -> frozenset[str]:
    """What numba compiles for, of the CPU's own."""
    name, listed = environment.get("NUMBA_CPU_NAME", ""), environment.get("NUMBA_CPU_FEATURES", "")
    if not host:
        return frozenset()
    if listed or name == "generic":
        found = frozenset(_BY_LLVM.get(word[1:], word[1:]) for word in listed.split(",") if word.startswith("+"))
    elif machine == "arm64":  # LLVM goes by the CPU's name there; of one that it does not know it knows few
        found = features if host != "generic" and name in ("", host) else known
    else:
        found = known
    if environment.get("NUMBA_ENABLE_AVX") == "0" and not listed:
        found = frozenset(word for word in found if not word.startswith("avx"))
    found &= features
    return found if amx_permitted() else frozenset(word for word in found if not word.startswith("amx"))


@cache
def amx_permitted() -> bool:
    """Ask the system for AMX, as every process on Linux must, and say whether it may use it."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    call, request, data_of_tiles = 158, 0x1023, 18  # arch_prctl, ARCH_REQ_XCOMP_PERM
    return bool(ctypes.CDLL(None).syscall(call, request, data_of_tiles) == 0)


_LEVELS = {
    "SSE41": 0, "AVX": 0, "AVX2": 1, "AVX2_VNNI": 1, "AVX2_VNNI_2": 1, "AVX512_CORE": 2, "AVX512_CORE_VNNI": 3,
    "AVX512_CORE_BF16": 4, "AVX512_CORE_FP16": 4, "AVX10_1_512": 4,
}  # fmt: skip
"""How much these values of ONEDNN_MAX_CPU_ISA allow; any other allows all."""

_ADDED = (("avx2", "fma"), ("avx512",), ("avx512_vnni",), ("avx512_bf16", "avx512_fp16"), ("amx_",))
"""How the names of instruction sets begin that each level, from 1, adds to those before."""


def _allowed_in_onednn(features: frozenset[str], environment: Mapping[str, str]) -> frozenset[str]:
    """Without what a setting forbids. Nothing is chosen by what it forbids on ARM."""
    level = _LEVELS.get(environment.get("ONEDNN_MAX_CPU_ISA", "").upper(), len(_ADDED))
    return frozenset(word for word in features if _level(word) <= level)


def _level(feature: str) -> int:
    """The lowest level that has a feature; 0: all have."""
    return max((k for k, names in enumerate(_ADDED, start=1) if feature.startswith(names)), default=0)
