"""Noise and races on a GPU, or on a CPU with TRITON_INTERPRET=1: the bits and winners that a CPU has."""

from __future__ import annotations

import pytest
import torch

from outrider.core.noise import Noise, counter_of
from outrider.kernels.triton import available

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not available.run_on(DEVICE), reason="no GPU, and no Triton under TRITON_INTERPRET=1"),
]


def test_noise_has_the_bits_it_has_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, at = torch.tensor([0, 7, -(2**60)]), torch.tensor([[1, 2], [511, 512], [100_000, 3]])
    here = Noise(seeds.to(DEVICE)).race("token", at.to(DEVICE), 5000).cpu()
    monkeypatch.setattr(available, "wanted", False)
    assert torch.equal(here, Noise(seeds).race("token", at, 5000))
    assert torch.equal(here, Noise(seeds.to(DEVICE)).race("token", at.to(DEVICE), 5000).cpu()), "without the kernel"


def test_a_race_is_won_by_whom_it_is_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights of all tokens, and of some; and runs have streams of the same name on both."""
    seeds, at = torch.tensor([0, 7, -(2**60)]), torch.tensor([[1, 2], [511, 512], [100_000, 3]])
    weights = torch.randn((3, 2, 5000), generator=torch.Generator().manual_seed(0)).softmax(-1).to(DEVICE)
    some = torch.arange(0, 50_000, 10)
    found = []
    for device in (DEVICE, torch.device("cpu")):
        noise = Noise(seeds.to(device)).of_run(at.to(device))
        given = at.to(device), weights.to(device)
        found.append([noise.winner("token", *given), noise.winner("token", *given, counter_of(some).to(device))])
        found[-1].append(noise.uniform("accept", given[0]))
        monkeypatch.setattr(available, "wanted", False)
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours.cpu(), theirs)
