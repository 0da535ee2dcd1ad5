"""A trained head on a GPU: a dozen launches a layer become two, since launches are most of what a guess costs there.

Set on the instance a session runs; the classes stay as they are, and training runs through them. Same mathematics,
other rounding in places: guesses may differ, and text cannot, since the target decides.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor

from outrider.drafters.head_layers import Attention, Block, Head, HeadConfig, Memory
from outrider.kernels.triton import available


def fuse(head: Head, device: torch.device) -> bool:
    """Fuse a head that drafts on this device -> whether that was done."""
    dtype = next(head.parameters()).dtype
    if not available.run_on(device) or dtype == torch.float64:
        return False
    if not available.proven(f"heads in {dtype}", device, lambda: _try(device, dtype)):
        return False
    _set(head, device)
    return True


def _set(head: Head, device: torch.device) -> None:
    head.read = MethodType(_read, head)  # type: ignore[method-assign]
    head.read_token = MethodType(_read_token, head)  # type: ignore[method-assign]
    if len(head.layer_norms) == 2:
        head.seen = MethodType(_seen, head)  # type: ignore[method-assign]
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
            module.store = MethodType(_store, module)  # type: ignore[method-assign]
            module.note = MethodType(_note, module)  # type: ignore[method-assign]
            module.forward = MethodType(_attention, module)  # type: ignore[method-assign]


@torch.no_grad()
def _try(device: torch.device, dtype: torch.dtype) -> bool:
    """Three guesses of a small head, with and without."""
    found = []
    for fused in (False, True):
        drawn = torch.Generator().manual_seed(0)
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers are the caller's
            head = Head(HeadConfig("feature", 64, 96, 1, layers=(1, 2, -1), heads=(4, 2), window=40))
        for weight in head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=drawn) / weight.shape[-1] ** 0.5)
        head = head.to(device, dtype)
        assert head.attention is not None
        if fused:
            _set(head, device)
        keys, values = torch.randn((2, 2, 2, 128, 16), generator=drawn).to(device, dtype)
        states, table = (torch.randn(s, generator=drawn).to(device, dtype) for s in ((2, 1, 3, 64), (9, 64)))
        tokens = torch.tensor([[7], [1]], device=device)
        place = torch.tensor([[3], [90]], device=device)
        slots = torch.arange(128, device=device)
        visible = (slots <= place) & (slots > place - 40)
        memory = Memory(keys, values, visible[:, None, None, None])
        x = head.read(head.seen(states), table[tokens])
        head.attention.store(x, place, (keys, values))
        x = head.think(x, place, memory)
        for _ in range(2):
            x, place = head.read_token(x, table, tokens), place + 1
            head.attention.note(x, place, memory)
            x = head.think(x, place, memory)
        found.append(x)
    slack = 2e-2 if dtype == torch.float32 else 0.1  # products of float32 may be rounded to fewer bits
    return torch.allclose(found[0], found[1], atol=slack, rtol=slack)


def likeliest(logits: Tensor, tokens: Tensor) -> Tensor:
    """Of a head that is fused: the token [B] with the highest of logits [B, N], which are of ``tokens`` [N]."""
    from outrider.kernels.triton.head import likeliest as chosen

    return chosen(logits, tokens)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Of a head that is fused: its output layer."""
    from outrider.kernels.triton import product as few

    return few.product(x, weight)


def _read(self: Any, state: Tensor, token: Tensor, tokens: Tensor | None = None) -> Tensor:
    from outrider.kernels.triton.product import join

    gains = (self.state_norm.weight, self.token_norm.weight)
    return join((state, token), gains, self.state_norm.eps, self.join.weight, state, tokens)


def _read_token(self: Any, state: Tensor, embedding: Tensor, tokens: Tensor) -> Tensor:
    return _read(self, state, embedding, tokens)


def _seen(self: Any, states: Tensor) -> Tensor:
    from outrider.kernels.triton.product import join

    norms = self.layer_norms
    gains = (norms[0].weight, norms[1].weight)
    return join((states[..., 0, :], states[..., 1, :]), gains, norms[0].eps, self.fuse.weight, states[..., 2, :])


def _block(self: Any, x: Tensor) -> Tensor:
    from outrider.kernels.triton.product import product

    y = product(x, self.outrider_joined, norm=(self.norm.weight, self.norm.eps), gate=True)
    return product(y, self.down.weight, plus=x)


def _store(
    self: Any, x: Tensor, positions: Tensor, buffers: tuple[Tensor, Tensor], rows: Tensor | None = None
) -> Tensor:
    from outrider.kernels.triton.head import turn_and_store
    from outrider.kernels.triton.product import product

    qkv = product(x, self.outrider_joined, norm=(self.norm.weight, self.norm.eps))
    return turn_and_store(qkv, self.outrider_speed, positions, buffers, rows)


def _note(self: Any, x: Tensor, positions: Tensor, memory: Memory) -> None:
    memory.guesses += 1  # keys are made with the queries, which come from the same input


def _attention(self: Any, x: Tensor, positions: Tensor, memory: Memory) -> Tensor:
    """Of one place in each row. Its keys are written where the text's would be: over them, if the guess is right."""
    from outrider.kernels.triton.head import look_back
    from outrider.kernels.triton.product import product

    query = self.store(x, positions, (memory.keys, memory.values))
    found = look_back(query, (memory.keys, memory.values), memory.guesses, positions, self.outrider_window)
    return product(found, self.out.weight, plus=x)
