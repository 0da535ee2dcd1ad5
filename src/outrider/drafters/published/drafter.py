"""The drafter of a published head: whether it fits a target, what a guess costs, and its sessions.

The layers run in torch, once per guess or once for all guesses, by the backends that other heads share. Keys of
committed tokens come from the target's states, those of guesses from the head's own. A head drafts N of the target's
tokens, and q over these, which is drawn from and verified, is zero elsewhere.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from outrider.core.model_facts import ModelFacts
from outrider.core.protocols import DraftSession, Session, Shape
from outrider.core.traits import DrafterTraits
from outrider.drafters.head.backend import DraftTokens, HeadBackend
from outrider.drafters.head.backends.block import ParallelLayers, start_block
from outrider.drafters.head.backends.torch_backend import RecurrentLayers, start_torch
from outrider.drafters.head.session import HeadSession
from outrider.drafters.published import checkpoint
from outrider.drafters.published.config import PublishedConfig
from outrider.drafters.published.head import PublishedHead
from outrider.errors import BadOption, require
from outrider.kernels.packed_linear import pack, packed

_TIME_PER_WEIGHT = 1.6
"""What a guess takes for each weight it reads where a run of the target takes one: as for other heads in torch."""

_REMEDY = "use a draft that was trained for this very target"


class PublishedDrafter:
    """A head that others have trained, as a drafter. ``tokens`` [N] ascending are those that its logits are of.

    It stops where, by its own confidence, its guesses so far are all right with a chance below ``floor``, or, where a
    policy tells it what guesses cost, with a chance that is not worth another one.
    """

    def __init__(self, head: PublishedHead, tokens: Tensor, name: str = "head", floor: float = 0.1) -> None:
        require(0 <= floor < 1, f"floor must be a chance below 1 (0: never stop early), got {floor!r}")
        self.head, self.tokens = head.eval().requires_grad_(False), tokens
        self.name, self.floor = name, floor
        self.cost = DrafterTraits.cost
        self._prepared: PreparedPublished | None = None

    @property
    def config(self) -> PublishedConfig:
        return self.head.config

    @property
    def traits(self) -> DrafterTraits:
        return DrafterTraits(self.cost, gamma=self.config.gamma, stops_itself=self.floor > 0)

    @staticmethod
    def load(folder: Path, name: str | None = None) -> PublishedDrafter:
        """A checkpoint in the speculators format, or of a plain EAGLE-3 repository."""
        head, tokens = checkpoint.read(folder)
        return PublishedDrafter(head, tokens, name or folder.name)

    def save(self, folder: Path) -> None:
        """Write a checkpoint in the speculators format."""
        checkpoint.write(self.head, self.tokens, folder)

    def beside(self, facts: ModelFacts) -> PublishedDrafter:
        """For this target; BadOption where it was trained for another."""
        require(
            facts.layers is not None and facts.hidden_size is not None and not facts.encoder_decoder,
            f"draft {self.name!r} reads states of the target's layers, and this target shows none; use another draft",
        )
        count = facts.layers or 0
        self.head.resolve(count)
        config = self.config
        self._check_sizes(facts.hidden_size, facts.vocab_size)
        wrong = [layer for layer in config.layers or () if not 0 <= layer <= count]
        require(
            not wrong,
            f"draft {self.name!r} reads states behind {config.layers} layers of its target, and {wrong} cannot be "
            f"read of one with {count}; {_REMEDY}",
        )
        if facts.weights_read is not None:
            self.cost = _TIME_PER_WEIGHT * config.weights_read / facts.weights_read
        return self

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        if self.config.layers is None or target.hidden is None or target.embedding is None:
            raise BadOption(
                f"draft {self.name!r} reads states of the target's layers; tell it which target it drafts for with "
                "beside(facts), and use a target that shows its states"
            )
        self._check_sizes(target.hidden.shape[-1], target.vocab_size)
        if self._prepared is None or not self._prepared.fits(target):
            self._prepared = PreparedPublished(self.head, self.tokens, target)
        return HeadSession(self._prepared, self.floor, rows, shape, target)

    def _check_sizes(self, hidden_size: int | None, vocab_size: int) -> None:
        config = self.config
        require(
            hidden_size == config.target_size,
            f"draft {self.name!r} reads states of size {config.target_size}, and the target's have {hidden_size}; "
            f"{_REMEDY}",
        )
        require(
            vocab_size == config.vocab_size,
            f"draft {self.name!r} was trained for a vocabulary of {config.vocab_size} tokens, and the target has "
            f"{vocab_size}; {_REMEDY}",
        )
        require(
            self.head.own_embedding is not None or config.hidden_size == config.target_size,
            f"draft {self.name!r} has no embed_tokens.weight, and embeddings of the target's size "
            f"{config.target_size} do not fit its {config.hidden_size}; get the checkpoint again",
        )


class PreparedPublished:
    """A published head in the dtype and on the device of one target, made once for all sessions beside it."""

    name = "torch"

    def __init__(self, head: PublishedHead, tokens: Tensor, target: Session) -> None:
        assert target.hidden is not None
        self._target, self.like = target.embedding, target.hidden[:0]
        own = head.own_embedding  # as it is: a copy in the target's dtype may be larger than the rest of the head
        copied = deepcopy(head, {id(own): own})
        self.head = copied.to(device=target.device, dtype=self.like.dtype)
        self.head.own_embedding = None if own is None else own.to(target.device)
        self.output = DraftTokens(tokens.to(target.device))
        self.rows = None if head.lm_head is not None else self._targets_rows(target)  # [N, size]
        if target.device.type == "cpu" and self.like.dtype == torch.float32:
            pack(self.head, rows=2)
            self.rows = None if self.rows is None else packed(self.rows, rows=2)

    def _targets_rows(self, target: Session) -> Tensor:
        """The target's output layer, as it lies in memory where that can be read."""
        assert target.unembedding is not None
        rows: Tensor = target.unembedding.detach()[: len(self.output)]
        return rows.to(self.like.dtype)

    @property
    def layers(self) -> tuple[int, ...]:
        return self.head.config.layers or ()

    def fits(self, target: Session) -> bool:
        return self._target is target.embedding

    def start(self, rows: int, shape: Shape) -> HeadBackend:
        decoder = self.head.config.decoder
        heads = decoder.depth * decoder.heads[1], decoder.head_size
        if self.head.parallel:
            return start_block(cast(ParallelLayers, self), heads, self.like, rows, shape)
        return start_torch(cast(RecurrentLayers, self), heads, self.like, rows, shape)

    def logits(self, state: Tensor) -> Tensor:
        return self.head.logits(state, self.rows)

    def likeliest(self, logits: Tensor) -> Tensor:
        return self.output.likeliest(logits)

    def likeliest_few(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        return self.output.likeliest_few(logits, count)

    def acceptance(self, state: Tensor) -> Tensor | None:
        return self.head.acceptance(state)
