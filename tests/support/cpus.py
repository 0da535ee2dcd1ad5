"""CPUs that choices are tested for, whatever CPU the tests run on."""

from __future__ import annotations

from dataclasses import replace

from outrider.runtime.cpu import CpuFacts


def _x86(name: str, vectors: str, features: str) -> CpuFacts:
    words = frozenset(features.split())
    return CpuFacts("x86_64", name, words, onednn=words, vectors=vectors, compiler=words, identity=name)


def _arm(name: str, features: str) -> CpuFacts:
    words = frozenset(features.split())
    return CpuFacts("arm64", name, words, onednn=words, compiler=words, kleidiai=True, identity=name)


_AVX2 = "sse4_2 avx avx2 fma f16c"
_AVX512 = f"{_AVX2} avx512f avx512bw avx512dq avx512vl"

GENERIC = _x86("generic", "DEFAULT", "sse4_2 avx")
AVX2 = _x86("avx2", "AVX2", _AVX2)
AVX512 = _x86("avx512", "AVX512", _AVX512)
VNNI = _x86("vnni", "AVX512", f"{_AVX512} avx512_vnni")
AMX = _x86("amx", "AVX512", f"{_AVX512} avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_bf16 amx_int8")
A72 = _arm("a72", "fp asimd")
N1 = _arm("n1", "fp asimd fphp asimdhp asimddp")
HALF_ONLY = _arm("half only", "fp asimd fphp asimdhp")
BYTES_ONLY = _arm("bytes only", "fp asimd asimddp")
V2 = _arm("v2", "fp asimd fphp asimdhp asimddp bf16 i8mm sve")
UNKNOWN_TO_LLVM = replace(N1, name="unknown to LLVM", compiler=frozenset({"fp", "asimd"}))
WITHOUT_NUMBA = replace(AMX, name="without numba", compiler=frozenset())

ALL = {
    facts.name: facts
    for facts in (
        GENERIC, AVX2, AVX512, VNNI, AMX, A72, N1, HALF_ONLY, BYTES_ONLY, V2, UNKNOWN_TO_LLVM, WITHOUT_NUMBA
    )
}  # fmt: skip
