"""The layers of an EAGLE-3 head as torch modules, under the names that its checkpoints have."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outrider.core.embedding_table import EmbeddingTable
from outrider.drafters.head.layers import Memory
from outrider.drafters.published.eagle3_config import Eagle3Config
from outrider.drafters.published.head import PublishedHead
from outrider.drafters.published.layers import DecoderLayer


class Eagle3Layer(DecoderLayer):
    """The first decoder layer: what it is given holds an embedding and a state, side by side; it gives a state."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config.decoder, 0, inputs=2 * config.hidden_size)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.decoder.norm_eps)
        self.norm_before_residual = config.norm_before_residual

    def normed(self, x: Tensor) -> Tensor:
        """What attention reads: both halves of x [..., 2 * size], each normed."""
        token, state = x.chunk(2, -1)
        return torch.cat([self.input_layernorm(token), self.hidden_norm(state)], -1)

    def residual(self, x: Tensor, normed: Tensor) -> Tensor:
        return (normed if self.norm_before_residual else x).chunk(2, -1)[1]


class Eagle3Head(PublishedHead):
    """From the target's states behind the last token, and that token, to the logits of the next ones."""

    config: Eagle3Config
    lm_head: nn.Linear

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        size, wide, eps = config.hidden_size, config.reads * config.target_size, config.decoder.norm_eps
        self.input_norm = nn.RMSNorm(wide, eps=eps) if config.norm_before_fc else None
        norms = config.reads if config.fc_norm else 0
        self.fc_norm = nn.ModuleList(nn.RMSNorm(config.target_size, eps=eps) for _ in range(norms))
        self.fc = nn.Linear(wide, size, bias=False)
        further = [DecoderLayer(config.decoder, place) for place in range(1, config.decoder.depth)]
        self.layers = nn.ModuleList([Eagle3Layer(config), *further])
        self.norm = nn.RMSNorm(size, eps=eps)
        self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False)

    def seen(self, states: Tensor) -> Tensor:
        """States behind the layers that it reads [..., L, size of the target] -> one state [..., size]."""
        return self.joined(states.flatten(-2))

    def joined(self, wide: Tensor) -> Tensor:
        """The states side by side [..., L * size of the target] -> one state [..., size]."""
        if self.fc_norm:
            parts = wide.chunk(len(self.fc_norm), -1)
            wide = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(wide if self.input_norm is None else self.input_norm(wide))  # type: ignore[no-any-return]

    def read_token(self, state: Tensor, embedding: EmbeddingTable, tokens: Tensor) -> Tensor:
        """States [B, T, size] and the tokens [B, T] that came after them -> [B, T, 2 * size]."""
        return self.read(state, self.embedded(embedding, tokens).to(state.dtype))

    def read(self, state: Tensor, token: Tensor) -> Tensor:
        """Of a state and a token's embedding [..., size] each, what the first layer is given [..., 2 * size]."""
        return torch.cat([token, state], -1)

    def think(self, x: Tensor, positions: Tensor, memory: Memory | None) -> Tensor:
        """From what was read [B, T, 2 * size] to the state that the next guess reads [B, T, size]."""
        state = self.attention.think(x, positions, memory)
        return self.norm(state) if self.config.norm_output else state

    def logits(self, state: Tensor, rows: Tensor | None = None) -> Tensor:
        """States [..., size] -> logits [..., N]."""
        found: Tensor = self.lm_head(state if self.config.norm_output else self.norm(state))
        return found
