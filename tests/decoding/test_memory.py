"""Memory that has run out is told in one line, with what it was needed for and how to need less."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import library
import outrider
from outrider.beam.search import BeamDecoder
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.memory import exhausted
from outrider.decoding.stopping import Stopping
from outrider.drafters import Nothing
from outrider.errors import DeviceError
from outrider.models import kv_buffers
from outrider.models.toy import ToyModel
from outrider.trace import Trace

DECODER = Decoder(ToyModel(8), Nothing(), gumbel_coupling, Sampling(), 0)
REQUEST = Request((1, 2), Stopping(2**55))
"""More than the address space of any machine holds: no setting of the operating system grants it."""


def test_the_host_has_no_memory_for_a_session() -> None:
    """It was torch's RuntimeError with the name of a file of C++, and no remedy."""
    says = f"no memory for 1 slots of {2**56} tokens; use fewer slots, a smaller max_new_tokens, .* a smaller width"
    with pytest.raises(DeviceError, match=says) as caught:
        list(DECODER.stream([REQUEST], Trace()))
    assert exhausted(caught.value.__cause__ or caught.value) == "memory", "the error of torch is kept as the cause"


def test_the_host_has_no_memory_for_a_beam_search() -> None:
    says = "no memory for 3 rows of a beam search with 2 beams; use fewer beams"
    with pytest.raises(DeviceError, match=says):
        BeamDecoder(DECODER, beams=2, rows=3).search(REQUEST, Trace())


def test_more_than_there_is_is_refused_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T5 has no last position: with ``max_new_tokens=10**9`` Linux granted hundreds of GiB, and the process filled them
    for minutes until it was killed."""
    llm = outrider.load(str(library.save_t5(tmp_path)), "copy", "cpu", engine="torch")
    monkeypatch.setattr(kv_buffers, "available_bytes", lambda: 2.0**24)
    for options in ({}, {"beams": 2}):
        with pytest.raises(DeviceError, match="no memory for .* a smaller max_new_tokens"):
            llm.generate("the cat", max_new_tokens=40_000, **options)
    assert llm.generate("the cat", max_new_tokens=3).tokens


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"), "memory"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"), "memory"),
        (MemoryError(), "memory"),
        (torch.cuda.OutOfMemoryError("full"), "GPU memory"),
        (RuntimeError("shapes do not match"), None),
        (ValueError("not enough memory"), None),
    ],
)
def test_which_errors_are_of_memory(error: Exception, memory: str | None) -> None:
    """Catches another error that is told as a lack of memory, and the wording of another system that is not."""
    assert exhausted(error) == memory
