"""What the modules of every published head have in common."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from outrider.core.embedding_table import EmbeddingTable
from outrider.drafters.published.config import PublishedConfig
from outrider.drafters.published.layers import DecoderLayer, LayerStack


class PublishedHead(nn.Module):
    """A head under the names of its checkpoint's tensors. Subclasses are the kinds of heads."""

    parallel = False  # whether its layers run once for all guesses
    reads_the_targets = False  # embeddings, always; and the output layer where it drafts all tokens
    config: PublishedConfig
    layers: nn.ModuleList
    lm_head: nn.Linear | None  # None: the target's
    own_embedding: Tensor | None = None  # [V, size]; None: the target's
    # A plain attribute: what is no parameter is neither copied nor widened with the head.

    @property
    def attention(self) -> LayerStack:
        """The layers, with their keys and values."""
        return LayerStack(cast(list[DecoderLayer], list(self.layers)), self.config.decoder.heads[1])

    def resolve(self, layers: int) -> None:
        """For a target of so many layers."""
        self.config = self.config.resolved(layers)

    def embedded(self, embedding: EmbeddingTable, tokens: Tensor) -> Tensor:
        """Embeddings of tokens: its own, or those of the target."""
        return (embedding if self.own_embedding is None else self.own_embedding)[tokens]

    def logits(self, state: Tensor, rows: Tensor | None) -> Tensor:
        """What the output layer makes of a guess [..., N]. ``rows`` [N, size]: the target's, where it has none."""
        raise NotImplementedError

    def acceptance(self, state: Tensor) -> Tensor | None:
        """How likely a guess is kept, from what its logits come from, as the head itself predicts it [...]."""
        return None
