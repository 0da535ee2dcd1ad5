"""What a DSpark head adds to the guesses of a block: logits by the token before, and how likely a guess is kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outrider.drafters.published.dflash_config import DFlashConfig


class MarkovHead(nn.Module):
    """Logits by the token before a guess, from a factorised matrix: ``markov_w1`` by token, ``markov_w2`` by guess.

    What it carries from guess to guess [..., 3 * rank] is a recurrent state ("rnn" only), the embedding of the token
    before, and what ``markov_w2`` reads.
    """

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.kind, self.rank = config.markov_kind, config.markov_rank
        self.markov_w1 = nn.Embedding(config.vocab_size, self.rank)
        self.markov_w2 = nn.Linear(self.rank, config.draft_vocab_size, bias=False)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(config.hidden_size + self.rank, self.rank)
        elif self.kind == "rnn":
            self.joint_proj = nn.Linear(config.hidden_size + 2 * self.rank, 3 * self.rank)

    def begin(self, state: Tensor) -> Tensor:
        """What is carried before the first place of a block."""
        return state.new_zeros((*state.shape[:-1], 3 * self.rank))

    def follow(self, state: Tensor, tokens: Tensor, carried: Tensor) -> Tensor:
        """What is carried on from a place whose state is [B, size], behind tokens [B]."""
        recurrent, token = carried[..., : self.rank], self.markov_w1(tokens)
        read = token
        if self.kind == "gated":
            read = torch.sigmoid(self.gate_proj(torch.cat([state, token], -1))) * token
        elif self.kind == "rnn":
            keep, candidate, read = self.joint_proj(torch.cat([recurrent, token, state], -1)).chunk(3, -1)
            recurrent = torch.lerp(torch.tanh(candidate), recurrent, torch.sigmoid(keep))
            read = torch.tanh(read)
        return torch.cat([recurrent, token, read], -1)

    def token(self, carried: Tensor) -> Tensor:
        """The embedding of the token before, in what is carried."""
        return carried[..., self.rank : 2 * self.rank]

    def bias(self, carried: Tensor) -> Tensor:
        """What is added to the logits of the N tokens -> [..., N]."""
        return self.markov_w2(carried[..., 2 * self.rank :])  # type: ignore[no-any-return]


class ConfidenceHead(nn.Module):
    """How likely a guess is kept, before it is drawn: from its state, and the embedding of the token before it."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.with_token = config.confidence_with_markov
        self.proj = nn.Linear(config.hidden_size + (config.markov_rank if self.with_token else 0), 1)

    def forward(self, state: Tensor, token: Tensor | None) -> Tensor:
        read = torch.cat([state, token], -1) if self.with_token and token is not None else state
        return torch.sigmoid(self.proj(read).float())[..., 0]
