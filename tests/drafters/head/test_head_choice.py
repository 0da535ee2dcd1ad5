"""Which backend runs a head: one function chooses, by device, rows, dtype and what the CPU can do, and says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import cpus
from helpers import wrapped
from outrider.core import host_sync
from outrider.core.noise import Noise
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling
from outrider.drafters.head import Head, HeadConfig, HeadDrafter, choice
from outrider.drafters.head.backends import BY_NAME, triton_backend
from outrider.drafters.head.choice import choose
from outrider.drafters.head.session import HeadSession
from outrider.runtime import cpu
from outrider.runtime.cpu import CpuFacts

CPU, GPU = torch.device("cpu"), torch.device("cuda")
FEATURE = HeadConfig("feature", 32, 16, 1, layers=(1, -1), heads=(2, 1))
BLOCKWISE = HeadConfig("blockwise", 32, 16, 3)
BLOCK = HeadConfig("block", 32, 16, 1, layers=(1, -1), heads=(2, 1), masks=3, rank=4)
BYTES = {"avx2", "avx512", "vnni", "amx", "n1", "bytes only", "v2"}  # whose compiled code multiplies bytes on vectors


@pytest.fixture(autouse=True)
def numba_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "numba_error", lambda: None)


@pytest.fixture
def triton_works(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.device, torch.dtype]]:
    """Triton on GPUs, and what it was tried out for."""
    tried: list[tuple[torch.device, torch.dtype]] = []

    class Available:
        @staticmethod
        def run_on(device: torch.device) -> bool:
            return device.type == "cuda"

        @staticmethod
        def proven(name: str, device: torch.device, trial: Any) -> bool:
            tried.append((device, torch.float16 if "float16" in name else torch.float32))
            return True

    monkeypatch.setattr(triton_backend, "available", Available)
    return tried


@pytest.mark.parametrize("facts", cpus.ALL.values(), ids=lambda facts: facts.name)
def test_on_every_cpu(facts: CpuFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows of a feature head are compiled, or one in numpy; more rows, block and blockwise heads, are torch's."""
    with cpu.using(facts):
        alone = choose(FEATURE, CPU, 1, torch.float32)
        assert alone.backend == ("numba" if facts.name in BYTES else "numpy")
        assert ("no products of bytes" in alone.reason) is (alone.backend == "numpy")
        for rows in range(2, choice.FEW_ROWS + 1):
            assert choose(FEATURE, CPU, rows, torch.float32).backend == ("numba" if facts.name in BYTES else "torch")
        assert choose(FEATURE, CPU, choice.FEW_ROWS + 1, torch.float32).backend == "torch"
        assert {choose(config, CPU, 1, torch.float32).backend for config in (BLOCK, BLOCKWISE)} == {"torch"}
        monkeypatch.setattr(host_sync, "on_cpu", False)  # as on a GPU: steps must be capturable
        assert choose(FEATURE, CPU, 2, torch.float32).backend == "torch"


def test_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "numba_error", lambda: "numba is not installed")
    with cpu.using(cpus.AMX):
        assert choose(FEATURE, CPU, 1, torch.float32).backend == "numpy"
        assert "numba is not installed" in choose(FEATURE, CPU, 1, torch.float32).reason


@pytest.mark.parametrize("config", [FEATURE, BLOCKWISE], ids=["feature", "blockwise"])
@pytest.mark.parametrize("rows", [1, 8])
def test_on_a_gpu(config: HeadConfig, rows: int, triton_works: list[Any]) -> None:
    """Any number of rows; what the CPU beside it can do is of no account."""
    with cpu.using(cpus.N1):
        assert choose(config, GPU, rows, torch.float16).backend == "triton"
        assert triton_works == [(GPU, torch.float16)], "or kernels that do not work there would be used"
        assert choose(config, GPU, rows, torch.float64).backend == "torch"
        assert "float64" in choose(config, GPU, rows, torch.float64).reason


def test_kernels_that_fail_their_trial(triton_works: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend.available, "proven", lambda *given: False)
    chosen = choose(FEATURE, GPU, 1, torch.float32)
    assert chosen.backend == "torch" and "failed their trial" in chosen.reason


def session(rows: int) -> HeadSession:
    target = wrapped("llama").start(rows, Shape(64, 4))
    made = HeadDrafter(Head(FEATURE), torch.arange(10)).start(rows, Shape(64, 4), target)
    assert isinstance(made, HeadSession)
    for row in range(rows):
        for part in (target, made):
            part.admit(row, [3, 4, 5])
    return made


@pytest.mark.parametrize(("facts", "rows", "name"), [(cpus.A72, 1, "numpy"), (cpus.A72, 2, "torch")])
def test_a_session_runs_what_was_chosen(facts: CpuFacts, rows: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a session that decides by itself; only a backend that never syncs with the host may be captured."""
    with cpu.using(facts):
        made = session(rows)
    assert made.backend.name == name and not made.capturable
    monkeypatch.setattr(host_sync, "on_cpu", False)  # as on a GPU
    with cpu.using(facts):
        assert session(rows).capturable is (name == "torch")


def test_one_row_that_is_selected_or_forked_goes_on_in_torch() -> None:
    """The CPU backends for one row have no batch: beam search forks them into several."""
    with cpu.using(cpus.A72):
        made = session(1)
        fork = made.fork(torch.tensor([0, 0]))
        assert (made.backend.name, fork.backend.name) == ("numpy", "torch")
        made.select(torch.tensor([0, 0, 0]))
    assert made.backend.name == "torch"


@pytest.mark.parametrize("asked", [(1,), (3, 4, 11), tuple(range(12))])
def test_a_head_reads_texts_when_it_drafts(asked: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """With several rows it read every prompt and every token, asked or not: speculation that had stepped aside still
    took a tenth of the time. When it was asked before must not show in a draft."""
    with cpu.using(cpus.A72):
        torch.manual_seed(0)
        made = session(2)
        torch.manual_seed(0)
        steady = session(2)
    reads: list[int] = []
    for each in (made, steady):
        head: Any = each.backend.head  # type: ignore[attr-defined]

        def counted(x: Any, table: Any, tokens: Any, read: Any = head.read_token) -> Any:
            reads.append(tokens.shape[1])
            return read(x, table, tokens)

        monkeypatch.setattr(head, "read_token", counted)
    noise = Noise(torch.zeros(2, dtype=torch.int64))
    for step in range(12):
        drafts = []
        for each in (made, steady):
            each.target.score(torch.zeros((2, 0), dtype=torch.int64))
            before = len(reads)
            if each is steady or step in asked:
                at = each.context.positions(4)
                drafts.append(each.propose(3, Sampling(temperature=1.0), noise, at))
            else:
                assert len(reads) == before
            tokens = torch.tensor([[step % 7 + 3], [step % 5 + 3]])
            for part in (each.target, each):
                part.commit(tokens, torch.ones(2, dtype=torch.int64))
            assert step in asked or each is steady or len(reads) == before, "nobody asked"
        if step in asked:
            one, other = drafts
            assert torch.equal(one.tokens, other.tokens) and one.probs is not None and other.probs is not None
            assert torch.equal(one.probs, other.probs)


def test_every_name_that_can_be_chosen_has_a_backend(triton_works: list[Any]) -> None:
    found = set()
    for facts in cpus.ALL.values():
        with cpu.using(facts):
            found |= {choose(FEATURE, device, rows, torch.float32).backend for device in (CPU, GPU) for rows in (1, 2)}
    assert found == set(BY_NAME)
