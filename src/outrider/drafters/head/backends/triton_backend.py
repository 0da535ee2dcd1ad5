"""A trained head on a GPU with Triton kernels: a dozen launches a layer become two; most of a guess is launches there.

Same mathematics as ``layers.py``, other rounding in places: guesses may differ, and text cannot, since the target
decides. Training runs the classes of ``layers.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.embedding_table import EmbeddingTable
from outrider.drafters.head.backends.torch_weights import TorchWeights
from outrider.drafters.head.config import HeadConfig
from outrider.drafters.head.layers import Attention, Block, Head, KeysValues, Memory, rotary_speeds
from outrider.kernels.triton import available


def refusal(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why these kernels are not used there; None where they are. The first time on a device they are tried out."""
    if not available.run_on(device):
        return f"Triton kernels do not run on {device.type} here"
    if dtype == torch.float64:
        return "the Triton kernels have no float64"
    if not available.proven(f"heads in {dtype}", device, lambda: agrees(device, dtype)):
        return f"the Triton kernels failed their trial on {device}"
    return None


class TritonWeights(TorchWeights):
    """A head's modules with fused kernels, which read plain weights: nothing is packed."""

    name = "triton"

    def logits(self, state: Tensor) -> Tensor:
        from outrider.kernels.triton.product import product

        return product(state, self.rows)

    def likeliest(self, logits: Tensor) -> Tensor:
        from outrider.kernels.triton.head import likeliest

        return likeliest(logits, self.output.tokens)

    def likeliest_few(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        from outrider.kernels.triton.head import likeliest_few

        return likeliest_few(logits, self.output.tokens, count)

    def _modules(self, head: Head) -> Head:
        return FusedHead.of(super()._modules(head))

    def _pack(self) -> None:
        pass


class FusedBlock(Block):
    """The norm, gate and up projection are one kernel, the down projection and the sum another."""

    def prepare(self) -> None:
        self.gate_up = torch.cat([self.gate.weight, self.up.weight])

    def forward(self, x: Tensor) -> Tensor:
        from outrider.kernels.triton.product import product

        y = product(x, self.gate_up, norm=(self.norm.weight, self.config.norm_eps), gate=True)
        return product(y, self.down.weight, plus=x)


class FusedMemory(Memory):
    """Keys and values of guesses stand behind the text, where the text's will be, or those of branches apart."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__(keys, values, None)  # the kernels mask by position
        self.guesses = 0  # that stand behind the text
        self.apart: KeysValues | None = None  # [1, Hk, S, D] each: of guesses on branches of the only row
        self.chains: Tensor | None = None  # [K, l]: which of those lead to each branch, the newest last

    def branch(self, parents: Tensor, room: int) -> None:
        if self.apart is None or self.chains is None:
            shape = (1, self.keys.shape[1], room, self.keys.shape[3])
            self.apart = self.keys.new_empty(shape), self.values.new_empty(shape)
            self.chains = parents.new_empty((len(parents), 0))
        else:
            self.chains = self.chains.index_select(0, parents)


class FusedAttention(Attention):
    """Queries, keys and values are one product; rotation and storing, attention, and output are a kernel each.

    A guess's keys are written where the text's would be: over them, if the guess is right. Those of branches are not.
    """

    def prepare(self) -> None:
        self.qkv = torch.cat([layer.weight for layer in (self.query, self.key, self.value)])
        self.speeds = rotary_speeds(self.config, self.qkv.device)

    def store(self, x: Tensor, positions: Tensor, cache: KeysValues, rows: Tensor | None = None) -> None:
        self._queries(x, positions, cache, rows)

    def memory(self, cache: KeysValues, newest: Tensor, slots: Tensor) -> Memory:
        return FusedMemory(*cache)

    def note(self, x: Tensor, positions: Tensor, memory: Memory) -> None:
        assert isinstance(memory, FusedMemory)
        memory.guesses += 1  # keys are made with the queries, which come from the same input

    def forward(self, x: Tensor, positions: Tensor, memory: Memory) -> Tensor:
        """Of one position in each row, or of all branches of the only row."""
        from outrider.kernels.triton.head import look_back
        from outrider.kernels.triton.product import product

        assert isinstance(memory, FusedMemory)
        cache = memory.keys, memory.values
        if memory.apart is not None and memory.chains is not None:
            found = self._on_branches(x, positions, memory)
        else:
            query = self._queries(x, positions, cache, None)
            found = look_back(query, cache, memory.guesses, positions, self.config.window)
        return product(found, self.out.weight, plus=x)

    def _on_branches(self, x: Tensor, positions: Tensor, memory: FusedMemory) -> Tensor:
        from outrider.kernels.triton.head import look_back_on_branches

        assert memory.apart is not None and memory.chains is not None
        count, before = memory.chains.shape
        places = torch.arange(before * count, (before + 1) * count, device=x.device)
        query = self._queries(x, positions, memory.apart, None, places[None])
        memory.chains = torch.cat([memory.chains, places[:, None]], 1)
        text = memory.keys, memory.values
        return look_back_on_branches(query, text, memory.apart, memory.chains, positions, self.config.window)

    def _queries(
        self, x: Tensor, positions: Tensor, cache: KeysValues, rows: Tensor | None, places: Tensor | None = None
    ) -> Tensor:
        """Queries of these inputs; their keys and values go into the cache, to ``places`` if not their positions."""
        from outrider.kernels.triton.head import turn_and_store
        from outrider.kernels.triton.product import product

        qkv = product(x, self.qkv, norm=(self.norm.weight, self.config.norm_eps))
        return turn_and_store(qkv, self.speeds, positions, cache, rows, places)


class FusedHead(Head):
    """A head whose norms, products and sums are fused."""

    block_type = FusedBlock
    attention_type = FusedAttention

    @staticmethod
    def of(head: Head) -> FusedHead:
        """With the weights of a head, where they are."""
        with torch.device("meta"):  # shapes alone
            fused = FusedHead(head.config)
        fused.load_state_dict(head.state_dict(), assign=True)
        for module in fused.requires_grad_(False).eval().modules():
            if isinstance(module, FusedBlock | FusedAttention):
                module.prepare()
        return fused

    def seen(self, states: Tensor) -> Tensor:
        from outrider.kernels.triton.product import join

        if self.fuse is None or len(self.layer_norms) != 2:  # the kernel joins two inputs
            return super().seen(states)
        gains = self.layer_norms[0].weight, self.layer_norms[1].weight
        both = states[..., 0, :], states[..., 1, :]
        return join(both, gains, self.config.norm_eps, self.fuse.weight, states[..., 2, :])  # type: ignore[arg-type]

    def read(self, state: Tensor, token: Tensor) -> Tensor:
        return self._join(state, token, None)

    def read_token(self, state: Tensor, embedding: EmbeddingTable, tokens: Tensor) -> Tensor:
        assert isinstance(embedding, Tensor)  # tables in other layouts are a CPU engine's
        return self._join(state, embedding, tokens)

    def _join(self, state: Tensor, token: Tensor, tokens: Tensor | None) -> Tensor:
        from outrider.kernels.triton.product import join

        gains = self.state_norm.weight, self.token_norm.weight
        return join((state, token), gains, self.config.norm_eps, self.join.weight, state, tokens)


@torch.no_grad()
def agrees(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether three guesses of a small head are the same with and without the kernels, up to rounding."""
    found = []
    for fused in (False, True):
        drawn = torch.Generator().manual_seed(0)
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers are the caller's
            head = Head(HeadConfig("feature", 64, 96, 1, layers=(1, 2, -1), heads=(4, 2), window=40))
        for weight in head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=drawn) / weight.shape[-1] ** 0.5)
        head = head.to(device, dtype)
        found.append(_guesses(FusedHead.of(head) if fused else head, drawn, device, dtype))
    slack = 2e-2 if dtype == torch.float32 else 0.1  # products of float32 may be rounded to fewer bits
    return torch.allclose(found[0], found[1], atol=slack, rtol=slack)


def _guesses(head: Head, drawn: torch.Generator, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The state behind three guesses, of two rows."""
    assert head.attention is not None
    keys, values = torch.randn((2, 2, 2, 128, 16), generator=drawn).to(device, dtype)
    states, table = (torch.randn(s, generator=drawn).to(device, dtype) for s in ((2, 1, 3, 64), (9, 64)))
    tokens = torch.tensor([[7], [1]], device=device)
    position = torch.tensor([[3], [90]], device=device)
    memory = head.attention.memory((keys, values), position, torch.arange(128, device=device))
    x = head.read(head.seen(states), table[tokens])
    head.attention.store(x, position, (keys, values))
    x = head.think(x, position, memory)
    for _ in range(2):
        x, position = head.read_token(x, table, tokens), position + 1
        head.attention.note(x, position, memory)
        x = head.think(x, position, memory)
    return x
