"""The engine of any transformers causal or encoder-decoder model: its own forward, with rows at their own positions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outrider.core.model_facts import ModelFacts
from outrider.core.protocols import Shape, Source
from outrider.errors import BadOption, ModelError, require
from outrider.kernels import row_products
from outrider.models import masks
from outrider.models.engine_protocol import Result, Wanted
from outrider.models.positions import Positions
from outrider.models.session import no_source
from outrider.models.transformers import families, rotary
from outrider.models.transformers.experts import tokens_alone
from outrider.models.transformers.watch import forward, last_sum, watch_last_layer, watch_output_layer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from outrider.models.kv_buffers import LayerShape
    from outrider.models.transformers.kv_cache import RaggedCache, SourceCache

# transformers is imported where its models are run: importing it takes longer than loading a model for an engine.

_GRANULE = 8
"""Sources that are encoded together have a multiple of so many tokens, padding included."""


class TransformersEngine:
    """Runs a model's layers as they are: transformers' own (eager), or fused or packed ones set on its instances."""

    trims_prefill = False
    prefill_tokens = 1024

    def __init__(self, refer: Callable[[], PreTrainedModel], max_length: int | None = None) -> None:
        """``refer`` gives the model: the engine itself need not keep it alive. ``max_length``: see ``positions.py``."""
        self._refer = refer
        model = self.model
        self.config = model.config.get_text_config(decoder=True)
        self.positions = Positions.of(self.config, max_length)
        reason = families.supported(self.config) or rotary.obstacle(model, self.positions)
        require(reason is None, f"{type(model).__name__} cannot be used: {reason}", ModelError)
        families.adapt(model)
        self.accepts = frozenset(inspect.signature(model.forward).parameters)
        self.windows = families.sliding_windows(self.config)
        self.fused = False  # True: run layer by layer with fused kernels, see fused.py
        self.capacity_granule: int | None = None  # attention reads multiples of so many positions; None: all there are
        self.no_split_k = False  # True: a row of a product does not depend on the rows beside it, see row_products.py
        watch_output_layer(model)
        encoder_decoder = bool(model.config.is_encoder_decoder)
        self._own_shapes, self._cross_shapes, hidden_size = self._probe(encoder_decoder)
        self.facts = ModelFacts(
            self._output_size(),
            model.device,
            self.positions.count,
            model.dtype,
            encoder_decoder=encoder_decoder,
            hidden_size=hidden_size,
            layers=int(self.config.num_hidden_layers),
            longest=self.positions.most,
        )

    @property
    def model(self) -> PreTrainedModel:
        return self._refer()

    @property
    def embedding(self) -> Tensor:
        return self.model.get_input_embeddings().weight  # type: ignore[no-any-return]

    @property
    def unembedding(self) -> Tensor:
        return self.model.get_output_embeddings().weight  # type: ignore[no-any-return]

    def fuse(self) -> bool:
        """Use fused kernels where the family and the device allow; False if they do not."""
        from outrider.models.transformers import fused

        self.fused = self.fused or fused.fuse(self.model, self.facts.device)
        return self.fused

    @property
    def bytes_of_row(self) -> int:
        """Of the KV cache, for a text of 256 tokens."""
        return 256 * self.facts.dtype.itemsize * sum(heads * (k + v) for heads, k, v in self._own_shapes)

    def allocate(self, rows: int, shape: Shape) -> RaggedCache | SourceCache:
        from outrider.models.transformers.kv_cache import RaggedCache, SourceCache

        kind = self.facts.dtype, self.facts.device
        own = RaggedCache.allocate(self._own_shapes, rows, shape.capacity, *kind)
        if not self.facts.encoder_decoder:
            return own
        return SourceCache.empty(own, RaggedCache.allocate(self._cross_shapes, rows, shape.source_capacity, *kind))

    @torch.no_grad()
    def run(self, tokens: Tensor, positions: Tensor, cache: RaggedCache | SourceCache, wanted: Wanted) -> Result:
        run = self._run_fused if self.fused else self._run_modules
        with rotary.settled(self.positions.long), row_products.no_split_k() if self.no_split_k else nullcontext():
            return run(tokens, positions, cache, wanted)

    def _run_fused(self, tokens: Tensor, positions: Tensor, cache: Any, wanted: Wanted) -> Result:
        from outrider.models.transformers import fused

        known, at, tree = tokens.clamp(max=self.embedding.shape[0] - 1), positions.contiguous(), None
        if wanted.tree is not None:  # keys lie in the order of the run
            at, tree = positions[:, :1] + torch.arange(tokens.shape[1], device=at.device), (at, wanted.tree.paths)
        hidden, states = fused.run(
            self.model, known, self._position_ids(positions), cache.at(at, tree=tree), wanted.states
        )
        if wanted.tokens is not None:
            hidden = hidden[:, wanted.tokens.start : wanted.tokens.stop]
        return Result(fused.logits(self.model, hidden) if wanted.logits else None, hidden, states)

    def _run_modules(
        self, tokens: Tensor, positions: Tensor, cache: RaggedCache | SourceCache, wanted: Wanted
    ) -> Result:
        arguments, few = self._arguments(tokens, positions, cache, wanted), wanted.tokens
        if self.facts.layers in wanted.states and not watch_last_layer(self.model, self.facts.layers):
            raise BadOption(
                f"{type(self.model).__name__} does not show what its last layer gives before the norm, which this "
                "draft reads; use another draft"
            )
        if few is not None and "logits_to_keep" in self.accepts:
            ends = wanted.logits and few.stop == tokens.shape[1]
            arguments["logits_to_keep"] = len(few) if ends else torch.tensor(list(few), device=tokens.device)
            few = None
        with tokens_alone() if wanted.logits else nullcontext():
            output, hidden = forward(self.model, **arguments)
        part = slice(None) if few is None else slice(few.start, few.stop)
        logits = output.logits[:, part] if wanted.logits else None
        return Result(logits, None if hidden is None else hidden[:, part], self._states(output, wanted.states))

    def _states(self, output: Any, layers: tuple[int, ...]) -> Tensor | None:
        if not layers:
            return None
        given = output.decoder_hidden_states if self.facts.encoder_decoder else output.hidden_states
        last = self.facts.layers  # transformers shows what it gives behind the norm alone
        seen = {last: last_sum()} if last in layers else {}
        return torch.stack([seen[layer] if layer in seen else given[layer] for layer in layers], 2)

    def _arguments(
        self, tokens: Tensor, positions: Tensor, cache: RaggedCache | SourceCache, wanted: Wanted
    ) -> dict[str, Any]:
        """Of the model's forward."""
        from outrider.models.transformers.kv_cache import SourceCache

        own: RaggedCache = cache.own if isinstance(cache, SourceCache) else cache
        filled, unmasked = self._filled(positions) if wanted.filled_only else (self._in_use(positions, own), False)
        prefix = "decoder_" if self.facts.encoder_decoder else ""
        arguments = {
            # A draft may be shown tokens of the target it has no row for; its guess after them is as good as any.
            f"{prefix}input_ids": tokens.clamp(max=self.embedding.shape[0] - 1),
            f"{prefix}attention_mask": None if unmasked else self._mask(positions, own.slots[:filled]),
            "past_key_values": own.at(positions, filled),
            "use_cache": True,
        }
        if wanted.states:
            arguments["output_hidden_states"] = True
        if "position_ids" in self.accepts:
            arguments["position_ids"] = self._position_ids(positions)
        return arguments | self._cross_arguments(cache) if isinstance(cache, SourceCache) else arguments

    def _in_use(self, positions: Tensor, own: RaggedCache) -> int | None:
        """Positions of the cache that attention reads where the rest was found to change no bit; None: all."""
        if self.capacity_granule is None:
            return None
        whole = -(-(int(positions[:, -1].max()) + 1) // self.capacity_granule) * self.capacity_granule
        return min(whole, len(own.slots))

    def _position_ids(self, positions: Tensor) -> Tensor:
        """Padding may stand past the last position the model knows; its result is never used."""
        limit = self.facts.max_length
        return positions if limit is None else positions.clamp(max=limit - 1)

    def _filled(self, positions: Tensor) -> tuple[int | None, bool]:
        """How many positions of the cache a run looks at, None for all; and whether the model can do without a mask.

        On a CPU only: elsewhere reading positions would sync with the device.
        """
        if positions.device.type != "cpu":
            return None, False
        width, ends = positions.shape[1], positions[:, -1]
        filled = int(ends.max()) + 1
        alike = filled == int(ends.min()) + 1 and width in (1, filled)
        known = self.windows is None and families.family(self.config).own_mask
        return filled, alike and known and self.config._attn_implementation == "sdpa"

    def _mask(self, positions: Tensor, slots: Tensor) -> Tensor | dict[str, Tensor]:
        return masks.causal(positions, slots, self.windows, self.facts.dtype)

    def _cross_arguments(self, cache: SourceCache) -> dict[str, Any]:
        """The encoder ran when the row was admitted; the decoder only needs its finished keys and values."""
        from transformers.modeling_outputs import BaseModelOutput

        lengths, slots = cache.lengths, cache.cross.slots
        stand_in = torch.zeros((len(lengths), len(slots), 1), dtype=self.facts.dtype, device=lengths.device)
        return {
            "encoder_outputs": BaseModelOutput(last_hidden_state=stand_in),
            "attention_mask": masks.additive(slots >= lengths[:, None], self.facts.dtype)[:, None, None, :],
            "past_key_values": cache.joint,
        }

    def encode(self, sources: Mapping[int, Source], cache: SourceCache) -> None:
        if not self.facts.encoder_decoder:
            raise no_source()
        groups: dict[Hashable, dict[int, Source]] = {}
        for row, source in sources.items():
            apart = isinstance(source, Tensor) or not self.facts.batch_invariant
            groups.setdefault((row,) if apart else self._padded(source), {})[row] = source
        for group in groups.values():
            self._encode(group, cache)

    def _padded(self, source: Source) -> int:
        """Tokens that a source is filled up to. It follows from the source alone, and so do the bits."""
        whole = -(-len(source) // _GRANULE) * _GRANULE
        limit = self.facts.max_length
        return whole if limit is None else max(len(source), min(whole, limit))

    @torch.no_grad()
    def _encode(self, group: Mapping[int, Source], cache: SourceCache) -> None:
        """Sources in one run: of one padded length, or a single one."""
        from outrider.models.transformers.kv_cache import contents, fresh_dynamic

        found, device = fresh_dynamic(encoder_decoder=True), self.facts.device
        first = torch.zeros((len(group), 1), dtype=torch.int64, device=device)  # keys of a source depend on no token
        self.model(**self._read(list(group.values())), decoder_input_ids=first, past_key_values=found, use_cache=True)
        for place, (row, source) in enumerate(group.items()):
            own = slice(place, place + 1), slice(None), slice(0, len(source))
            cache.fill(row, [(k[own], v[own]) for k, v in contents(found.cross_attention_cache)], len(source))

    def _read(self, sources: Sequence[Source]) -> dict[str, Any]:
        """What the model's forward is given to read."""
        from transformers.modeling_outputs import BaseModelOutput

        finished = [source[None] for source in sources if isinstance(source, Tensor)]
        if finished:
            return {"encoder_outputs": BaseModelOutput(last_hidden_state=torch.cat(finished))}
        longest = self._padded(sources[0]) if self.facts.batch_invariant else len(sources[0])
        ids, mask = torch.zeros((2, len(sources), longest), dtype=torch.int64)
        for row, source in enumerate(sources):
            ids[row, : len(source)] = torch.tensor(list(source))
            mask[row, : len(source)] = 1
        read = {"input_ids": ids.to(self.facts.device)}
        return read | ({"attention_mask": mask.to(self.facts.device)} if self.facts.batch_invariant else {})

    def unusable(self, reason: object) -> ModelError:
        brief = " ".join(str(reason).split())[:200]
        return ModelError(
            f"{type(self.model).__name__} cannot be used: per-row decoding does not fit its cache ({brief})"
        )

    def _output_size(self) -> int:
        head = self.model.get_output_embeddings()
        return int(head.weight.shape[0] if head is not None else self.config.vocab_size)

    @torch.no_grad()
    def _probe(self, encoder_decoder: bool) -> tuple[list[LayerShape], list[LayerShape], int | None]:
        """Run one token -> heads and sizes of every layer's own and cross attention, and the size of hidden states."""
        from outrider.models.transformers.kv_cache import fresh_dynamic, layer_shapes

        cache = fresh_dynamic(encoder_decoder)
        one = torch.zeros((1, 1), dtype=torch.int64, device=self.model.device)
        given = {"input_ids": one, "decoder_input_ids": one} if encoder_decoder else {"input_ids": one}
        try:
            _, hidden = forward(self.model, **given, past_key_values=cache, use_cache=True)
            parts = (cache.self_attention_cache, cache.cross_attention_cache) if encoder_decoder else (cache,)
            own, *cross = map(layer_shapes, parts)
        except (AttributeError, TypeError, RuntimeError, ValueError) as error:
            raise self.unusable(error) from error
        if not own:
            raise self.unusable("it keeps no keys and values")
        return own, cross[0] if cross else [], None if hidden is None else int(hidden.shape[-1])
