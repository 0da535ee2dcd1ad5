"""Any transformers causal or encoder-decoder model as a LanguageModel, through its own forward."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outrider.core.model_facts import ModelFacts
from outrider.core.protocols import Shape, Source
from outrider.errors import BadOption, ModelError, require
from outrider.kernels.attached import attach, attached, detach
from outrider.models.session import BufferedSession
from outrider.models.settings import setting
from outrider.models.transformers import families, selfcheck

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from outrider.models.transformers.kv_cache import RaggedCache

# transformers is imported where its models are run: importing it takes longer than loading a model for an engine.

_run = threading.local()
"""What the output layer read in the run this thread is in: two threads may run one model at the same time."""


def _remember(module: Any, inputs: tuple[Tensor, ...]) -> None:
    _run.read = inputs[0]


class _Watched:
    """Attached to an output layer whose input is remembered."""


def watch_output_layer(model: PreTrainedModel) -> Callable[[], None]:
    """Every family has an output layer; what goes into it is the last hidden state -> what ends the watch.

    Once, however often a model is wrapped.
    """
    layer = model.get_output_embeddings()
    if layer is None or attached(layer, _Watched) is not None:
        return lambda: None
    attach(layer, _Watched())
    hook = layer.register_forward_pre_hook(_remember)

    def undo() -> None:
        hook.remove()
        detach(layer, _Watched)

    return undo


class HuggingFaceModel:
    """A transformers model, unchanged, with the facts sessions need about it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval()
        self.config = model.config.get_text_config(decoder=True)
        reason = families.supported(self.config)
        require(reason is None, f"{type(model).__name__} cannot be used: {reason}", ModelError)
        families.adapt(model)
        self.facts = ModelFacts(
            self._output_size(),
            model.device,
            setting(self.config, "max_position_embeddings"),
            model.dtype,
            encoder_decoder=bool(model.config.is_encoder_decoder),
            layers=int(self.config.num_hidden_layers),
        )
        self.accepts = frozenset(inspect.signature(model.forward).parameters)
        self.windows = families.sliding_windows(self.config)
        self.fused = False  # True: attention reads positions itself and needs no mask, see fused.py
        watch_output_layer(model)
        self.own_shapes, self.cross_shapes = self._probe()
        if self.config.model_type not in families.TESTED:
            selfcheck.check_against_itself(self)

    @property
    def vocab_size(self) -> int:
        return self.facts.vocab_size

    @property
    def max_length(self) -> int | None:
        return self.facts.max_length

    @property
    def device(self) -> torch.device:
        return self.facts.device

    @property
    def dtype(self) -> torch.dtype:
        return self.facts.dtype

    @property
    def hidden_size(self) -> int | None:
        return self.facts.hidden_size

    @property
    def encoder_decoder(self) -> bool:
        return self.facts.encoder_decoder

    @property
    def sample(self) -> Tensor | None:
        """The first rows of the embedding as they were saved, where ``embedding`` has them in a narrower form."""
        return None

    def fuse(self) -> bool:
        """Use fused kernels where the family and the device allow; False if they do not."""
        from outrider.models.transformers import fused

        self.fused = self.fused or fused.fuse(self.model, self.device)
        return self.fused

    def start(self, rows: int, shape: Shape) -> HuggingFaceSession:
        return HuggingFaceSession(self, rows, shape)

    def run(self, **arguments: Any) -> tuple[Any, Tensor | None]:
        """The model's own forward -> its output, and what the output layer read: the last hidden states."""
        _run.read = None
        output = self.model(**arguments)
        read, _run.read = _run.read, None  # not kept: it may be large
        return output, read

    @property
    def embedding(self) -> Tensor:
        """[V, size]: the input embeddings."""
        return self.model.get_input_embeddings().weight  # type: ignore[no-any-return]

    @property
    def unembedding(self) -> Tensor:
        """[V, size]: the output layer, which turns ``hidden`` into logits."""
        return self.model.get_output_embeddings().weight  # type: ignore[no-any-return]

    def _output_size(self) -> int:
        head = self.model.get_output_embeddings()
        return int(head.weight.shape[0] if head is not None else self.config.vocab_size)

    def unusable(self, reason: object) -> ModelError:
        brief = " ".join(str(reason).split())[:200]
        return ModelError(
            f"{type(self.model).__name__} cannot be used: per-row decoding does not fit its cache ({brief})"
        )

    @torch.no_grad()
    def _probe(self) -> tuple[list[Any], list[Any]]:
        """Run one token and look at what the model puts into a cache: heads and sizes of every layer."""
        from outrider.models.transformers.kv_cache import fresh_dynamic, layer_shapes

        cache = fresh_dynamic(self.encoder_decoder)
        one = torch.zeros((1, 1), dtype=torch.int64, device=self.device)
        try:
            if self.encoder_decoder:
                self._look(input_ids=one, decoder_input_ids=one, past_key_values=cache, use_cache=True)
                return layer_shapes(cache.self_attention_cache), layer_shapes(cache.cross_attention_cache)
            self._look(input_ids=one, past_key_values=cache, use_cache=True)
            shapes = layer_shapes(cache)
        except (AttributeError, TypeError, RuntimeError, ValueError) as error:
            raise self.unusable(error) from error
        if not shapes:
            raise self.unusable("it keeps no keys and values")
        return shapes, []

    def _look(self, **arguments: Any) -> None:
        _, hidden = self.run(**arguments)
        self.facts = replace(self.facts, hidden_size=None if hidden is None else int(hidden.shape[-1]))


class HuggingFaceSession(BufferedSession):
    """Rows on a transformers model, with key/value buffers of fixed capacity."""

    def __init__(self, model: HuggingFaceModel, rows: int, shape: Shape) -> None:
        super().__init__(rows, shape, model.vocab_size, model.device)
        self.model = model
        self.cache = self._allocate(model.own_shapes, shape.capacity)
        if model.encoder_decoder:
            self.cross = self._allocate(model.cross_shapes, shape.source_capacity)
            self.source_lengths = torch.ones(rows, dtype=torch.int64, device=model.device)
            self.source_names = torch.arange(
                -rows, 0, device=model.device
            )  # which source a row holds: a number of its own for each
            self._joined: tuple[RaggedCache, RaggedCache, Any] | None = None
        if model.hidden_size is not None:
            self.embedding, self.unembedding = model.embedding, model.unembedding
            self.hidden = torch.zeros((rows, model.hidden_size), dtype=model.dtype, device=model.device)
        self._kept: tuple[int, ...] = ()  # layers whose output ``states`` holds
        self._slots = torch.arange(shape.capacity, device=model.device)  # [C]

    def keep_states(self, layers: Sequence[int]) -> None:
        known = self.model.facts.layers or 0
        wrong = [layer for layer in layers if not -1 <= layer <= known]
        require(not wrong, f"layers {wrong} do not exist: the model has {known}")
        if self.states is not None and self._kept != tuple(layers):
            raise BadOption(f"states of layers {self._kept} are kept for another draft, not those of {tuple(layers)}")
        size = self.model.hidden_size
        if size is None:
            raise BadOption("this model shows no states of its layers; use a draft that reads none")
        self._kept = tuple(layers)
        shape = (self.context.rows, self.shape.capacity, len(self._kept), size)
        self.states = torch.zeros(shape, dtype=self.model.dtype, device=self.model.device)

    def _keep(self, rows: Tensor, positions: Tensor, output: Any) -> None:
        """Write what the layers gave where it belongs; like keys and values, stale places are written over."""
        if self.states is not None:
            given = output.decoder_hidden_states if self.model.encoder_decoder else output.hidden_states
            self.states[rows[:, None], positions] = torch.stack([given[layer] for layer in self._kept], 2)

    def _allocate(self, shapes: list[Any], capacity: int) -> Any:
        """Key/value buffers, in the form that what runs the model wants them in."""
        from outrider.models.transformers.kv_cache import RaggedCache

        return RaggedCache.allocate(shapes, self.context.rows, capacity, self.model.dtype, self.model.device)

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        # As far as a row before may have written, guesses and prefill chunks included: the rest was never touched.
        used = int(self.context.lengths[row]) + 2 * self.shape.width + self.shape.chunk
        for buffer in (b for pair in self.cache.buffers() for b in pair):
            buffer[row, :, :used].zero_()  # what is left here is masked, but a NaN would shine through any mask
        if self.states is not None:
            self.states[row, :used] = 0  # a prompt of one token has nothing behind it, least of all another request's
        super().admit(row, prompt, source)

    def _copy_memory(self, rows: Tensor) -> None:
        self.cache = self.cache.select(rows)
        if self.model.encoder_decoder:
            self.cross = self.cross.select(rows)
            self.source_lengths = self.source_lengths.index_select(0, rows)
            self.source_names = self.source_names.index_select(0, rows)

    def _move_memory(self, rows: Tensor) -> None:
        if rows.device.type != "cpu" or len(rows) != self.context.rows:  # on a GPU, asking which rows move would wait
            self._copy_memory(rows)
            return
        moved = (rows != torch.arange(len(rows))).nonzero()[:, 0]
        self.cache.move(moved, rows[moved], int(self.context.lengths.max()) + self.guessed)
        if self.model.encoder_decoder:
            moved = (self.source_names != self.source_names[rows]).nonzero()[:, 0]  # one source, many rows: stays
            self.cross.move(moved, rows[moved], self.shape.source_capacity)
            self.source_lengths = self.source_lengths.index_select(0, rows)
            self.source_names = self.source_names.index_select(0, rows)

    @torch.no_grad()
    def _feed(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        arguments = self._arguments(self.cache, tokens, positions)
        if self.model.encoder_decoder:
            arguments |= self._cross_arguments(arguments, self.cross, self.source_lengths)
        output, hidden = self.model.run(**arguments)
        self._keep(torch.arange(len(tokens), device=tokens.device), positions, output)
        return output.logits, hidden

    @torch.no_grad()
    def _prefill(self, row: int, tokens: Tensor, positions: Tensor, last: int) -> Tensor | None:
        arguments = self._arguments(self.cache.row(row), tokens, positions)
        if self.model.encoder_decoder:
            arguments |= self._cross_arguments(arguments, self.cross.row(row), self.source_lengths[row : row + 1])
        if "logits_to_keep" in self.model.accepts:
            arguments["logits_to_keep"] = torch.tensor([last], device=tokens.device)
            last = 0
        output, hidden = self.model.run(**arguments)
        self._keep(torch.tensor([row], device=tokens.device), positions, output)
        return None if hidden is None else hidden[0, last]

    def _arguments(self, cache: RaggedCache, tokens: Tensor, positions: Tensor) -> dict[str, Any]:
        # A draft may be shown tokens of the target it has no row for; its guess after them is as good as any.
        tokens = tokens.clamp(max=self.model.embedding.shape[0] - 1)
        prefix = "decoder_" if self.model.encoder_decoder else ""
        arguments = {
            f"{prefix}input_ids": tokens,
            f"{prefix}attention_mask": self._mask(positions),
            "past_key_values": cache.at(positions),
            "use_cache": True,
        }
        if self.states is not None:
            arguments["output_hidden_states"] = True
        if "position_ids" in self.model.accepts:
            # Padding may stand past the last position the model knows; its result is never used.
            limit = self.model.max_length
            arguments["position_ids"] = positions if limit is None else positions.clamp(max=limit - 1)
        return arguments

    def _mask(self, positions: Tensor) -> Tensor | dict[str, Tensor]:
        windows = self.model.windows
        if self.model.fused:
            return positions[:, None, None, :]  # four dimensions, so that no mask is made; never looked at
        if isinstance(windows, dict):
            return {name: self._additive(positions, window) for name, window in windows.items()}
        return self._additive(positions, windows)

    def _additive(self, positions: Tensor, window: int | None) -> Tensor:
        """[B, 1, w, C]: 0 where a position may look, the lowest number elsewhere.

        Never -inf, so that a padding row with nothing to look at gives garbage rather than NaN.
        """
        query = positions[:, None, :, None]
        visible = self._slots <= query
        if window is not None:
            visible = visible & (self._slots > query - window)
        return self._hide(~visible)

    def _hide(self, hidden: Tensor) -> Tensor:
        dtype = self.model.dtype
        return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, torch.finfo(dtype).min)

    def _cross_arguments(self, arguments: dict[str, Any], cross: RaggedCache, lengths: Tensor) -> dict[str, Any]:
        """The encoder ran when the row was admitted; the decoder only needs its finished keys and values."""
        from transformers.modeling_outputs import BaseModelOutput

        rows, capacity = lengths.shape[0], self.shape.source_capacity
        beyond = torch.arange(capacity, device=lengths.device) >= lengths[:, None]
        stand_in = torch.zeros((rows, capacity, 1), dtype=self.model.dtype, device=lengths.device)
        return {
            "encoder_outputs": BaseModelOutput(last_hidden_state=stand_in),
            "attention_mask": self._hide(beyond)[:, None, None, :],
            "past_key_values": self._joint(arguments["past_key_values"], cross),
        }

    def _joint(self, own: RaggedCache, cross: RaggedCache) -> Any:
        """Joining asks the device whether anything is cached: once for the session's own, not in every run."""
        from outrider.models.transformers.kv_cache import with_cross_attention

        if own is not self.cache or cross is not self.cross:
            return with_cross_attention(own, cross)
        if self._joined is None or self._joined[0] is not own or self._joined[1] is not cross:
            self._joined = (own, cross, with_cross_attention(own, cross))
        return self._joined[2]

    @torch.no_grad()
    def _encode(self, row: int, source: Source) -> None:
        """Run the encoder over one row's source, alone, and keep the decoder's keys and values of it."""
        if not self.model.encoder_decoder:
            super()._encode(row, source)
        from transformers.modeling_outputs import BaseModelOutput

        from outrider.models.transformers.kv_cache import contents, fresh_dynamic

        if isinstance(source, Tensor):
            read: dict[str, Any] = {"encoder_outputs": BaseModelOutput(last_hidden_state=source[None])}
        else:
            read = {"input_ids": torch.tensor([list(source)], dtype=torch.int64, device=self.model.device)}
        cache = fresh_dynamic(encoder_decoder=True)
        first = torch.zeros((1, 1), dtype=torch.int64, device=self.model.device)  # keys of a source depend on no token
        self.model.model(**read, decoder_input_ids=first, past_key_values=cache, use_cache=True)
        for (key, value), (k, v) in zip(self.cross.buffers(), contents(cache.cross_attention_cache), strict=True):
            key[row].zero_()
            value[row].zero_()
            key[row, :, : k.shape[2]] = k[0]
            value[row, :, : v.shape[2]] = v[0]
        self.source_lengths[row] = len(source)
        self.source_names[row] = self.source_names.max() + 1
