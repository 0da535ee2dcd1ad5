"""The description of a head's layers: what is saved, what is built from it, and what a guess reads."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import cpus
import tiny
from helpers import wrapped
from outrider.core.noise import Noise
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling
from outrider.drafters.head import Head, HeadConfig, HeadDrafter
from outrider.drafters.head.backends.triton_backend import FusedHead
from outrider.drafters.head.layers import rotary_speeds
from outrider.drafters.head.session import HeadSession
from outrider.runtime import cpu
from outrider.runtime.cpu import CpuFacts

CONFIGS = {
    "all": HeadConfig("feature", 32, 24, 2, layers=(1, 2, -1), heads=(4, 2)),
    "no attention": HeadConfig("feature", 32, 24, 1, layers=(1, -1)),
    "last layer only": HeadConfig("feature", 32, 24, 1, heads=(2, 2)),
    "block": HeadConfig("block", 32, 24, 2, layers=(1, 2, -1), heads=(4, 2), masks=3, rank=8),
    "blockwise": HeadConfig("blockwise", 32, 24, 3),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_every_matrix_is_in_the_description(config: HeadConfig) -> None:
    """Catches a projection that one backend has and the description, which costs are computed from, has not."""
    for kind in (Head, FusedHead):
        saved = {name: tuple(weight.shape) for name, weight in kind(config).state_dict().items() if weight.dim() == 2}
        saved.pop("masks", None)  # nothing is multiplied with them
        assert saved == {f"{name}.weight": shape for name, shape in config.projections.items()}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_what_a_guess_reads(config: HeadConfig) -> None:
    """Every matrix once, but the one that is used for the text alone, and a row of the output layer per token."""
    head = Head(config)
    matrices = sum(weight.numel() for weight in head.parameters() if weight.dim() == 2)
    fuse = 0 if head.fuse is None else head.fuse.weight.numel()
    layers, every = matrices - fuse, 10 * config.hidden_size
    if head.corrector is not None and head.masks is not None:
        corrector = sum(weight.numel() for weight in head.corrector.parameters() if weight.dim() == 2)
        layers, every = (layers - corrector - head.masks.numel()) // config.gamma, every + corrector
    assert config.weights_read(10) == layers + every
    assert HeadDrafter(head, torch.arange(10)).weights_read == config.weights_read(10)


def test_constants_are_of_the_description_and_not_saved(tmp_path: Path) -> None:
    """Heads saved by earlier versions have no such fields, and theirs must stay readable by these."""
    config = CONFIGS["all"]
    assert set(asdict(config)) == {
        "kind", "hidden_size", "inner_size", "blocks", "layers", "heads", "window", "masks", "rank", "fingerprint",
        "gamma",
    }  # fmt: skip
    HeadDrafter(Head(config), torch.arange(10)).save(tmp_path)
    assert HeadDrafter.load(tmp_path).saved.config == config


def other_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadConfig, "norm_eps", 4.0)
    monkeypatch.setattr(HeadConfig, "rotary_base", 16.0)


def test_constants_reach_every_module(monkeypatch: pytest.MonkeyPatch) -> None:
    other_constants(monkeypatch)
    norms = [module for module in Head(CONFIGS["all"]).modules() if isinstance(module, torch.nn.RMSNorm)]
    assert len(norms) == 2 + 2 + 2 + 1 and {norm.eps for norm in norms} == {4.0}
    assert torch.equal(rotary_speeds(CONFIGS["all"]), torch.tensor([1.0, 0.5, 0.25, 0.125]))


def drawn_from(rows: int, facts: CpuFacts) -> tuple[str, torch.Tensor]:
    """The backend, and the distribution of a first guess, of a head with random weights."""
    torch.manual_seed(5)
    config = replace(CONFIGS["all"], layers=(0, 1, -1))
    head = Head(config)
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    target = wrapped("llama").start(rows, Shape(64, 4))
    with cpu.using(facts):
        session = HeadDrafter(head, torch.arange(0, tiny.VOCAB, 3), floor=0.0).start(rows, Shape(64, 4), target)
        assert isinstance(session, HeadSession)
        for row in range(rows):
            for part in (target, session):
                part.admit(row, [3, 9, 4, 11, 7, 5, 8])
        draft = session.propose(1, Sampling(1.0), Noise(torch.arange(rows)), target.context.positions(2))
    assert draft.probs is not None
    return session.backend.name, draft.probs[0, 0]


@pytest.mark.cpu_paths
def test_constants_reach_every_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epsilon and rotary base were written down in four places: a head with others would have drafted worse, mutely."""
    numpy, own = cpus.A72, cpu.facts()  # the one with products in float32, and what this CPU chooses
    before = drawn_from(2, numpy)[1]
    other_constants(monkeypatch)
    (torch_name, expected), (numpy_name, found) = drawn_from(2, numpy), drawn_from(1, numpy)
    assert (torch_name, numpy_name) == ("torch", "numpy")
    assert (expected - before).abs().max() > 0.1, "or the constants are of no account here"
    assert torch.allclose(found, expected, atol=1e-5)
    rounded = drawn_from(1, own)[1]  # weights in as few bits as this CPU multiplies
    assert (rounded - expected).abs().max() < (rounded - before).abs().max() / 2
