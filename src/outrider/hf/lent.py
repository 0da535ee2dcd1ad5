"""A caller's model, lent for a call: changed only while it is in use, looked at once, and never kept alive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outrider.core.protocols import Shape
from outrider.decoding.session_pool import SessionPool
from outrider.drafters import ModelDrafter, built_in
from outrider.errors import ModelError
from outrider.models.cached_session import CachedSession
from outrider.models.positions import Positions
from outrider.models.transformers import families
from outrider.models.transformers.model import HuggingFaceModel
from outrider.models.transformers.narrow_session import NarrowSession
from outrider.models.transformers.watch import end_watch_of_layers, watch_output_layer
from outrider.models.width_costs import NOMINAL
from outrider.planning.policies import Auto

_lock = threading.RLock()
_in_use: WeakKeyDictionary[PreTrainedModel, _Use] = WeakKeyDictionary()
_wrapped: WeakKeyDictionary[PreTrainedModel, dict[bool, LentModel]] = WeakKeyDictionary()  # by ``Positions.long``


class LentModel(HuggingFaceModel):
    """A transformers model that somebody else owns. Usable inside ``lent(model)``."""

    def __init__(self, model: PreTrainedModel, max_length: int | None) -> None:
        super().__init__(model, max_length)
        self.identity = _identity(model)
        self.facts = replace(self.facts, width_costs=NOMINAL if self.device.type == "cpu" else None)
        self.auto = Auto()  # knows what steps cost
        self.pool = SessionPool(graphs=_capturable(model, self.device))
        self.drafters = built_in()  # always the same ones: graphs captured for them are found again

    @cached_property
    def drafter(self) -> ModelDrafter:
        """The model as a draft: one object, however often it drafts."""
        return ModelDrafter(self, name=type(self.model).__name__)

    def start(self, rows: int, shape: Shape) -> CachedSession:
        return CachedSession(self, rows, shape) if shape.fixed else NarrowSession(self, rows, shape)

    def _refer(self, model: PreTrainedModel) -> Callable[[], PreTrainedModel]:
        found = ref(model)

        def lent_model() -> PreTrainedModel:
            if (alive := found()) is None:
                raise ModelError("the model this was made for is gone")
            return alive

        return lent_model


@contextmanager
def lent(model: PreTrainedModel, length: int = 1) -> Iterator[LentModel]:
    """The model, in eval mode and able to run rows at positions of their own; exactly as it was afterwards.

    ``length``: of texts, prompts included, as the call asks for it, which decides by which factors longrope scales
    positions. What was found out about the model is kept for as long as it lives and is the same.
    """
    with _lock:
        use = _in_use.setdefault(model, _Use())
        use.begin(model)
    try:
        with _lock:
            kept, asked = _wrapped.setdefault(model, {}), _asked(model, length)
            known = kept.get(asked.long)
            if known is None or known.identity != _identity(model):
                known = kept[asked.long] = LentModel(model, asked.count)
        yield known
    finally:
        with _lock:
            use.end()


def _asked(model: PreTrainedModel, length: int) -> Positions:
    """The positions of a call: no more than the model has."""
    config = model.config.get_text_config(decoder=True)
    most = Positions.of(config).most
    return Positions.of(config, length if most is None else min(length, most))


def _identity(model: PreTrainedModel) -> tuple[Any, ...]:
    """What a wrapper remembers of a model: moved, cast, resized or with weights in another place it is another one.

    A captured step reads weights at their addresses, whatever is there by then.
    """
    layer = model.get_output_embeddings()
    shape = None if layer is None else tuple(layer.weight.shape)
    tensors = tuple((id(t), _address(t)) for t in chain(model.parameters(), model.buffers()))
    modules = tuple(map(id, model.modules()))
    return model.device, model.dtype, shape, id(layer), model.config._attn_implementation, modules, tensors


def _address(tensor: Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # some quantised kinds have no memory of their own
        return 0


def _capturable(model: PreTrainedModel, device: torch.device) -> bool:
    """Whether steps may be replayed as CUDA graphs. An adapter is switched on and off without a change of address."""
    adapted = getattr(model, "_hf_peft_config_loaded", False) or any(
        type(module).__module__.split(".")[0] == "peft" for module in model.modules()
    )
    return device.type == "cuda" and not adapted


class _Use:
    """How often a model is in use at the moment, and what makes it as it was."""

    def __init__(self) -> None:
        self.count = 0
        self.training: list[nn.Module] = []
        self.undo: list[Callable[[], None]] = []

    def begin(self, model: PreTrainedModel) -> None:
        self.count += 1
        if self.count == 1:
            self.training = [module for module in model.modules() if module.training]
            if self.training:
                model.eval()
            self.undo = [families.adapt(model), watch_output_layer(model), lambda: end_watch_of_layers(model)]

    def end(self) -> None:
        self.count -= 1
        if self.count == 0:
            for undo in self.undo:
                undo()
            for module in self.training:
                module.training = True
            self.training, self.undo = [], []
