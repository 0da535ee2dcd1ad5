"""A trained head on a GPU: a dozen launches a layer become four, since launches are most of what a guess costs there.

Set on the instance a session runs; the classes stay as they are, and training runs through them. Same mathematics,
other rounding in places: guesses may differ, and text cannot, since the target decides.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from outrider import kernels
from outrider.drafters.head_layers import Attention, Block, Head, HeadConfig, Memory


def fuse(head: Head, device: torch.device) -> bool:
    """Fuse a head that drafts on this device -> whether that was done."""
    dtype = next(head.parameters()).dtype
    if not kernels.run_on(device) or dtype == torch.float64:
        return False
    if not kernels.proven(f"heads in {dtype}", device, lambda: _try(device, dtype)):
        return False
    _set(head, device)
    return True


def _set(head: Head, device: torch.device) -> None:
    head.read = MethodType(_read, head)  # type: ignore[method-assign]
    for module in head.modules():
        if isinstance(module, Block):
            module.outrider_joined = torch.cat([module.gate.weight, module.up.weight])
            module.forward = MethodType(_block, module)  # type: ignore[method-assign]
        if isinstance(module, Attention):
            layers = (module.query, module.key, module.value)
            module.outrider_joined = torch.cat([layer.weight for layer in layers])
            half = module.depth // 2
            steps = torch.arange(half, device=device, dtype=torch.float32) / half
            module.outrider_speed = 10_000.0**-steps
            module.outrider_window = head.config.window  # type: ignore[assignment]
            module.outrider_last = None  # type: ignore[assignment]
            module.remember = MethodType(_remember, module)  # type: ignore[method-assign]
            module.forward = MethodType(_attention, module)  # type: ignore[method-assign]


@torch.no_grad()
def _try(device: torch.device, dtype: torch.dtype) -> bool:
    """Three guesses of a small head, with and without."""
    found = []
    for fused in (False, True):
        drawn = torch.Generator().manual_seed(0)
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers are the caller's
            head = Head(HeadConfig("feature", 64, 96, 1, heads=(4, 2), window=40))
        for weight in head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=drawn) / weight.shape[-1] ** 0.5)
        head = head.to(device, dtype)
        assert head.attention is not None
        if fused:
            _set(head, device)
        keys, values = torch.randn((2, 2, 2, 128, 16), generator=drawn).to(device, dtype)
        x, token = torch.randn((2, 2, 1, 64), generator=drawn).to(device, dtype)
        place = torch.tensor([[3], [90]], device=device)
        slots = torch.arange(128, device=device)
        visible = (slots <= place) & (slots > place - 40)
        memory = Memory(keys, values, visible[:, None, None, None])
        x = head.think(x, place, memory)
        for _ in range(2):
            x, place = head.read(x, token), place + 1
            memory.own.append(head.attention.remember(x, place))
            x = head.think(x, place, memory)
        found.append(x)
    slack = 2e-2 if dtype == torch.float32 else 0.1  # products of float32 may be rounded to fewer bits
    return torch.allclose(found[0], found[1], atol=slack, rtol=slack)


def _plus(x: Tensor, y: Tensor, linear: nn.Linear) -> Tensor:
    """x + linear(y), the sum inside the product."""
    flat = torch.addmm(x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), linear.weight.t())
    return flat.view(x.shape)


def _read(self: Any, state: Tensor, token: Tensor) -> Tensor:
    from outrider.kernels.head import norms_side_by_side

    gains = (self.state_norm.weight, self.token_norm.weight)
    return _plus(state, norms_side_by_side(state, token, gains, self.state_norm.eps), self.join)


def _block(self: Any, x: Tensor) -> Tensor:
    from outrider.kernels.rows import rms_norm, silu_gate

    y = nn.functional.linear(rms_norm(x, self.norm.weight, self.norm.eps), self.outrider_joined)
    return _plus(x, silu_gate(y), self.down)


def _turned(self: Any, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from outrider.kernels.head import turned
    from outrider.kernels.rows import rms_norm

    both = nn.functional.linear(rms_norm(x, self.norm.weight, self.norm.eps), self.outrider_joined)
    return turned(both, self.outrider_speed, positions, (self.heads, self.shared))


def _remember(self: Any, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Queries come along: a guess looks back from the very input its keys are made of."""
    query, keys, values = _turned(self, x, positions)
    self.outrider_last = (x, query)
    return keys, values


def _attention(self: Any, x: Tensor, positions: Tensor, memory: Memory) -> Tensor:
    from outrider.kernels.head import look_back

    if x.shape[1] != 1:  # finished text, as in training
        return Attention.forward(self, x, positions, memory)
    known, self.outrider_last = self.outrider_last, None
    query = known[1] if known is not None and known[0] is x else _turned(self, x, positions)[0]
    found = look_back(query, (memory.keys, memory.values), memory.own, positions, self.outrider_window)
    return _plus(x, found, self.out)
