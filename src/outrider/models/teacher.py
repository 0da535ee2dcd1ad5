"""A target as a teacher: its hidden states, and its probabilities on a few tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.errors import require
from outrider.models.huggingface import HuggingFaceModel


def fingerprint(model: HuggingFaceModel) -> str:
    """A short name for these very weights, whatever directory they lie in: heads fit one target only."""
    sample = model.embedding[:256].detach().to(device="cpu", dtype=torch.bfloat16).contiguous()
    return hashlib.sha256(sample.view(torch.int16).numpy().tobytes()).hexdigest()[:16]


class Teacher:
    """Runs a target over finished text and answers what a student asks."""

    def __init__(self, model: HuggingFaceModel) -> None:
        require(
            model.hidden_size is not None, "this target shows no hidden states: only --kind model can learn from it"
        )
        self.model, self.device = model, model.device
        self.embedding, self.unembedding = model.embedding, model.unembedding

    @torch.no_grad()
    def look(self, tokens: Tensor, source: Tensor | None = None, layers: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """Over tokens [B, T]: what the output layer reads [B, T, size], and what these layers give [B, T, L, size].

        ``source`` [B, S] feeds an encoder. The output layer of some families read something else: T5 scales it.
        """
        if self.model.encoder_decoder:
            require(source is not None, "an encoder-decoder target needs sources in its training data")
            mask = source != self.model.model.config.pad_token_id
            read = {"input_ids": source, "attention_mask": mask.long(), "decoder_input_ids": tokens}
        else:
            read = {"input_ids": tokens, "use_cache": False}
        output, hidden = self.model.run(**read, output_hidden_states=bool(layers))
        assert hidden is not None
        given = output.decoder_hidden_states if self.model.encoder_decoder else output.hidden_states
        return hidden, torch.stack([given[layer] for layer in layers], 2) if layers else hidden[:, :, :0, None]

    def hidden(self, tokens: Tensor, source: Tensor | None = None) -> Tensor:
        """The last hidden states [B, T, size]: what the output layer reads."""
        return self.look(tokens, source)[0]

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """The output layer on hidden states [..., size] -> [..., V], in float32."""
        return self.model.model.get_output_embeddings()(hidden).float()  # type: ignore[no-any-return]

    @torch.no_grad()
    def likeliest(self, hidden: Tensor, chunk: int = 8192) -> Tensor:
        """The target's own choice among all tokens after each state [..., size] -> [...]."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        return torch.cat([self.logits(piece).argmax(-1) for piece in torch.split(flat, chunk)]).reshape(
            hidden.shape[:-1]
        )

    @torch.no_grad()
    def probabilities(self, hidden: Tensor, tokens: Tensor, chunk: int = 8192) -> Tensor:
        """p of the chosen tokens [N] after each state [..., size] -> [..., N]; the vocabulary is normalised whole."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        parts = []
        for piece in torch.split(flat, chunk):
            logits = self.logits(piece)
            parts.append((logits[:, tokens] - logits.logsumexp(-1, keepdim=True)).exp())
        return torch.cat(parts).reshape(*hidden.shape[:-1], len(tokens))
