"""The layers of a DFlash or DSpark head as torch modules, under the names that their checkpoints have."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from outrider.core.embedding_table import EmbeddingTable
from outrider.drafters.head.layers import KeysValues, Memory
from outrider.drafters.published.dflash_config import DFlashConfig
from outrider.drafters.published.head import PublishedHead
from outrider.drafters.published.layers import BlockMemory, DecoderLayer, LayerStack, StackMemory
from outrider.drafters.published.markov import ConfidenceHead, MarkovHead
from outrider.kernels.packed_linear import product


class DFlashLayer(DecoderLayer):
    """A decoder layer whose keys of the text come from the target's states, not from what the layer below gives."""

    def remember(self, x: Tensor, positions: Tensor) -> KeysValues:
        return self.self_attn.keys_values(x, positions)


class TextStack(LayerStack):
    """Layers that all read the same states of the target: no layer waits for the one below."""

    def store(self, x: Tensor, positions: Tensor, cache: KeysValues, rows: Tensor | None = None) -> None:
        for place, layer in enumerate(self.layers):
            layer.store(x, positions, self._part(cache, place), rows)


class DFlashHead(PublishedHead):
    """From the target's states before the newest token, and that token, to the logits of a block of tokens."""

    parallel = True
    reads_the_targets = True
    config: DFlashConfig

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        decoder, size = config.decoder, config.hidden_size
        self.fc = nn.Linear(config.reads * size, size, bias=False)
        self.hidden_norm, self.norm = (nn.RMSNorm(size, eps=decoder.norm_eps) for _ in range(2))
        self.layers = nn.ModuleList(DFlashLayer(decoder, place) for place in range(decoder.depth))
        self.lm_head = None if config.shares_output else nn.Linear(size, config.draft_vocab_size, bias=False)
        self.markov_head = MarkovHead(config) if config.markov_rank else None
        self.confidence_head = ConfidenceHead(config) if config.confidence else None

    @property
    def attention(self) -> LayerStack:
        """The layers, with their keys and values."""
        return TextStack(cast(list[DecoderLayer], list(self.layers)), self.config.decoder.heads[1])

    @property
    def guesses(self) -> int:
        return self.config.guesses

    def seen(self, states: Tensor) -> Tensor:
        """States behind the layers that it reads [..., L, size] -> one state [..., size]."""
        return self.hidden_norm(self.fc(states.flatten(-2)))  # type: ignore[no-any-return]

    def read_token(self, state: Tensor, embedding: EmbeddingTable, tokens: Tensor) -> Tensor:
        """Keys of the text come from states alone."""
        return state

    def think(self, x: Tensor, positions: Tensor, memory: Memory | None) -> Tensor:
        raise NotImplementedError("a DFlash head makes all guesses at once")

    def side_by_side(
        self, states: Tensor, embedding: EmbeddingTable, tokens: Tensor, positions: Tensor, memory: Memory | None
    ) -> tuple[Tensor, Tensor]:
        """States of all guesses [B, G, size], and what goes from guess to guess [B, R], behind tokens [B].

        ``positions`` [B, G] begin with that of the target's last state, whose keys the cache holds.
        """
        assert isinstance(memory, StackMemory)
        anchor = positions[:, :1] + 1  # the newest token's
        places = anchor + torch.arange(self.config.block_size, device=anchor.device)  # [B, block_size]
        masks = tokens.new_full((len(tokens), places.shape[1] - 1), self.config.mask_token)
        x = embedding[torch.cat([tokens[:, None], masks], 1)].to(states.dtype)
        for layer, part in zip(self.attention.layers, memory.parts, strict=True):
            x = layer(x, places, BlockMemory(part, layer.own_keys(x, places), self._visible(part, layer)))
        x = self.norm(x)
        carried = x.new_zeros((len(x), 0)) if self.markov_head is None else self.markov_head.begin(x[:, 0])
        if self.config.sample_from_anchor:
            return x, carried
        return x[:, 1:], self.follow(x[:, 0], embedding, tokens, carried)

    def follow(self, state: Tensor, embedding: EmbeddingTable, tokens: Tensor, carried: Tensor) -> Tensor:
        """What is carried on from a guess whose state is [B, size], behind tokens [B]."""
        return carried if self.markov_head is None else self.markov_head.follow(state, tokens, carried)

    def corrected(self, state: Tensor, carried: Tensor) -> Tensor:
        """What the output layer reads: a state and what the Markov head adds [B, size + R]."""
        return torch.cat([state, carried], -1)

    def logits(self, state: Tensor, rows: Tensor | None) -> Tensor:
        """What ``corrected`` gave [..., size + R] -> logits [..., N]."""
        hidden, carried = self._parts(state)
        if self.lm_head is not None:
            found = self.lm_head(hidden)
        else:
            assert rows is not None
            found = product(hidden, rows, None)
        return found if self.markov_head is None else found + self.markov_head.bias(carried)  # type: ignore[no-any-return]

    def acceptance(self, state: Tensor) -> Tensor | None:
        if self.confidence_head is None:
            return None
        hidden, carried = self._parts(state)
        token = None if self.markov_head is None else self.markov_head.token(carried)
        return self.confidence_head(hidden, token)  # type: ignore[no-any-return]

    def _parts(self, state: Tensor) -> tuple[Tensor, Tensor]:
        size = self.config.hidden_size
        return state[..., :size], state[..., size:]

    def _visible(self, text: Memory, layer: DecoderLayer) -> Tensor:
        """[B, 1, 1, T, C + T]: the text in the window, and the block: in layers with a window only what is before."""
        size = self.config.block_size
        block = torch.ones((size, size), dtype=torch.bool, device=text.keys.device)
        if layer.slides and not self.config.sliding_window_non_causal:
            block = block.tril()
        assert text.visible is not None
        before = text.visible[:, 0, 0].expand(-1, size, -1)  # [B, T, C]
        return torch.cat([before, block.expand(len(before), -1, -1)], -1)[:, None, None]
