"""A trained head made ready to draft beside one target: once, for all its sessions."""

from __future__ import annotations

from copy import deepcopy
from functools import cached_property

import torch
from torch import Tensor

from outrider.core.noise import counter_of
from outrider.core.protocols import Session
from outrider.drafters import compiled_row, head_fused
from outrider.drafters.compiled_row import CompiledWeights, Picked
from outrider.drafters.head_layers import Head
from outrider.drafters.one_row import Weights
from outrider.kernels.packed_linear import pack, packed


class ReadyHead:
    """A head's weights as sessions beside one target use them, and the rows of its output layer for N tokens."""

    def __init__(self, head: Head, tokens: Tensor, target: Session) -> None:
        assert target.unembedding is not None
        self._target = target.unembedding
        self._head, self._unembedding, self.device = head, target.unembedding.detach(), target.device
        self.config = head.config
        self.tokens = tokens.to(target.device).sort().values  # [N], in the vocabulary's order: ties end as in all of it
        self.counter = counter_of(self.tokens)

    def fits(self, target: Session) -> bool:
        return self._target is target.unembedding

    @cached_property
    def batched(self) -> tuple[Head, Tensor, bool]:
        """The head in the target's dtype, the output layer's rows [N, size], and whether the head is fused."""
        # A copy: the drafter is shared, and beside another target it may run in another dtype.
        head = deepcopy(self._head).to(device=self.device, dtype=self._unembedding.dtype)
        fused = head_fused.fuse(head, self.device)
        output = self._unembedding[self.tokens]
        if not fused and self.device.type == "cpu" and output.dtype == torch.float32:  # fused layers read plain weights
            pack(head, rows=1)
            output = packed(output, rows=1)
        return head, output, fused

    @cached_property
    def alone(self) -> Weights | CompiledWeights | None:
        """For one row on a CPU; None where there is no such way."""
        if self.device.type != "cpu" or self.config.kind != "feature":
            return None
        if compiled_row.available():
            return CompiledWeights(self._head, Picked(self._unembedding, self.tokens))
        return Weights(self._head, self._unembedding[self.tokens])
