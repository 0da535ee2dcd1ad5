"""What is learnt: cross-entropy, or a teacher's probabilities, without ever holding the logits of a whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.training.objectives import Objective
from pretrain.text import IGNORED, Batch


class Trunk:
    """A model without its output layer, which the losses apply piece by piece: logits of a large batch are large."""

    def __init__(self, model: Any) -> None:
        self.model, self.head = model, model.get_output_embeddings()
        self.head.forward = _unchanged  # on this instance only; weights and what is saved of them stay as they are

    def __call__(self, batch: Batch) -> Tensor:
        """What the output layer would read, at all positions -> [B * T, size]."""
        states: Tensor = self.model(**batch.inputs, use_cache=False).logits
        return states.flatten(0, 1)


def _unchanged(states: Tensor) -> Tensor:
    return states


class _InPieces(torch.autograd.Function):
    """Output layer and loss, a few rows at a time; the gradients are made on the way, so no logits are kept."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, loss: Any, rows: int) -> Tensor:
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else states.dtype
        own = weight.detach().to(dtype).requires_grad_()
        into_states, into_weight = torch.empty_like(states), torch.zeros_like(weight)
        total = torch.zeros((), device=states.device)
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            read = states[part].detach().to(dtype).requires_grad_()
            with torch.enable_grad():
                here = loss((read @ own.t()).float(), part)
            for_states, for_weight = torch.autograd.grad(here, (read, own))
            into_states[part] = for_states
            into_weight += for_weight
            total += here.detach()
        ctx.save_for_backward(into_states, into_weight)
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor, None, None]:
        into_states, into_weight = ctx.saved_tensors
        return into_states * scale, into_weight * scale, None, None


def in_pieces(states: Tensor, weight: Tensor, loss: Callable[[Tensor, slice], Tensor], rows: int = 16384) -> Tensor:
    """Sum of ``loss(logits, rows)`` over pieces of the rows of states [N, size]; weight [V, size] makes the logits."""
    return cast(Tensor, _InPieces.apply(states, weight, loss, rows))  # type: ignore[no-untyped-call]


def cross_entropy(trunk: Trunk, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Mean over the labels that count."""
    labels = batch.labels.flatten()

    def loss(logits: Tensor, rows: slice) -> Tensor:
        return F.cross_entropy(
            logits, labels[rows], ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
        ).div(batch.tokens)

    return in_pieces(trunk(batch), trunk.head.weight, loss)


def from_teacher(trunk: Trunk, teacher: Trunk, batch: Batch, objective: Objective) -> Tensor:
    """Mean of an objective against the teacher's probabilities, over the labels that count."""
    labels = batch.labels.flatten()
    with torch.no_grad():
        told = teacher(batch)

    def loss(logits: Tensor, rows: slice) -> Tensor:
        with torch.no_grad():
            p = F.linear(told[rows], teacher.head.weight).float().softmax(-1)
        return (objective(logits, p, labels[rows]) * (labels[rows] != IGNORED)).sum() / batch.tokens

    return in_pieces(trunk(batch), trunk.head.weight, loss)
