"""Key/value buffers of fixed capacity as a transformers model wants them, with a write position per row.

The only file that touches transformers' cache classes. A run writes its keys and values at absolute
positions and attends over the whole buffer; the mask hides what is stale, so a rollback is nothing but a
smaller length, and every shape stays constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, EncoderDecoderCache

from outrider.models.kv_buffers import Buffers, LayerShape
from outrider.models.source_buffers import SourceBuffers


class RaggedLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's buffers [B, H, C, D], written at ``positions`` [B, w] which the cache shares."""

    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, place: _Place) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.place = place
        self.is_initialized = True

    @property
    def is_compileable(self) -> bool:
        """Whether shapes are constant. Where they are not, transformers may leave out a mask that hides nothing."""
        return self.place.filled is None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Buffers exist from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        rows, positions = self.place.rows, self.place.positions
        if positions.shape[0] == 1:  # one row: the same by a quicker way
            self.keys.index_copy_(2, positions[0], key_states.to(self.keys.dtype))
            self.values.index_copy_(2, positions[0], value_states.to(self.values.dtype))
        else:  # [B, H, C, D] indexed by (row, :, position) takes [B, w, H, D].
            self.keys[rows, :, positions] = key_states.transpose(1, 2).to(self.keys.dtype)
            self.values[rows, :, positions] = value_states.transpose(1, 2).to(self.values.dtype)
        filled = self.place.filled
        return (self.keys, self.values) if filled is None else (self.keys[:, :, :filled], self.values[:, :, :filled])

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.place.filled or self.keys.shape[2], 0

    def get_seq_length(self) -> Any:
        """A column of start positions [B, 1]: models that count positions from here get them per row."""
        return self.place.positions[:, :1]

    def get_max_length(self) -> int:
        return int(self.keys.shape[2])


class _Place:
    """Where the current run writes, shared by all layers of a cache."""

    def __init__(self) -> None:
        self.rows = torch.zeros((1, 1), dtype=torch.int64)
        self.positions = torch.zeros((1, 1), dtype=torch.int64)
        self.grouped: tuple[Tensor, Tensor] | None = None  # see lean.py
        self.filled: int | None = None  # positions to attend over, the first ones; None: all there are
        self.tree: tuple[Tensor, Tensor] | None = None  # of a tree: positions [1, W] and paths, see ``TreePlaces``


class RaggedCache(Buffers, Cache):  # type: ignore[misc]
    """A transformers cache over ragged rows. ``at`` before each run says where it writes and how much it reads."""

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.place = _Place()
        Cache.__init__(self, layers=[RaggedLayer(k, v, self.place) for k, v in layers])

    def at(
        self, positions: Tensor, filled: int | None = None, tree: tuple[Tensor, Tensor] | None = None
    ) -> RaggedCache:
        self.place.positions, self.place.filled, self.place.tree = positions, filled, tree
        self.place.rows = torch.arange(positions.shape[0], device=positions.device)[:, None]
        return self

    def buffers(self) -> list[tuple[Tensor, Tensor]]:
        return [(layer.keys, layer.values) for layer in self.layers]


class SourceCache(SourceBuffers):
    """Own and cross-attention buffers as transformers takes them."""

    own: RaggedCache
    cross: RaggedCache

    @cached_property
    def joint(self) -> EncoderDecoderCache:
        """Both together. Joining them syncs with the device: once for a session, not in every run."""
        return with_cross_attention(self.own, self.cross)


class _GrowingLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's buffers [B, H, C, D], filled from the front by all rows alike."""

    is_compileable = False
    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity, self.length = capacity, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        def buffer(like: Tensor) -> Tensor:
            return like.new_zeros((like.shape[0], like.shape[1], self.capacity, like.shape[3]))

        self.keys, self.values = buffer(key_states), buffer(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        here = slice(self.length, self.length + key_states.shape[2])
        self.keys[:, :, here], self.values[:, :, here] = key_states, value_states
        self.length = here.stop
        return self.keys[:, :, : here.stop], self.values[:, :, : here.stop]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity


class GrowingCache(Cache):  # type: ignore[misc]
    """A transformers cache for rows of one length, in buffers that are never copied as it grows."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        super().__init__(layers=[])

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        while len(self.layers) <= layer_idx:
            self.layers.append(_GrowingLayer(self.capacity))
        return self.layers[layer_idx].update(key_states, value_states)  # type: ignore[no-any-return]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return int(self.layers[layer_idx].length) if self.layers else 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def select(self, rows: Tensor) -> None:
        for layer in self.layers:
            layer.keys, layer.values = layer.keys[rows], layer.values[rows]


def with_cross_attention(own: RaggedCache, cross: RaggedCache) -> EncoderDecoderCache:
    """Decoder cache plus finished keys and values of the encoder's output."""
    cache = EncoderDecoderCache(own, cross)
    cache.is_updated = dict.fromkeys(range(len(cross.layers)), True)
    return cache


def fresh_dynamic(encoder_decoder: bool) -> Cache:
    """An ordinary growing cache, to look at what a model puts into one."""
    return EncoderDecoderCache(DynamicCache(), DynamicCache()) if encoder_decoder else DynamicCache()


def contents(cache: Cache) -> list[tuple[Tensor, Tensor]]:
    """Keys and values a growing cache holds, layer by layer."""
    return [(layer.keys, layer.values) for layer in cache.layers]


def layer_shapes(cache: Cache) -> list[LayerShape]:
    return [(k.shape[1], k.shape[3], v.shape[3]) for k, v in contents(cache)]
