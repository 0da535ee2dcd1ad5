"""What each kernel of ``outrider.kernels`` computes, in a few lines of torch."""

from __future__ import annotations

import torch
from torch import Tensor

ROWS = ("rms_norm", "add_rms_norm", "silu_gate", "rotate_and_store")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (scaled.to(x.dtype).float() * weight.float()).to(x.dtype)


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + delta
    return total, rms_norm(total, weight, eps)


def silu_gate(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return torch.nn.functional.silu(gate.float()).to(x.dtype) * up


def rotate_and_store(
    qkv: Tensor, turn: tuple[Tensor, Tensor], positions: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    rows, width = positions.shape
    heads, size = keys.shape[1], keys.shape[3]
    cos, sin = (t.expand(rows, width, size)[:, :, None] for t in turn)
    split = qkv.reshape(rows, width, -1, size)
    turning, value = split[:, :, :-heads], split[:, :, -heads:]
    low, high = turning.chunk(2, -1)
    turned = turning * cos + torch.cat([-high, low], -1) * sin
    place = torch.arange(rows, device=positions.device)[:, None]
    keys[place, :, positions] = turned[:, :, -heads:].to(keys.dtype)
    values[place, :, positions] = value.to(values.dtype)
    return turned[:, :, :-heads].contiguous()


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor, scale: float, window: int | None = None
) -> Tensor:
    rows, width, q_heads, size = queries.shape
    key, value = (x.repeat_interleave(q_heads // keys.shape[1], 1).float() for x in (keys, values))
    place = torch.arange(keys.shape[2], device=keys.device)
    at = positions[:, None, :, None]
    visible = (place <= at) & (place > at - (window or keys.shape[2] + 1))
    score = queries.transpose(1, 2).float() @ key.transpose(2, 3) * scale
    share = score.masked_fill(~visible, -torch.inf).softmax(-1)
    return (share @ value).transpose(1, 2).reshape(rows, width, q_heads * size).to(queries.dtype)
