"""What each kernel of ``outrider.kernels.triton`` computes, in a few lines of torch."""

from __future__ import annotations

import torch
from torch import Tensor

ROWS = ("rms_norm", "add_rms_norm", "silu_gate", "gelu_gate", "rotate_and_store")


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0, late: bool = False) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return ((scaled if late else scaled.to(x.dtype).float()) * (weight.float() + offset)).to(x.dtype)


def add_rms_norm(
    x: Tensor, delta: Tensor, weight: Tensor | None, eps: float, offset: float = 0.0, late: bool = False,
    after: Tensor | None = None, share: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    total = x + (delta if after is None else rms_norm(delta, after, eps, offset, late)) * share
    return total, total if weight is None else rms_norm(total, weight, eps, offset, late)


def silu_gate(x: Tensor, rows: int | None = None) -> Tensor:
    gate, up = x.chunk(2, -1)
    return _first(torch.nn.functional.silu(gate.float()).to(x.dtype) * up, rows)


def gelu_gate(x: Tensor, rows: int | None = None) -> Tensor:
    gate, up = x.chunk(2, -1)
    return _first(torch.nn.functional.gelu(gate.float(), approximate="tanh").to(x.dtype) * up, rows)


def _first(found: Tensor, rows: int | None) -> Tensor:
    return found if rows is None else torch.nn.functional.pad(found, (0, 0, 0, rows - len(found)))


def rotate_and_store(
    qkv: Tensor, turn: tuple[Tensor, Tensor], positions: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    rows, width = positions.shape
    heads, size = keys.shape[1], keys.shape[3]
    cos, sin = (t.expand(rows, width, -1)[:, :, None] for t in turn)
    split = qkv.reshape(rows, width, -1, size)
    value, (turning, rest) = split[:, :, -heads:], split[:, :, :-heads].tensor_split([cos.shape[-1]], -1)
    low, high = turning.chunk(2, -1)
    turned = torch.cat([(turning * cos + torch.cat([-high, low], -1) * sin).to(qkv.dtype), rest], -1)
    place = torch.arange(rows, device=positions.device)[:, None]
    keys[place, :, positions] = turned[:, :, -heads:].to(keys.dtype)
    values[place, :, positions] = value.to(values.dtype)
    return turned[:, :, :-heads].contiguous()


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor, scale: float, window: int | None = None,
    out: Tensor | None = None, paths: Tensor | None = None, cap: float = 0.0,
) -> Tensor:  # fmt: skip
    rows, width, q_heads, size = queries.shape
    key, value = (x.repeat_interleave(q_heads // keys.shape[1], 1).float() for x in (keys, values))
    place = torch.arange(keys.shape[2], device=keys.device)
    at = positions[:, None, :, None]
    visible = (place <= at) & (place > at - (window or keys.shape[2] + 1))
    q = queries.transpose(1, 2).float()

    def bounded(score: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap) if cap else score

    if paths is None:
        share = bounded(q @ key.transpose(2, 3) * scale).masked_fill(~visible, -torch.inf).softmax(-1)
        found = share @ value
    else:  # every token has keys of its own: those on its path, in order
        behind = (place - positions[0, 0]).clamp(min=0, max=paths.shape[1] - 1)
        mine = torch.where(place > positions[0, 0], positions[0, 0] + paths[:, behind], place)  # [W, C]
        mine = mine.clamp(max=len(place) - 1)
        score = (q[..., None, :] @ key[:, :, mine].transpose(-1, -2))[..., 0, :] * scale
        score = bounded(score).masked_fill(~visible, -torch.inf)
        found = (score.softmax(-1)[..., None, :] @ value[:, :, mine])[..., 0, :]
    found = found.transpose(1, 2).reshape(rows, width, q_heads * size).to(queries.dtype)
    if out is None:
        return found
    out[: rows * width] = found.flatten(0, 1)
    return out


PRODUCT = ("product", "join")


def product(
    x: Tensor, weight: Tensor, norm: tuple[Tensor, float] | None = None, gate: bool = False, plus: Tensor | None = None
) -> Tensor:
    wide = (
        x.float() if norm is None else torch.nn.functional.rms_norm(x.float(), x.shape[-1:], norm[0].float(), norm[1])
    )
    y = wide @ weight.float().t()
    if gate:
        first, second = y.chunk(2, -1)
        y = torch.nn.functional.silu(first) * second
    return (y if plus is None else y + plus.float()).to(x.dtype)


def join(
    both: tuple[Tensor, Tensor],
    gains: tuple[Tensor, Tensor],
    eps: float,
    weight: Tensor,
    plus: Tensor,
    chosen: Tensor | None = None,
) -> Tensor:
    second = both[1] if chosen is None else both[1][chosen]
    normed = [
        torch.nn.functional.rms_norm(x.float(), x.shape[-1:], gain.float(), eps)
        for x, gain in zip((both[0], second), gains, strict=True)
    ]
    return (plus.float() + torch.cat(normed, -1) @ weight.float().t()).to(plus.dtype)


HEAD = ("turn_and_store", "look_back", "look_back_on_branches", "likeliest", "likeliest_few")


def turn_and_store(
    qkv: Tensor, speed: Tensor, positions: Tensor, buffers: tuple[Tensor, Tensor], rows: Tensor | None = None,
    places: Tensor | None = None,
) -> Tensor:  # fmt: skip
    count, width, _ = qkv.shape
    k_heads = buffers[0].shape[1]
    split = qkv.reshape(count, width, -1, 2 * speed.shape[0])  # [R, T, H + 2 Hk, D]
    angle = positions[:, :, None, None].float() * speed
    low, high = split[:, :, :-k_heads].float().chunk(2, -1)
    both = torch.cat([low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], -1)
    both = both.to(qkv.dtype)
    rows = torch.arange(count, device=qkv.device) if rows is None else rows
    places = positions if places is None else places
    buffers[0][rows[:, None], :, places] = both[:, :, -k_heads:]
    buffers[1][rows[:, None], :, places] = split[:, :, -k_heads:]
    return both[:, :, :-k_heads]


def look_back(query: Tensor, buffers: tuple[Tensor, Tensor], own: int, positions: Tensor, window: int) -> Tensor:
    rows, _, heads, size = query.shape
    groups = heads // buffers[0].shape[1]
    found = []
    for row in range(rows):
        last = int(positions[row])
        seen = slice(max(0, last - own - window + 1), last + 1)
        keys, values = (part[row, :, seen].repeat_interleave(groups, 0).float() for part in buffers)
        weights = (query[row].transpose(0, 1).float() @ keys.transpose(-1, -2) * size**-0.5).softmax(-1)
        found.append((weights @ values).reshape(1, heads * size))
    return torch.stack(found).to(query.dtype)


def look_back_on_branches(
    query: Tensor, text: tuple[Tensor, Tensor], apart: tuple[Tensor, Tensor], chains: Tensor, positions: Tensor,
    window: int,
) -> Tensor:  # fmt: skip
    branches, levels = chains.shape
    _, _, heads, size = query.shape
    seen = (positions[0, 0] - levels - torch.arange(text[0].shape[2], device=query.device)).clamp(min=-1)
    visible = (seen >= 0) & (seen < window)  # [C], all at one position
    found = []
    for branch in range(branches):
        keys, values = (
            torch.cat([part[0], own[0][:, chains[branch]]], 1).repeat_interleave(heads // part.shape[1], 0).float()
            for part, own in zip(text, apart, strict=True)
        )
        mask = torch.nn.functional.pad(visible, (0, levels), value=True)
        scores = query[0, branch, :, None].float() @ keys.transpose(-1, -2) * size**-0.5
        found.append((scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values).flatten())
    return torch.stack(found)[None].to(query.dtype)


def likeliest(logits: Tensor, tokens: Tensor) -> Tensor:
    return tokens[logits.argmax(-1)]


def likeliest_few(logits: Tensor, tokens: Tensor, count: int) -> tuple[Tensor, Tensor]:
    chances, places = logits.float().log_softmax(-1).topk(count)
    return chances, tokens[places]
