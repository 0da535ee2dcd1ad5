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


HEAD = ("norms_side_by_side", "turned", "look_back")


def norms_side_by_side(a: Tensor, b: Tensor, gains: tuple[Tensor, Tensor], eps: float) -> Tensor:
    normed = [torch.nn.functional.rms_norm(x, x.shape[-1:], gain, eps) for x, gain in zip((a, b), gains, strict=True)]
    return torch.cat(normed, -1)


def turned(qkv: Tensor, speed: Tensor, positions: Tensor, heads: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    rows, width, _ = qkv.shape
    q_heads, k_heads = heads
    split = qkv.reshape(rows, width, q_heads + 2 * k_heads, -1).transpose(1, 2)  # [B, H + 2 Hk, T, D]
    angle = positions[:, None, :, None].float() * speed
    low, high = split[:, : q_heads + k_heads].float().chunk(2, -1)
    both = torch.cat([low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], -1)
    both = both.to(qkv.dtype)
    return both[:, :q_heads], both[:, q_heads:], split[:, q_heads + k_heads :]


def look_back(
    query: Tensor, text: tuple[Tensor, Tensor], own: list[tuple[Tensor, Tensor]], positions: Tensor, window: int
) -> Tensor:
    rows, heads, _, size = query.shape
    groups = heads // text[0].shape[1]
    found = []
    for row in range(rows):
        last = int(positions[row]) - len(own)
        seen = slice(max(0, last - window + 1), last + 1)
        keys, values = (
            torch.cat([part[row, :, seen], *(pair[i][row] for pair in own)], 1).repeat_interleave(groups, 0).float()
            for i, part in enumerate(text)
        )
        weights = (query[row].float() @ keys.transpose(-1, -2) * size**-0.5).softmax(-1)
        found.append((weights @ values).reshape(1, heads * size))
    return torch.stack(found).to(query.dtype)
