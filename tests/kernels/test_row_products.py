"""Products whose rows do not depend on each other: torch's settings are changed inside and restored outside."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from outrider.kernels import row_products
from outrider.kernels.row_products import no_split_k, quickest_rows, supported

OPTIONS = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
MINE = {OPTIONS[0]: (True, True), OPTIONS[1]: (False, True)}
"""Whether sums of reduced precision are allowed, and split chains."""

UNSPLIT = dict.fromkeys(OPTIONS, (False, False))
CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Library:
    """``torch.backends.cuda.preferred_blas_library``, which a CPU build may not let us set."""

    def __init__(self) -> None:
        self.chosen, self.calls = "hipblaslt", list[str]()

    def __call__(self, wanted: str | None = None) -> str:
        if wanted is not None:
            self.chosen = wanted
            self.calls.append(wanted)
        return self.chosen


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """Settings that are not torch's defaults, so that one that is forgotten is seen; torch's own come back."""
    products, made = torch.backends.cuda.matmul, Library()
    before = current()
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", made)
    monkeypatch.setattr(row_products, "warned", True)
    for option, value in MINE.items():
        setattr(products, option, value)
    try:
        yield made
    finally:
        for option, value in before.items():
            setattr(products, option, value)


def current() -> dict[str, tuple[bool, bool]]:
    products = torch.backends.cuda.matmul
    return {option: (getattr(products, option), getattr(products, f"{option}_split_k")) for option in OPTIONS}


def test_settings_hold_inside_and_are_restored(library: Library) -> None:
    with no_split_k():
        assert current() == UNSPLIT and library.chosen == "cublaslt"
    assert current() == MINE and library.chosen == "hipblaslt"


def test_an_error_inside_restores_them(library: Library) -> None:
    with pytest.raises(ZeroDivisionError), no_split_k(), no_split_k():
        raise ZeroDivisionError
    assert current() == MINE and library.chosen == "hipblaslt"
    with no_split_k():
        assert current() == UNSPLIT, "and they are counted anew"
    assert current() == MINE


def test_the_outermost_of_nested_ones_changes_and_restores(library: Library) -> None:
    """One that restored on every way out would leave the rest of the outer one with split chains."""
    with no_split_k():
        with no_split_k():
            assert current() == UNSPLIT
        assert current() == UNSPLIT and library.calls == ["cublaslt"]
    assert current() == MINE and library.calls == ["cublaslt", "hipblaslt"]


def test_the_last_thread_to_leave_restores_them(library: Library) -> None:
    """The first to leave must not take the settings from under the other; nor is ours remembered as torch's."""
    inside, leave = threading.Event(), threading.Event()

    def other() -> tuple[object, str]:
        with no_split_k():
            inside.set()
            assert leave.wait(60)
            return current(), library.chosen

    with ThreadPoolExecutor(1) as pool:
        with no_split_k():
            found = pool.submit(other)
            assert inside.wait(60)
        assert current() == UNSPLIT and library.calls == ["cublaslt"]
        leave.set()
        assert found.result() == (UNSPLIT, "cublaslt")
    assert current() == MINE and library.calls == ["cublaslt", "hipblaslt"]


def test_users_are_counted_under_a_lock(library: Library) -> None:
    """Many threads in and out: whoever is inside sees the settings, and in the end they are torch's again."""
    together = threading.Barrier(4)

    def work() -> int:
        together.wait(60)
        wrong = 0
        for _ in range(200):
            with no_split_k():
                wrong += current() != UNSPLIT or library.chosen != "cublaslt"
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert sum(found.result() for found in [pool.submit(work) for _ in range(4)]) == 0
    assert current() == MINE and library.chosen == "hipblaslt"
    assert library.calls[::2] == ["cublaslt"] * (len(library.calls) // 2)
    assert library.calls[1::2] == ["hipblaslt"] * (len(library.calls) // 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_cpu_is_not_supported(dtype: torch.dtype) -> None:
    weight = torch.zeros((4, 3), dtype=dtype)
    assert not supported(CPU, dtype)
    assert quickest_rows(weight) == 1, "nothing is timed there"


@pytest.fixture
def asked_anew() -> Iterator[None]:
    row_products.can_be_set.cache_clear()
    yield
    row_products.can_be_set.cache_clear()


@pytest.mark.usefixtures("asked_anew")
def test_only_two_bytes_a_number_are_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, and by this torch: float32's products have no such setting."""
    monkeypatch.setattr(torch.version, "hip", None)
    assert supported(GPU, torch.bfloat16) and supported(GPU, torch.float16)
    assert not supported(GPU, torch.float32) and not supported(GPU, torch.float64)
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert not supported(GPU, torch.bfloat16), "ROCm has another library"


@pytest.mark.usefixtures("asked_anew")
@pytest.mark.parametrize("error", [AttributeError, TypeError])
def test_an_older_torch_is_not_supported(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no such settings: the model runs at a constant width instead of failing."""

    def missing(wanted: str | None = None) -> str:
        raise error("no such setting")

    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", missing)
    assert not supported(GPU, torch.bfloat16)
