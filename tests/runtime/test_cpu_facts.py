"""Facts about the CPU: read in one place, narrowed down by the libraries' settings, and what is chosen by them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import cpu_paths
import cpus
import outrider
from outrider.drafters.head import choice as head_choice
from outrider.drafters.head.backends import cpu_products
from outrider.errors import BadOption
from outrider.kernels import packed_linear
from outrider.models.engine import backends, choice
from outrider.models.engine.choice import Kernels, chosen_engine
from outrider.models.hub import loading
from outrider.runtime import cpu, timer
from outrider.runtime.cpu import CpuFacts

SOURCES = Path(outrider.__file__).parent

CPUINFO = """processor\t: 0
model name\t: Some Xeon
flags\t\t: fpu sse4_2 avx avx2 fma avx512f avx512vl avx512_vnni avx512_bf16 amx_tile amx_bf16
bugs\t\t: spectre
"""


@pytest.fixture
def a_xeon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine to read facts from."""
    found = (cpus.AMX.features - {"sse4_2"}) | {"sse4.2"}  # LLVM has names of its own
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: CPUINFO)
    monkeypatch.setattr(cpu, "llvm_host", lambda: ("sapphirerapids", found))
    monkeypatch.setattr(cpu, "amx_permitted", lambda: True)


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        (r"platform\.(machine|proc)|/proc/cpuinfo|get_cpu_capability|get_host_cpu|(mkldnn|kleidiai)\.is_",
            {"runtime/cpu", "kernels/numba/code_cache"}),  # which asks what compiled code was made for
        # A worker runs beside other packages than ours; readback gives up on a device, which decides no text.
        (r"perf_counter|monotonic\(", {"runtime/timer", "bench/worker", "decoding/step_result"}),
    ],
    ids=["CPU", "clock"],
)  # fmt: skip
def test_one_place_reads(pattern: str, allowed: set[str]) -> None:
    """Paths were chosen by the CPU at hand in nine modules, each with its own look at it: no test could say which."""
    readers = {
        file.relative_to(SOURCES).with_suffix("").as_posix()
        for file in SOURCES.rglob("*.py")
        if re.search(pattern, file.read_text(encoding="utf-8"))
    }
    assert readers <= allowed, f"ask runtime.cpu.facts() or runtime.timer.now() in {sorted(readers - allowed)}"
    assert readers, "nothing is found any more: the pattern is out of date"


def test_what_is_read(a_xeon: None) -> None:
    facts = cpu.read({})
    assert facts.machine == "x86_64" and facts.name == "Some Xeon" and not facts.arm
    assert {"avx512_bf16", "amx_bf16"} <= facts.features and "spectre" not in facts.features
    assert facts.fast_at_bfloat16 and facts.multiplies_bytes and facts.wide_vectors and not facts.computes_in_half
    assert facts.identity == cpu.read({}).identity != cpu.read({"NUMBA_CPU_NAME": "generic"}).identity


@pytest.mark.parametrize(
    ("highest", "fast"),
    [
        ("SSE41", False), ("AVX2", False), ("AVX512_CORE", False), ("avx512_core_vnni", False),
        ("AVX512_CORE_BF16", True), ("AVX512_CORE_AMX", True), ("ALL", True), ("", True),
    ],
)  # fmt: skip
def test_onednn_may_be_held_back(a_xeon: None, highest: str, fast: bool) -> None:
    """Catches bfloat16 chosen by itself where torch is told not to use the instructions for it."""
    facts = cpu.read({"ONEDNN_MAX_CPU_ISA": highest})
    assert facts.fast_at_bfloat16 is fast
    assert facts.multiplies_bytes, "what numba compiles for is another matter"


@pytest.mark.parametrize(
    ("given", "missing", "expected"),
    [
        ({}, "", None),  # AVX-512 needs nothing
        ({}, "avx512f", "AVX2,STRICT"),
        ({"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, "", "AVX2,STRICT"),
        ({"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}, "", None),
        ({"MKL_CBWR": "COMPATIBLE"}, "avx512f", "COMPATIBLE"),  # the user's own
        ({}, "avx2 avx512f", None),
    ],
)
def test_mkl_is_told_to_be_batch_invariant(
    a_xeon: None, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], missing: str, expected: str | None
) -> None:
    """With AVX2 MKL gives a row other bits in another place of a batch, unless it is told not to."""
    about = [" ".join(word for word in line.split() if word not in missing.split()) for line in cpu.description()]
    monkeypatch.setattr(cpu, "description", lambda: about)
    environment = dict(given)
    cpu.make_mkl_batch_invariant(environment)
    assert environment.get("MKL_CBWR") == expected


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({}, {"fma", "avx512vl", "avx512_vnni"}),
        ({"NUMBA_CPU_NAME": "generic"}, set()),
        ({"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,-avx512vl"}, {"fma"}),
        ({"NUMBA_CPU_FEATURES": "+fma,+avx512vl,+avx512vnni"}, {"fma", "avx512vl", "avx512_vnni"}),
        ({"NUMBA_ENABLE_AVX": "0"}, {"fma"}),
    ],
)  # fmt: skip
def test_numba_may_be_held_back(a_xeon: None, settings: dict[str, str], left: set[str]) -> None:
    """Catches instructions chosen that the compiler is told not to use: LLVM then ends the process."""
    facts = cpu.read(settings)
    assert facts.compiler & {"fma", "avx512vl", "avx512_vnni"} == left
    assert facts.fast_at_bfloat16, "what torch uses is another matter"


@pytest.mark.parametrize(
    ("settings", "permitted", "there"),
    [
        ({}, True, True), ({}, False, False), ({"NUMBA_ENABLE_AVX": "0"}, True, False),
        ({"NUMBA_CPU_FEATURES": "+fma,+avx512vl"}, True, False), ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, True, True),
        ({"NUMBA_CPU_FEATURES": "+fma,+avx512vl,+amx-tile,+amx-bf16"}, True, False),
        ({"NUMBA_CPU_FEATURES": "+fma,+avx512vl,+avx512bf16,+amx-tile,+amx-bf16"}, True, True),
    ],
)  # fmt: skip
def test_amx_is_used_where_the_system_permits_it(
    a_xeon: None, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], permitted: bool, there: bool
) -> None:
    """Linux ends a process that uses its registers without having asked."""
    monkeypatch.setattr(cpu, "amx_permitted", lambda: permitted)
    assert cpu.read(settings).has_amx is there


@pytest.mark.parametrize(
    ("host", "settings", "half", "dots"),
    [
        ("neoverse-n1", {}, True, True),
        ("generic", {}, False, False),
        ("neoverse-n1", {"NUMBA_CPU_NAME": "generic"}, False, False),
        ("neoverse-n1", {"NUMBA_CPU_NAME": "cortex-a72"}, False, False),
        ("neoverse-n1", {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+neon,+dotprod"}, False, True),
        ("neoverse-n1", {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+neon,+fullfp16"}, True, False),
        ("", {}, False, False),
    ],
)
def test_numba_on_arm(
    host: str, settings: dict[str, str], half: bool, dots: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM knows an ARM CPU's instructions by its name. Catches products of bytes compiled for a name without them."""
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "Features\t: fp asimd asimdhp asimddp\nCPU part\t: 0xd0c\n")
    monkeypatch.setattr(cpu, "llvm_host", lambda: (host, frozenset({"neon"})))
    facts = cpu.read(settings)
    assert facts.arm and (facts.computes_in_half, facts.multiplies_bytes) == (half, dots)


@pytest.mark.parametrize(
    ("flags", "fast"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 amx_tile", True),
        ("flags\t\t: fpu amx_bf16", True),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("Features\t: fp asimd asimddp", False),
        ("flags\t\t: fpu avx2 avx512f", False),
        ("model name\t: a bf16 of a CPU", False),
    ],
)
def test_where_bfloat16_is_fast(flags: str, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches bfloat16 chosen by itself on a CPU that has to emulate it."""
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"processor\t: 0\n{flags}\n")
    monkeypatch.setattr(cpu, "llvm_host", lambda: ("", frozenset()))  # it would tell the CPU at hand
    assert cpu.read({}).fast_at_bfloat16 is fast


def test_other_facts_and_another_clock_end_with_their_block() -> None:
    before = cpu.facts()
    with pytest.raises(ZeroDivisionError), cpu.using(cpus.AMX), timer.using(lambda: 7.0):
        assert cpu.facts() is cpus.AMX and timer.now() == 7.0
        _ = 1 / 0
    assert cpu.facts() is before and timer.now() != 7.0


@pytest.mark.parametrize("lesser", cpu_paths.CPUS[:4], ids=lambda one: one.name)
def test_a_xeon_passes_for_lesser_cpus(a_xeon: None, lesser: cpu_paths.Lesser) -> None:
    """Catches a simulated CPU whose settings do not hold back what it is there to be without."""
    facts = cpu.read(lesser.settings)
    expected = {
        "x86 without AVX2": (False, False, False, False),
        "AVX2": (False, False, False, True),
        "AVX-512 without bfloat16": (False, False, True, True),
        "AVX512-BF16 without AMX": (True, True, True, True),
    }[lesser.name]
    found = facts.fast_at_bfloat16, facts.multiplies_bytes, facts.wide_vectors, facts.fuses_multiplication
    assert found == expected and "amx_bf16" not in facts.onednn


def test_what_a_cpu_can_pass_for() -> None:
    """No more than it has instructions for: the process would be ended by the first that it lacks."""
    common = frozenset(["popcnt", "bmi1", "bmi2", "avx512cd"])
    names = {
        facts.name: [one.name for one in cpu_paths.possible(replace(facts, features=facts.features | common))]
        for facts in (cpus.GENERIC, cpus.AVX512, cpus.AMX, cpus.A72, cpus.BYTES_ONLY)
    }
    assert names["generic"] == ["x86 without AVX2"] and names["amx"] == [one.name for one in cpu_paths.CPUS[:4]]
    assert names["avx512"] == names["amx"][:3]
    assert names["a72"] == ["ARM without both"] and names["bytes only"] == ["ARM without float16", "ARM without both"]


@pytest.mark.parametrize("left_out", ["", "amx_int8", "amx_bf16", "avx512_vnni"])
def test_bytes_are_multiplied_by_amx_where_all_of_it_is_there(left_out: str) -> None:
    facts = replace(cpus.AMX, compiler=cpus.AMX.compiler - {left_out})
    assert facts.multiplies_bytes_by_amx is (left_out == "") and not cpus.VNNI.multiplies_bytes_by_amx


# --- choices, for every CPU ----------------------------------------------------------------------------

FAST_AT_BFLOAT16 = {"amx", "v2", "without numba"}
IN_HALF = {"n1", "half only", "v2"}
BYTES = {"vnni", "amx", "n1", "bytes only", "v2"}
COMPILED_HEADS = BYTES | {"avx512", "avx2"}
NO_FMA = {"generic", "without numba"}


CONFIG = tf.LlamaConfig(hidden_size=64, intermediate_size=128, num_attention_heads=4, dtype=torch.bfloat16)


@pytest.fixture(params=list(cpus.ALL))
def facts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Each CPU in turn, with every package installed."""
    monkeypatch.setattr(choice, "find_spec", lambda name: object())
    monkeypatch.setattr(backends, "import_error", lambda: None)
    monkeypatch.setattr(head_choice, "numba_error", lambda: None)
    with cpu.using(cpus.ALL[request.param]):
        yield cpus.ALL[request.param]


CPU = torch.device("cpu")


def test_the_dtype_by_itself(facts: CpuFacts) -> None:
    expected = torch.bfloat16 if facts.name in FAST_AT_BFLOAT16 else torch.float32
    assert loading.choose_dtype("auto", CONFIG, CPU) == expected


def test_the_engine_by_itself(facts: CpuFacts) -> None:
    """numba wherever it can, else torch."""
    kind = loading.choose_dtype("auto", CONFIG, CPU)
    chosen = chosen_engine(Kernels("auto"), CONFIG, CPU, kind, 1e9, settled=False)
    assert chosen == ("torch" if facts.name in NO_FMA else "numba")


def test_an_engine_by_name_decides_the_dtype(facts: CpuFacts) -> None:
    """On CPUs fast at bfloat16, an engine was refused for the dtype that nobody had asked for."""
    kind, asked = loading.choose_dtype("auto", CONFIG, CPU), Kernels("numba")
    if facts.name in NO_FMA:
        with pytest.raises(BadOption, match="no fused multiplication"):
            chosen_engine(asked, CONFIG, CPU, kind, 1e9, settled=False)
    else:
        assert chosen_engine(asked, CONFIG, CPU, kind, 1e9, settled=False) == "numba"
    with pytest.raises(BadOption, match="computes in float32, not float64; choose the dtype float32"):
        chosen_engine(asked, CONFIG, CPU, torch.float64, 1e9, settled=True)


def test_bfloat16_asked_for(facts: CpuFacts) -> None:
    """The engine that reads bfloat16 weights was left out for torch, several times slower, because it computes in
    float32."""
    chosen = chosen_engine(Kernels("auto"), CONFIG, CPU, torch.bfloat16, 1e9, settled=True)
    assert chosen == ("torch" if facts.name in NO_FMA else "numba")


def test_products_by_themselves(facts: CpuFacts) -> None:
    assert backends.numba_computes_in_half(torch.float32, settled=False) is (facts.name in IN_HALF)
    assert head_choice.choose_for_one_row().backend == ("numba" if facts.name in COMPILED_HEADS else "numpy")
    assert packed_linear.worth_packing(9) and packed_linear.worth_packing(1) is (not facts.arm)


def test_products_of_a_draft(facts: CpuFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four bits twice where KleidiAI has the instructions, eight where torch has the vectors, else float32."""
    monkeypatch.setattr(cpu_products, "nibbles", lambda weight: "nibbles")
    monkeypatch.setattr(cpu_products.int8_linear, "quantised", lambda weight: "bytes")
    made: Any = cpu_products.product_with(torch.ones(4, 2))
    if made != "nibbles":
        cells = [cell.cell_contents for cell in made.__closure__]
        made = "bytes" if "bytes" in cells else "floats"
    by_name = {"generic": "floats", "a72": "floats", "half only": "floats"}
    assert made == by_name.get(facts.name, "nibbles" if facts.arm else "bytes")
