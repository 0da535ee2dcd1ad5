"""Hands on to Outrider's loop what ``generate`` was given for transformers' own: streamer, tokenizer and the like.

transformers passes a callable ``custom_generate`` only keywords that its own loop does not know. ``streamer``,
``tokenizer``, ``assistant_model`` and ``synced_gpus`` are dropped without a word, and whoever reads from an iterator
streamer waits for ever. One method of transformers sorts these keywords. It is wrapped here, once, when this package is
imported: Outrider's function is given what the usual loop would be given, every other call is as before.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from transformers.generation import GenerationMixin

_METHOD = "_extract_generation_mode_kwargs"
_PARAMETERS = ["self", "custom_generate", "kwargs", "synced_gpus", "assistant_model", "streamer"]


def hand_on(function: Callable[..., Any]) -> bool:
    """Let ``function``, passed as ``custom_generate``, be given the usual loop's keywords too.

    False where this version of transformers sorts them elsewhere: nothing is changed then.
    """
    sort = getattr(GenerationMixin, _METHOD, None)
    if sort is None or list(inspect.signature(sort).parameters) != _PARAMETERS:
        return False

    @functools.wraps(sort)
    def sort_for(
        self: Any, custom_generate: Any, kwargs: dict[str, Any], synced_gpus: Any, assistant_model: Any, streamer: Any
    ) -> dict[str, Any]:
        rest = (synced_gpus, assistant_model, streamer)
        if _unwrapped(custom_generate) is not function:
            found: dict[str, Any] = sort(self, custom_generate, kwargs, *rest)
            return found
        usual: dict[str, Any] = sort(self, None, dict(kwargs), *rest)
        own: dict[str, Any] = sort(self, custom_generate, kwargs, *rest)
        return usual | own

    setattr(GenerationMixin, _METHOD, sort_for)
    return True


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function
