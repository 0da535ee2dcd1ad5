"""The target as teacher of the distillation: its logits, hidden states and probabilities on finished text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from outrider.errors import BadOption
from outrider.models.transformers.model import HuggingFaceModel

Choose = Callable[[Tensor], Tensor]
"""Of values at all positions [B, T, ...] those at some of them [..., ...]."""


def _everywhere(values: Tensor) -> Tensor:
    return values


@dataclass(frozen=True)
class TargetOutput:
    """What a target makes of a text: its logits after every token, and the states they came from."""

    logits: Tensor  # [B, T, V], as the model itself gives them: softcaps and biases included
    hidden: Tensor | None  # [B, T, size]: what the output layer read; None where the target shows none
    states: Tensor | None  # [B, T, L, size]: what the layers asked for gave

    def likeliest(self, at: Choose = _everywhere) -> Tensor:
        """The target's own choice among all tokens, after the positions chosen."""
        return at(self.logits).argmax(-1)

    def probabilities(self, tokens: Tensor, at: Choose = _everywhere, chunk: int = 8192) -> Tensor:
        """p of the chosen tokens [N] after the positions chosen -> [..., N]; the vocabulary is normalised whole."""
        of = _compiled_among() if self.logits.is_cuda else _among
        logits = at(self.logits)
        parts = [of(piece, tokens) for piece in torch.split(logits.flatten(0, -2), chunk)]
        return torch.cat(parts).reshape(*logits.shape[:-1], len(tokens))


def _among(logits: Tensor, tokens: Tensor) -> Tensor:
    whole = logits.float().logsumexp(-1, keepdim=True)
    return (logits[:, tokens].float() - whole).exp()


@cache
def _compiled_among() -> Callable[[Tensor, Tensor], Tensor]:
    """On a GPU: no copy of the vocabulary in float32. When first asked for, since the compiler takes long to import."""
    return torch.compile(_among)


class Teacher:
    """Runs a target over finished text and answers what a student asks."""

    def __init__(self, model: HuggingFaceModel) -> None:
        self.model, self.device = model, model.device

    @torch.no_grad()
    def read(self, tokens: Tensor, source: Tensor | None = None, layers: Sequence[int] = ()) -> TargetOutput:
        """Over tokens [B, T]; ``source`` [B, S] feeds an encoder. Negative numbers are padding at the end."""
        given: dict[str, Any] = {"input_ids": tokens.clamp(min=0), "use_cache": False}
        if self.model.encoder_decoder:
            if source is None:
                raise BadOption("an encoder-decoder target needs sources in its training data")
            present = (source >= 0).long()
            given = {
                "input_ids": source.clamp(min=0), "attention_mask": present, "decoder_input_ids": given["input_ids"],
                "use_cache": False,
            }  # fmt: skip
        output, hidden = self.model.forward(**given, output_hidden_states=bool(layers))
        gave = output.decoder_hidden_states if self.model.encoder_decoder else output.hidden_states
        states = torch.stack([gave[layer] for layer in layers], 2) if layers else None
        return TargetOutput(output.logits, hidden, states)
