"""A feature head that drafts for one row on a CPU, compiled (``kernels/numba/head.py``): a whole draft is one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from outrider.drafters.head_layers import Block, Head
from outrider.runtime import cpu

_NO_KEYS, _NO_COUNTER = np.empty(0, np.int64), np.empty(0, np.int32)


def available() -> bool:
    """Whether there is a numba that works, and a CPU with products that are worth it."""
    return cpu.facts().multiplies_bytes and _compiles()


@cache
def _compiles() -> bool:
    if find_spec("numba") is None:
        return False
    try:
        from outrider.kernels.numba import int8_products  # noqa: F401
    except ImportError:  # beside another numpy than it wants, for one
        return False
    return True


class Picked:
    """Rows of a table, by their numbers [N]. All of them at once would be more memory than the draft itself."""

    def __init__(self, table: Any, rows: Tensor) -> None:
        self._table, self._rows = table, rows
        self.shape = torch.Size((len(rows), table.shape[1]))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, some: slice) -> Tensor:
        return cast(Tensor, self._table[self._rows[some]])


class CompiledWeights:
    """The matrices of a head, and rows of the target's output layer, in eight bits, once for all sessions."""

    def __init__(self, head: Head, output: Tensor | Picked) -> None:
        from outrider.kernels.numba.code_cache import compiling
        from outrider.kernels.numba.head_records import Weights
        from outrider.kernels.numba.thread_team import ThreadTeam

        self._kept: list[np.ndarray[Any, Any]] = []  # what the addresses point into
        config, blocks = head.config, list(cast(Iterable[Block], head.blocks))
        self.size, self.window = config.hidden_size, config.window
        heads, shared = config.heads
        attention = head.attention
        depth = 0 if attention is None else attention.depth
        norms = [head.state_norm, head.token_norm, head.state_norm if attention is None else attention.norm]
        self.team = ThreadTeam(torch.get_num_threads())
        self.numbers = Weights(
            size=config.hidden_size, inner=_whole(config.inner_size),
            heads=heads, shared=shared, depth=depth, padded=_whole(depth), tokens=len(output),
            fuse=0 if head.fuse is None else self._keep(head.fuse.weight), join=self._keep(head.join.weight),
            attention=np.array([0, 0] if attention is None else self._attention(attention), np.int64),
            blocks=np.array(
                [[self._gates(block), self._keep(block.down.weight)] for block in blocks], np.int64
            ).reshape(-1, 2),
            output=self._keep(output),
            layer_norms=_stacked(head.layer_norms, self.size),
            norms=_stacked([*norms, *(block.norm for block in blocks)], self.size),
        )  # fmt: skip
        with compiling("draft", "drafts", seconds=35):
            self._compile(len(config.layers))

    def _compile(self, layers: int) -> None:
        """Guess once: what is compiled now is no part of anybody's first draft."""
        numbers = self.numbers
        memory = torch.zeros((2, numbers.shared, 2, numbers.depth)) if numbers.heads else None
        row = self.row(None if memory is None else (memory[0], memory[1]))
        row.read(torch.zeros((1, layers, self.size)), torch.zeros((1, self.size)), 0)
        row.guess(None)

    def row(self, memory: tuple[Tensor, Tensor] | None) -> CompiledRow:
        return CompiledRow(self, memory)

    def _keep(self, weight: Tensor | Picked) -> int:
        from outrider.kernels.numba.int8_products import packed

        self._kept.append(packed(weight))
        return int(self._kept[-1].ctypes.data)

    def _attention(self, attention: Any) -> list[int]:
        """Heads of queries, keys and values one behind the other, each filled up to whole panels; and the output."""
        joined = torch.cat([layer.weight for layer in (attention.query, attention.key, attention.value)])
        split = joined.view(-1, attention.depth, joined.shape[1])
        spare = _whole(attention.depth) - attention.depth
        return [
            self._keep(torch.nn.functional.pad(split, (0, 0, 0, spare)).flatten(0, 1)),
            self._keep(attention.out.weight),
        ]

    def _gates(self, block: Block) -> int:
        """A panel of the gate, the same panel of what it gates."""
        from outrider.kernels.numba.tiles import PANEL

        spare = _whole(block.gate.weight.shape[0]) - block.gate.weight.shape[0]
        parts = [torch.nn.functional.pad(layer.weight, (0, 0, 0, spare)) for layer in (block.gate, block.up)]
        return self._keep(torch.stack([part.view(-1, PANEL, part.shape[1]) for part in parts], 1).flatten(0, 2))


def _whole(columns: int) -> int:
    from outrider.kernels.numba.tiles import PANEL

    return columns + -columns % PANEL


def _stacked(norms: Iterable[Any], size: int) -> np.ndarray[Any, Any]:
    rows = [norm.weight.detach().float() for norm in norms]
    return (torch.stack(rows) if rows else torch.empty((0, size))).numpy()


def table_of(embedding: Any) -> Any:
    """A target's embeddings as compiled code reads them; None where it cannot."""
    from outrider.kernels.numba.rows import Table

    if not isinstance(embedding, Tensor):
        return getattr(embedding, "table", None)  # see models/engine/panel_rows.py
    if embedding.dtype != torch.float32 or not embedding.is_contiguous():
        return None
    return Table(embedding.data_ptr(), embedding.shape[1])


@dataclass(frozen=True)
class Draw:
    """How tokens are drawn, where not the likeliest is taken."""

    temperature: float
    keys: Tensor  # [G] int64: of the noise at every guess
    counter: Tensor  # [N]: what races know the tokens by


class CompiledRow:
    """What the head has read of one text. Keys and values stand by position and are written over in time."""

    def __init__(self, weights: CompiledWeights, memory: tuple[Tensor, Tensor] | None) -> None:
        """``memory``: where keys and values are kept, [Hk, C, D] each; None for a head without attention."""
        from outrider.kernels.numba.head_records import Text

        self.weights = weights
        self.reads: object = None  # whose embeddings drafts look up: a thread that comes late may still do so
        self.made = 0  # the text before this position has been read
        keys, values = memory or (torch.empty((1, 0, 2)), torch.empty((1, 0, 2)))
        half = keys.shape[2] // 2
        angle = torch.arange(keys.shape[1])[:, None] * 10_000.0 ** (-torch.arange(half) / half)
        self._text = Text(keys.numpy(), values.numpy(), angle.cos().numpy(), angle.sin().numpy())
        numbers = weights.numbers
        self._zeros = torch.zeros((1, numbers.size))
        self._blank = table_of(self._zeros)  # where a guess is not read again
        self._between = np.empty((1, 2 * numbers.heads * numbers.depth + numbers.inner), np.float32)
        self._items = max(1, min(64 * weights.team.threads, -(-numbers.tokens // 16)))  # of the output layer

    def read(self, states: Tensor, tokens: Tensor, start: int) -> None:
        """Read the text from position start on: what the target's layers gave there [T, L, size], and the embeddings
        of the tokens that followed [T, size]. The next guess comes after the last of them."""
        given, after = states.float().contiguous().numpy(), tokens.float().contiguous().numpy()
        self._unread = start, given, after  # until the guess, in one go
        self.place = start + len(tokens) - 1
        self.oldest = max(0, self.place + 1 - self.weights.window)  # seen by all guesses from here

    def guess(self, token: Tensor | None) -> Tensor:
        """Logits of the next token [1, N]; after the first guess, behind one whose embedding is token [1, size]."""
        logits = torch.empty((1, self.weights.numbers.tokens))
        self._run(token, (0.0,), logits)
        return logits

    def draft(
        self, embedding: Any, tokens: Tensor, floors: Sequence[float], draw: Draw | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Guesses [G], each read behind the last, of ``tokens`` [N], whose logits these are; q [G, N], if drawn.

        ``embedding`` is what ``table_of`` gives. No guess is made whose forerunners are right with less than the
        chance that ``floors`` has for it.
        """
        return self._run(None, floors, None, embedding, tokens, draw)

    def _run(
        self, token: Tensor | None, floors: Sequence[float], logits: Tensor | None,
        embedding: Any = None, tokens: Tensor | None = None, draw: Draw | None = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        from outrider.kernels.numba import head, thread_team
        from outrider.kernels.numba.head_records import Drawing, Room

        numbers, most, threads = self.weights.numbers, len(floors), self.weights.team.threads
        logits = torch.empty((1, numbers.tokens)) if logits is None else logits
        tokens = torch.zeros(numbers.tokens, dtype=torch.int64) if tokens is None else tokens
        room = Room(
            np.empty((2, numbers.size), np.float32), self._between, logits.numpy(),
            np.empty((most, self._items, 5)),
            thread_team.zeros(head.READING + (head.GUESSING + 2 * len(numbers.blocks)) * most),
        )  # fmt: skip
        found = torch.empty(most, dtype=torch.int64)
        probs = torch.empty((0 if draw is None else most, numbers.tokens))
        how = Drawing(1.0, _NO_KEYS, _NO_COUNTER, probs.numpy())
        if draw is not None:
            how = Drawing(1 / draw.temperature, draw.keys.numpy(), draw.counter.numpy(), probs.numpy())
        reading = self._reading(token)
        made: int = self.weights.team.run(
            head.draft, numbers, self._text, reading, how, room, embedding or self._blank, tokens.numpy(),
            np.array(floors), self.place, self.oldest, found.numpy(), threads, holding=(self, self.reads),
        )  # fmt: skip
        self.made = self.place + 1 if token is None else self.made
        self.place += made - 1
        self.x = reading.x[-1:] if made == 1 else room.states[(made - 1) % 2][None]
        return found[:made], None if draw is None else probs[:made]

    def _reading(self, token: Tensor | None) -> Any:
        """What is to be read before the next guess: text, or the guess before it."""
        from outrider.kernels.numba.head_records import Reading

        size = self.weights.numbers.size
        nothing, one = np.empty((0, size), np.float32), np.empty((1, size), np.float32)
        if token is not None:  # its own state stands for the target's
            self.place += 1
            given = token.float().contiguous().numpy()
            return Reading(0, np.empty((0, 1, size), np.float32), nothing, nothing, self.x, given, one)
        start, states, after = self._unread
        x = np.empty_like(after)
        return Reading(start, states, after, np.empty_like(after), one, nothing, x)

    def forget_after(self, length: int) -> None:
        """The text has this many tokens: what follows the last is unknown again."""
        self.made = min(self.made, max(0, length - 1))
