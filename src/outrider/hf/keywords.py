"""Hands on to Outrider's loop what ``generate`` was given for transformers' own: streamer, tokenizer and the like.

transformers passes a callable ``custom_generate`` only keywords that its own loop does not know. ``streamer``,
``tokenizer``, ``assistant_model`` and ``synced_gpus`` are dropped without a word, and whoever reads from an iterator
streamer waits for ever. One method of transformers sorts these keywords. It is wrapped here, once, when this package is
imported: Outrider's function is given what the usual loop would be given, every other call is as before. So is a
function of the caller's that names Outrider's in its own body; it is given only what the caller set.
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
        called, usual = _unwrapped(custom_generate), {}
        if called is function:
            usual = sort(self, None, dict(kwargs), *rest)
        elif _names(called, function):  # one without such a parameter must not break where nothing was set
            given = sort(self, None, dict(kwargs), *rest)
            usual = {name: value for name, value in given.items() if value is not None and value is not False}
        own: dict[str, Any] = sort(self, custom_generate, kwargs, *rest)
        return usual | own

    setattr(GenerationMixin, _METHOD, sort_for)
    return True


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _names(function: Any, wanted: Callable[..., Any]) -> bool:
    """Whether a function, a method or an object with ``__call__`` is a wrapper that names ``wanted`` in its body."""
    if not callable(function):  # transformers also takes a repository's name
        return False
    function = function if inspect.isroutine(function) else type(function).__call__
    function = getattr(function, "__func__", function)
    inner = inspect.unwrap(function)
    return inner is wanted or _in_body(function, wanted) or _in_body(inner, wanted)


def _in_body(function: Any, wanted: Callable[..., Any]) -> bool:
    """By its own name, or by another one that stands for it."""
    if not inspect.isfunction(function):
        return False
    cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    used = [function.__globals__.get(name) for name in function.__code__.co_names]
    return wanted.__name__ in function.__code__.co_names or any(value is wanted for value in (*cells, *used))


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a name that is not bound yet
        return False
