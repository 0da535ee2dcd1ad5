"""What a model's output layer and its last norm read, seen by hooks: the last hidden states, and those before it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from outrider.kernels.attached import attach, attached, detach

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_run = threading.local()
"""What the output layer read in the run this thread is in: two threads may run one model at the same time."""


class _Watched:
    """Attached to an output layer that is watched."""


class _WatchedSum:
    """Attached to a last layer that is watched."""

    def __init__(self, hook: RemovableHandle) -> None:
        self.hook = hook


def _remember(module: Any, inputs: tuple[Tensor, ...]) -> None:
    _run.read = inputs[0]


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


def _remember_sum(module: Any, inputs: Any, output: Any) -> None:
    _run.sum = output[0] if isinstance(output, tuple) else output


def watch_last_layer(model: Any, layers: int) -> bool:
    """What the last of so many decoder layers gives is the hidden state before the norm -> whether it was found."""
    found = [part for part in model.get_decoder().modules() if isinstance(part, nn.ModuleList) and len(part) == layers]
    if not found:
        return False
    last = found[0][-1]
    if attached(last, _WatchedSum) is None:
        attach(last, _WatchedSum(last.register_forward_hook(_remember_sum)))
    return True


def end_watch_of_layers(model: Any) -> None:
    """Undo ``watch_last_layer``, where that was asked for."""
    for part in model.modules():
        if (watched := attached(part, _WatchedSum)) is not None:
            watched.hook.remove()
            detach(part, _WatchedSum)
    _run.sum = None


def last_sum() -> Tensor:
    """What the last decoder layer gave in this thread's last run, where it is watched."""
    found, _run.sum = _run.sum, None
    return found  # type: ignore[no-any-return]


def forward(model: PreTrainedModel, **arguments: Any) -> tuple[Any, Tensor | None]:
    """The model's own forward -> its output, and what the output layer read, if it is watched."""
    _run.read = _run.sum = None
    output = model(**arguments)
    read, _run.read = _run.read, None  # not kept: it may be large
    return output, read
