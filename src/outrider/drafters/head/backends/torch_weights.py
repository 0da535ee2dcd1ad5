"""A head's weights as torch modules, for any number of rows on any device: for heads of every kind."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor

from outrider.core.protocols import Shape
from outrider.drafters.head.backend import HeadBackend, OutputRows
from outrider.drafters.head.backends.block import start_block
from outrider.drafters.head.backends.blockwise import BlockwiseBackend
from outrider.drafters.head.backends.torch_backend import start_torch
from outrider.drafters.head.layers import Head
from outrider.kernels.packed_linear import pack, packed, product

_ROWS = 2
"""Rows of a run, at least: a feature head's single row has backends of its own, and ARM packs from two rows on."""


class TorchWeights:
    """A head's modules in the target's dtype, and its rows of the output layer."""

    name = "torch"

    def __init__(self, head: Head, output: OutputRows) -> None:
        self.output = output
        self.head = self._modules(head)
        self.rows = output[:]  # [N, size]
        self.like = self.rows[:0]  # of its dtype and device
        self._pack()

    def start(self, rows: int, shape: Shape, several: Callable[[], HeadBackend]) -> HeadBackend:
        config = self.head.config
        if config.blockwise:
            return BlockwiseBackend(self)
        start = start_block if config.parallel else start_torch
        return start(self, (config.heads[1], config.head_size), self.like, rows, shape)

    def logits(self, state: Tensor) -> Tensor:
        """The output layer: states [B, size] -> [B, N]."""
        return product(state, self.rows, None)

    def likeliest(self, logits: Tensor) -> Tensor:
        return self.output.likeliest(logits)

    def likeliest_few(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        return self.output.likeliest_few(logits, count)

    def acceptance(self, state: Tensor) -> None:
        """No head that is trained here predicts it."""

    def _modules(self, head: Head) -> Head:
        # A copy: the drafter is shared, and beside another target it may run in another dtype.
        return deepcopy(head).to(device=self.output.device, dtype=self.output.dtype)

    def _pack(self) -> None:
        if self.output.device.type == "cpu" and self.output.dtype == torch.float32:
            pack(self.head, rows=_ROWS)
            self.rows = packed(self.rows, rows=_ROWS)
