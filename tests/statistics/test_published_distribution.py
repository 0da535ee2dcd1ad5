"""Every kind of published head keeps the target's distribution: a tiny Llama with five tokens, and heads beside it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from distributions import RAGGED, SAMPLINGS, VOCAB, check_distribution
from torch import Tensor

import block_heads
import eagle_heads
from outrider.core.noise import Noise
from outrider.core.protocols import Draft, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.maximal import maximal_coupling
from outrider.drafters.head.session import HeadSession
from outrider.drafters.published import DFlashHead, PublishedDrafter
from outrider.models.transformers.model import HuggingFaceModel

ROWS = 10_000
FEWER = 3_000  # where every copy of a prompt is read by itself, as on a CPU
FEW = {"vocab_size": VOCAB}
KNOWN = torch.tensor([0, 1, 3, 4])
"""Tokens that heads with a vocabulary of their own can draft: one of the target's five is missing."""


@cache
def target() -> HuggingFaceModel:
    torch.manual_seed(3)
    sizes = {"hidden_size": eagle_heads.SIZE, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = tf.LlamaConfig(**FEW, **sizes, **heads, max_position_embeddings=256, initializer_range=0.25)
    return HuggingFaceModel(tf.LlamaForCausalLM(config).eval())


def mapping() -> dict[str, Tensor]:
    marked = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, KNOWN, True)
    return {"d2t": KNOWN - torch.arange(len(KNOWN)), "t2d": marked}


def files(kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    count = {"draft_vocab_size": len(KNOWN)}
    if "EAGLE" in kind:
        inner = {**FEW, "num_hidden_layers": 2}
        make = block_heads.peagle_config if kind == "P-EAGLE" else eagle_heads.speculators_config
        config = make(inner, **count) | ({"mask_token_id": 2} if kind == "P-EAGLE" else {})
        weights = eagle_heads.tensors(layers=2) | mapping()
        weights["lm_head.weight"] = 3 * weights["lm_head.weight"][: len(KNOWN)]
        return config, weights | (block_heads.mask_hidden() if kind == "P-EAGLE" else {})
    family, _, chain = kind.partition(", ")
    every = {"draft_vocab_size": VOCAB} if kind == "DFlash" else count
    config = block_heads.config(family.lower(), FEW, block_size=4, mask_token_id=2, **every)
    if chain:
        config["markov_head_type"] = chain
    weights = block_heads.tensors(config, rows=VOCAB)
    return config, weights | (mapping() if "d2t" in weights else {})


KINDS = ("EAGLE-3", "P-EAGLE", "DFlash", "DSpark, vanilla", "DSpark, gated", "DSpark, rnn")


def drafter(folder: Path, kind: str, floor: float = 0.2) -> PublishedDrafter:
    read = PublishedDrafter.load(eagle_heads.saved(folder, *files(kind)))
    return PublishedDrafter(read.head, read.tokens, kind, floor).beside(target().facts)


@pytest.fixture
def read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are read as they come, before their rows are copied: the backend that a GPU has."""
    monkeypatch.setattr("outrider.drafters.head.backends.torch_backend.host_sync.free", lambda device: False)


@pytest.mark.usefixtures("read_at_once")
@pytest.mark.parametrize("kind", KINDS)
def test_distribution(tmp_path: Path, kind: str) -> None:
    """Catches a q that was not drawn from, and drafts that end because of what was drawn."""
    checked(drafter(tmp_path, kind))


@pytest.mark.parametrize("kind", ["P-EAGLE", "DSpark, vanilla"])
def test_distribution_where_text_is_read_late(tmp_path: Path, kind: str) -> None:
    """As above by the backend that a CPU has."""
    checked(drafter(tmp_path, kind), rows=FEWER, detects=0.21)


@pytest.mark.usefixtures("read_at_once")
@pytest.mark.parametrize("sampling", ["top-k", "penalties"])
def test_distribution_with_options(tmp_path: Path, sampling: str) -> None:
    """Catches q of the corrected logits before the options where guesses were drawn behind them."""
    checked(drafter(tmp_path, "DSpark, rnn", floor=0.0), SAMPLINGS[sampling])


def checked(by: Any, sampling: Sampling = SAMPLINGS["temperature 1"], rows: int = ROWS, detects: float = 0.09) -> None:
    check_distribution(
        by, maximal_coupling, sampling, target=target(), prompts=RAGGED, rows=rows, gamma=3, detects=detects
    )


class _Uncorrected(HeadSession):
    """The mutant: guesses drawn from the logits that the chain has corrected, reported with those before it."""

    def _draw(
        self, logits: Tensor, sampling: Sampling, noise: Noise, guesses: list[Tensor], at: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        token, _ = super()._draw(logits, sampling, noise, guesses, at)
        guessing: Any = self.backend
        state, head = guessing.guessing.newest, guessing.head
        assert isinstance(head, DFlashHead) and head.markov_head is not None
        added = head.markov_head.bias(state[..., eagle_heads.SIZE :])
        return token, super()._draw(logits - added, sampling, noise, guesses, at)[1]


class _OtherPlaces(HeadSession):
    """The mutant: every guess of a block is reported with the q of another place."""

    def _drafted(self, tokens: Tensor, q: Tensor | None, proposed: Tensor) -> Draft:
        return super()._drafted(tokens, None if q is None else q.roll(1, 1), proposed)


class _Mutant:
    def __init__(self, real: PublishedDrafter, kind: type[HeadSession]) -> None:
        self.real, self.kind, self.name = real, kind, "mutant"

    def start(self, rows: int, shape: Shape, session: Session) -> DraftSession:
        made = self.real.start(rows, shape, session)
        made.__class__ = self.kind
        return made


@pytest.mark.usefixtures("read_at_once")
@pytest.mark.parametrize(
    ("kind", "mutant"),
    [
        ("DSpark, vanilla", _Uncorrected), ("DSpark, gated", _Uncorrected), ("DSpark, rnn", _Uncorrected),
        ("EAGLE-3", _OtherPlaces), ("P-EAGLE", _OtherPlaces), ("DFlash", _OtherPlaces),
    ],
)  # fmt: skip
def test_it_would_be_seen_if_q_were_another(tmp_path: Path, kind: str, mutant: type[HeadSession]) -> None:
    with pytest.raises(AssertionError, match="not the expected distribution|probability zero"):
        checked(_Mutant(drafter(tmp_path, kind, floor=0.0), mutant))
