"""What a model's output layer reads: the last hidden states, seen by a hook on that layer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from outrider.kernels.attached import attach, attached, detach

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_run = threading.local()
"""What the output layer read in the run this thread is in: two threads may run one model at the same time."""


class _Watched:
    """Attached to an output layer whose input is remembered."""


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


def forward(model: PreTrainedModel, **arguments: Any) -> tuple[Any, Tensor | None]:
    """The model's own forward -> its output, and what the output layer read, if it is watched."""
    _run.read = None
    output = model(**arguments)
    read, _run.read = _run.read, None  # not kept: it may be large
    return output, read
