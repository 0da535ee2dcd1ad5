"""A feature head for a row on a CPU, compiled by numba (``kernels/numba/head.py``): a whole draft is one call.

Weights have eight bits: rounding changes which tokens are guessed, never the text. In four bits
guesses took a tenth less time, and runs gave 2.2 % fewer tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from outrider.core.protocols import Shape
from outrider.drafters.head.backend import DraftRequest, HeadBackend, OutputRows, Texts, WholeDraft
from outrider.drafters.head.backends.one_row import Array, OneRowBackend
from outrider.drafters.head.backends.row_by_row import RowByRowBackend
from outrider.drafters.head.layers import Attention, Block, Head

if TYPE_CHECKING:
    from outrider.kernels.numba.head_records import Reading

_NO_KEYS, _NO_COUNTER = np.empty(0, np.int64), np.empty(0, np.int32)


class NumbaWeights:
    """The matrices of a head, and its rows of the output layer, packed."""

    def __init__(self, head: Head, output: OutputRows) -> None:
        from outrider.kernels.numba import packed_products
        from outrider.kernels.numba.code_cache import compiling
        from outrider.kernels.numba.head_records import HeadMatrices
        from outrider.kernels.numba.thread_team import ThreadTeam

        self._kept: list[np.ndarray[Any, Any]] = []  # what the addresses point into
        self.config, self.output = head.config, output
        config, blocks, attention = head.config, head.block_list, head.attention
        norms = [head.state_norm, head.token_norm, head.state_norm if attention is None else attention.norm]
        self.team = ThreadTeam(torch.get_num_threads())
        self.matrices = HeadMatrices(
            product=packed_products.address(), size=config.hidden_size, inner=_whole(config.inner_size),
            heads=config.heads[0], shared=config.heads[1], depth=config.head_size, padded=_whole(config.head_size),
            tokens=len(output), epsilon=config.norm_eps,
            fuse=0 if head.fuse is None else self._keep(head.fuse.weight), join=self._keep(head.join.weight),
            attention=np.array([0, 0] if attention is None else self._attention(attention), np.int64),
            blocks=np.array(
                [[self._gates(block), self._keep(block.down.weight)] for block in blocks], np.int64
            ).reshape(-1, 2),
            output=self._keep(output),
            layer_norms=_stacked(head.layer_norms, config.hidden_size),
            norms=_stacked([*norms, *(block.norm for block in blocks)], config.hidden_size),
        )  # fmt: skip
        with compiling("draft", "drafts", seconds=35):
            self._compile()

    def start(self, rows: int, shape: Shape, several: Callable[[], HeadBackend]) -> HeadBackend:
        one = NumbaBackend(self, shape.capacity, several)
        return one if rows == 1 else RowByRowBackend([one, *(one.twin() for _ in range(rows - 1))], several)

    def _compile(self) -> None:
        """Guess once: what is compiled now does not delay the first draft."""
        from outrider.kernels.numba import race, top_p, verdicts

        def none() -> HeadBackend:
            raise AssertionError("of one row")

        backend = NumbaBackend(self, 2, none)
        size = self.config.hidden_size
        backend.read(torch.zeros((1, len(self.config.layers), size)), torch.zeros((1, size)), 0)
        backend.guess(None)
        logits, some = np.zeros(2, np.float32), np.ones(2, np.float32)  # and what draws the target's tokens
        race.make_ready()
        known, q = np.zeros(1, np.int64), some[None, :1].copy()  # and what judges the guesses
        verdicts.subtract(some.copy(), known, q[0])
        verdicts.shared(some, known, q[0])
        p, keys = np.ones((2, 2), np.float32), np.zeros(2, np.int64)
        verdicts.judge(p, known, np.ones(1, np.bool_), q, known, keys[:1], keys, np.zeros(2, np.int32))
        top_p.cut(logits, some, 0.0, 0.5, 1.0, 1.0, some.copy())

    def _keep(self, weight: Tensor | OutputRows) -> int:
        from outrider.models.engine import quantised

        self._kept.append(quantised.matrix_of(weight, quantised.in_eight_bits))
        return int(self._kept[-1].ctypes.data)

    def _attention(self, attention: Attention) -> list[int]:
        """Heads of queries, keys and values one behind the other, each filled up to whole panels; and the output."""
        size = self.config.head_size
        joined = torch.cat([layer.weight for layer in (attention.query, attention.key, attention.value)])
        split = joined.view(-1, size, joined.shape[1])
        return [
            self._keep(torch.nn.functional.pad(split, (0, 0, 0, _whole(size) - size)).flatten(0, 1)),
            self._keep(attention.out.weight),
        ]

    def _gates(self, block: Block) -> int:
        """A panel of the gate, then the same panel of the up projection, and so on."""
        from outrider.kernels.numba.tiles import PANEL

        spare = _whole(self.config.inner_size) - self.config.inner_size
        parts = [torch.nn.functional.pad(layer.weight, (0, 0, 0, spare)) for layer in (block.gate, block.up)]
        return self._keep(torch.stack([part.view(-1, PANEL, part.shape[1]) for part in parts], 1).flatten(0, 2))


def _whole(columns: int) -> int:
    """Columns of whole panels that hold so many."""
    from outrider.kernels.numba.tiles import PANEL

    return columns + -columns % PANEL


def _stacked(norms: Iterable[Any], size: int) -> np.ndarray[Any, Any]:
    rows = [norm.weight.detach().float() for norm in norms]
    return (torch.stack(rows) if rows else torch.empty((0, size))).numpy()


def table_of(embedding: object) -> Any:
    """A target's embeddings as compiled code reads them; None where it cannot."""
    from outrider.kernels.numba.rows import Table
    from outrider.models.engine.panel_rows import TableRows

    if isinstance(embedding, TableRows):
        return embedding.table
    if not isinstance(embedding, Tensor) or embedding.dtype != torch.float32 or not embedding.is_contiguous():
        return None
    return Table(embedding.data_ptr(), embedding.shape[1])


@dataclass(frozen=True)
class Draw:
    """How tokens are drawn, where not the likeliest is taken."""

    temperature: float
    keys: Tensor  # [G] int64: of the noise at every guess


class NumbaBackend(OneRowBackend):
    """Runs a feature head for one row: one compiled call on all threads reads new text and makes all guesses."""

    name = "numba"

    def __init__(self, weights: NumbaWeights, capacity: int, several: Callable[[], HeadBackend]) -> None:
        from outrider.kernels.numba.rows import Table

        super().__init__(weights.config, weights.output, capacity, several)
        self.weights = weights
        matrices = weights.matrices
        self._no_table = Table(0, matrices.size)  # where a guess is not read again: nothing can be looked up in it
        self._between = np.empty((1, 2 * matrices.heads * matrices.depth + matrices.inner), np.float32)
        self._items = max(1, min(64 * weights.team.threads, -(-matrices.tokens // 16)))  # of the output layer

    def fork(self, texts: Texts, rows: Tensor) -> HeadBackend:
        """Row by row: what was read need not be read anew, and by another backend."""
        return RowByRowBackend([self], self._several).fork(texts, rows)

    def read(self, states: Tensor, tokens: Tensor, start: int) -> None:
        given, after = states.float().contiguous().numpy(), tokens.float().contiguous().numpy()
        self._unread: tuple[int, Array, Array] = start, given, after  # until the guess, in one call
        self._stands_at(start + len(tokens) - 1)

    def guess(self, token: Tensor | None) -> Tensor:
        logits = torch.empty((1, self.weights.matrices.tokens))
        self._run(token, (0.0,), logits)
        return logits

    def draft(self, texts: Texts, request: DraftRequest) -> WholeDraft | None:
        own = request.sampling.of_row(self.row)
        if own.adjusts or (own.filters and not own.greedy) or not bool(texts.context.active[self.row]):
            return None
        table = table_of(texts.embedding)
        if table is None:
            return None
        draw = None
        if not own.greedy:
            draw = Draw(own.temperature, request.noise.keys("token", request.at[:, : request.gamma])[self.row])
        ends_behind = -1 if request.ends_behind is None else int(request.ends_behind[self.row])
        tokens, q = self.guesses(table, request.floors(self.row), draw, ends_behind, holding=texts.embedding)
        return WholeDraft(tokens[None], None if q is None else q[None], torch.ones_like(tokens[None], dtype=torch.bool))

    def guesses(
        self,
        table: Any,
        floors: Sequence[float],
        draw: Draw | None = None,
        ends_behind: int = -1,
        holding: object = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens [G], each read behind the last; q [G, N], if drawn.

        ``table`` is what ``table_of`` gives; ``holding`` keeps its memory alive: a thread that comes late may still
        read it. No guess is made if those before it are all right with less than the chance in ``floors``, and none
        behind a first one that is the token ``ends_behind``.
        """
        return self._run(None, floors, None, table, draw, ends_behind, holding)

    def _run(
        self, token: Tensor | None, floors: Sequence[float], logits: Tensor | None,
        table: Any = None, draw: Draw | None = None, ends_behind: int = -1, holding: object = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        from outrider.kernels.numba import head, thread_team
        from outrider.kernels.numba.head_records import Drawing, KVCache, Scratch

        matrices, most, threads = self.weights.matrices, len(floors), self.weights.team.threads
        logits = torch.empty((1, matrices.tokens)) if logits is None else logits
        scratch = Scratch(
            np.empty((2, matrices.size), np.float32), self._between, logits.numpy(),
            np.empty((most, self._items, 5)),
            thread_team.zeros(head.READING + (head.GUESSING + 2 * len(matrices.blocks)) * most),
        )  # fmt: skip
        found = torch.empty(most, dtype=torch.int64)
        probs = torch.empty((0 if draw is None else most, matrices.tokens))
        how = Drawing(1.0, _NO_KEYS, _NO_COUNTER, probs.numpy())
        if draw is not None:
            how = Drawing(1 / draw.temperature, draw.keys.numpy(), self.output.counter.numpy(), probs.numpy())
        reading, cache = self._reading(token), KVCache(self.keys, self.values, self.cos, self.sin)
        self._check_room(reading, most)
        made: int = self.weights.team.run(
            head.draft, matrices, cache, reading, how, scratch, table or self._no_table,
            self.output.tokens.numpy(), np.array(floors), ends_behind, self.position, self.oldest, found.numpy(),
            threads, holding=(self, holding),
        )  # fmt: skip
        self.made = self.position + 1 if token is None else self.made
        self.position, self.newest_logits = self.position + made - 1, logits
        self.x = reading.x[-1:] if made == 1 else scratch.states[(made - 1) % 2][None]
        return found[:made], None if draw is None else probs[:made]

    def _check_room(self, reading: Reading, guesses: int) -> None:
        """Compiled code checks no bounds: what it would write behind the KV cache is refused here."""
        if not self.config.attends:
            return
        end, capacity = self.position + guesses, self.keys.shape[1]
        first = reading.start if len(reading.states) else self.position
        if not (first >= 0 and 0 <= self.oldest <= self.position and end <= capacity):
            raise IndexError(
                f"internal error: a draft of {guesses} guesses behind position {self.position} needs positions {first} "
                f"to {end - 1}, and the KV cache of the head has {capacity}; please report it"
            )

    def _reading(self, token: Tensor | None) -> Reading:
        """What is to be read before the next guess: text, or the guess before it."""
        from outrider.kernels.numba.head_records import Reading

        size = self.weights.matrices.size
        nothing, one = np.empty((0, size), np.float32), np.empty((1, size), np.float32)
        if token is not None:  # its own state stands for the target's
            self.position += 1
            given = token.float().contiguous().numpy()
            return Reading(0, np.empty((0, 1, size), np.float32), nothing, nothing, self.x, given, one)
        start, states, after = self._unread
        x = np.empty_like(after)
        return Reading(start, states, after, np.empty_like(after), one, nothing, x)
