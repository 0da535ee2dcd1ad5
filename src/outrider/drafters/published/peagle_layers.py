"""The layers of a P-EAGLE head: those of an EAGLE-3 head, run once for all guesses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outrider.core.embedding_table import EmbeddingTable
from outrider.drafters.head.layers import Memory
from outrider.drafters.published.eagle3_config import Eagle3Config
from outrider.drafters.published.eagle3_layers import Eagle3Head
from outrider.drafters.published.layers import BlockMemory, StackMemory


class PEagleHead(Eagle3Head):
    """The first place of a block reads what an EAGLE-3 head would, the others a mask in place of state and token.

    A place sees the places before it. A window slides with the places, but never over the block itself.
    """

    parallel = True

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config)
        assert config.mask_token is not None
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, config.reads * config.target_size))
        self.mask_token = config.mask_token

    @property
    def guesses(self) -> int:
        return self.config.gamma

    def side_by_side(
        self, states: Tensor, embedding: EmbeddingTable, tokens: Tensor, positions: Tensor, memory: Memory | None
    ) -> tuple[Tensor, Tensor]:
        """States of all guesses [B, G, size], behind states of the target [B, L, size] and the tokens [B] after them.

        Nothing goes from one guess to the next.
        """
        assert isinstance(memory, StackMemory)
        rows, places = positions.shape
        ids = torch.cat([tokens[:, None], tokens.new_full((rows, places - 1), self.mask_token)], 1)
        masks = self.mask_hidden.expand(rows, places - 1, -1)
        seen = self.joined(torch.cat([states.flatten(1)[:, None].to(masks.dtype), masks], 1))
        x = self.read_token(seen, embedding, ids)
        for layer, part in zip(self.attention.layers, memory.parts, strict=True):
            own, visible = layer.own_keys(x, positions), _visible(positions, part, layer.window)
            x = layer(x, positions, BlockMemory(part, own, visible))
        return x, x.new_zeros((rows, 0))

    def follow(self, state: Tensor, embedding: EmbeddingTable, tokens: Tensor, carried: Tensor) -> Tensor:
        return carried

    def corrected(self, state: Tensor, carried: Tensor) -> Tensor:
        return state

    def logits(self, state: Tensor, rows: Tensor | None = None) -> Tensor:
        """States [..., size] -> logits [..., N]."""
        return self.lm_head(self.norm(state))  # type: ignore[no-any-return]


def _visible(positions: Tensor, text: Memory, window: int) -> Tensor:
    """[B, 1, 1, T, C + T]: text before the newest position, whose place is in the block, and places in order."""
    slots = torch.arange(text.keys.shape[2], device=positions.device)
    before = (slots < positions[:, :1, None]) & (slots > positions[..., None] - window)  # [B, T, C]
    places = positions.shape[1]
    order = torch.ones((places, places), dtype=torch.bool, device=positions.device).tril()
    return torch.cat([before, order.expand(len(positions), -1, -1)], -1)[:, None, None]
