"""The layers of a trained head, described once: sizes, constants, and every projection by its name.

Training builds its modules from this record, and every backend reads its sizes here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from outrider.errors import require

Shape2D = tuple[int, int]
"""(outputs, inputs) of a projection, as its weight is stored."""


@dataclass(frozen=True)
class HeadConfig:
    """The shape of a head, and the target it was trained for. Its fields are saved beside the weights.

    A feature head guesses token by token: ``join`` makes one state of the target's state and the next token's
    embedding, then follow an optional attention layer and gated feed-forward blocks. A block head has the same layers
    and runs them once for all guesses, side by side: a learnt mask stands for each token that is not known yet, and a
    small corrector tells every guess which token was guessed before it. A blockwise head has no attention, and each
    of its blocks makes one guess from the same joined state.
    """

    kind: str  # feature, block or blockwise
    hidden_size: int
    inner_size: int
    blocks: int  # feature: stacked blocks per guess; blockwise: k, the guesses per run
    layers: tuple[int, ...] = (-1,)  # feature: of the target, whose outputs it reads; the last is -1
    heads: tuple[int, int] = (0, 0)  # feature: attention heads for queries and for keys; none: no attention
    window: int = 512  # feature: tokens back that attention sees
    masks: int = 0  # block: tokens not known yet that it has a mask for, so guesses at most, less one
    rank: int = 0  # block: numbers in the corrector's state
    fingerprint: str = ""  # of the target, see training/teacher.py
    gamma: int = 4  # guesses it is best asked for

    def __post_init__(self) -> None:
        queries, keys = self.heads
        require(
            queries == 0 or (keys > 0 and queries % keys == 0 and self.hidden_size % queries == 0),
            f"{queries} heads of queries and {keys} of keys do not divide a size of {self.hidden_size}",
        )

        require(
            (self.kind == "block") == (self.rank > 0) and self.masks >= 0,
            f"a head of kind {self.kind!r} cannot have {self.masks} masks and a corrector of {self.rank} numbers",
        )

    norm_eps: ClassVar[float] = 1e-5
    rotary_base: ClassVar[float] = 10_000.0

    @property
    def blockwise(self) -> bool:
        return self.kind == "blockwise"

    @property
    def parallel(self) -> bool:
        """Whether its layers run once for all guesses, and only a corrector from guess to guess."""
        return self.kind == "block"

    @property
    def recurrent(self) -> bool:
        """Whether its layers run once per guess, on what they gave for the guess before."""
        return self.kind == "feature"

    @property
    def attends(self) -> bool:
        """Whether there is an attention layer, and so a KV cache."""
        return self.heads[0] > 0

    @property
    def head_size(self) -> int:
        """Numbers in an attention head's query, key or value; 0 without attention."""
        return self.hidden_size // self.heads[0] if self.attends else 0

    @property
    def lower_layers(self) -> int:
        """Layers of the target it reads besides the last: ``fuse`` adds what they give to the last one's state."""
        return len(self.layers) - 1

    @property
    def join(self) -> Shape2D:
        """From a state and a token's embedding, each normed, side by side."""
        return self.hidden_size, 2 * self.hidden_size

    @property
    def fuse(self) -> Shape2D | None:
        """From the lower layers' outputs, each normed, side by side; None where only the last layer is read."""
        return (self.hidden_size, self.lower_layers * self.hidden_size) if self.lower_layers else None

    @property
    def block(self) -> Mapping[str, Shape2D]:
        """Of each feed-forward block: x + down(silu(gate(norm x)) * up(norm x))."""
        size, inner = self.hidden_size, self.inner_size
        return {"gate": (inner, size), "up": (inner, size), "down": (size, inner)}

    @property
    def attention(self) -> Mapping[str, Shape2D]:
        """Of the attention layer, if there is one: x + out(attention over rotated queries and keys of norm x)."""
        if not self.attends:
            return {}
        size, (queries, keys) = self.hidden_size, (heads * self.head_size for heads in self.heads)
        return {"query": (queries, size), "key": (keys, size), "value": (keys, size), "out": (size, queries)}

    @property
    def corrector(self) -> Mapping[str, Shape2D]:
        """Of a block head: z' = silu(state(norm h) + token(norm e) + past(z)), and h + out(z')."""
        if not self.parallel:
            return {}
        size, rank = self.hidden_size, self.rank
        return {"state": (rank, size), "token": (rank, size), "past": (rank, rank), "out": (size, rank)}

    @property
    def projections(self) -> Mapping[str, Shape2D]:
        """Every matrix, by the name it is saved under."""
        found = {"join": self.join} | ({"fuse": self.fuse} if self.fuse else {})
        found |= {f"attention.{name}": shape for name, shape in self.attention.items()}
        found |= {f"corrector.{name}": shape for name, shape in self.corrector.items()}
        return found | {f"blocks.{i}.{name}": shape for i in range(self.blocks) for name, shape in self.block.items()}

    def weights_read(self, tokens: int) -> int:
        """Numbers a guess multiplies with, given how many tokens it has logits for. ``fuse`` is no part of a guess.

        Of a block head, whose layers run once for ``gamma`` guesses, that share of them.
        """
        matrices = {name: outputs * inputs for name, (outputs, inputs) in self.projections.items() if name != "fuse"}
        every = tokens * self.hidden_size
        every += sum(read for name, read in matrices.items() if name.startswith("corrector."))
        layers = sum(read for name, read in matrices.items() if not name.startswith("corrector."))
        return every + (layers // self.gamma if self.parallel else layers)
