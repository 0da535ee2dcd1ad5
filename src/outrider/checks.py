"""Checks of what users pass in: each refuses a bad value with its name, the value, the rule and the remedy."""

from __future__ import annotations

import difflib
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

from outrider.errors import BadOption, require

P = ParamSpec("P")
T = TypeVar("T")

GAMMAS = ("auto", "gradient")
LOADING = (
    "target", "draft", "device", "dtype", "width", "slots", "exact", "graphs", "engine", "weights", "kv_cache_dtype",
    "max_length", "trust_remote_code", "tensor_parallel", "remember",
)  # fmt: skip
"""The arguments of ``outrider.load``."""

MOST_ROWS = 4096
"""Tokens or sequences of a run: more are a slip, and would fill the memory before anything could be said about it."""

LARGEST_BIAS = 1e30
"""Of ``logit_bias``: a logit with more than that is not finite in float32 once it is divided by a temperature."""


@runtime_checkable
class GammaPolicy(Protocol):
    """What ``gamma`` takes beside numbers and names: a policy, as in ``outrider.planning.policies``."""

    def start(self, setting: Any) -> Any: ...


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number: neither a bool nor a float is one."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_whole(name: str, value: Any, least: int, remedy: str = "", *, most: int | None = None) -> None:
    """Refuse a value that is not a whole number of at least ``least``, and of at most ``most``."""
    good = is_whole(value) and value >= least
    require(good, f"{name} must be a whole number of at least {least}, got {value!r}{remedy}")
    require(most is None or value <= most, f"{name} must be at most {most}, got {value!r}{remedy}")


def check_running(width: Any, slots: Any, exact: Any, graphs: Any) -> None:
    """Refuse bad values of what ``outrider.load`` and ``transformers_generate`` are told about running a model."""
    check_whole("width", width, 1, "; leave it out for the default", most=MOST_ROWS)
    good = slots is None or (is_whole(slots) and slots >= 1)
    require(good, f"slots must be None or a whole number of at least 1, got {slots!r}; leave it out for up to 8")
    good = slots is None or slots <= MOST_ROWS
    require(good, f"slots must be at most {MOST_ROWS}, got {slots!r}; leave it out for up to 8")
    require(isinstance(exact, bool), f"exact must be True or False, got {exact!r}")
    good = isinstance(graphs, bool) or (isinstance(graphs, str) and graphs == "auto")
    require(good, f'graphs must be True, False or "auto", got {graphs!r}; leave it out for "auto"')


def check_parallel(tensor_parallel: Any, graphs: Any) -> None:
    """Refuse bad values of ``tensor_parallel``, and what cannot be had beside it."""
    check_whole("tensor_parallel", tensor_parallel, 1)
    rule = "graphs=True needs tensor_parallel=1, because ranks run step by step"
    require(tensor_parallel == 1 or graphs is not True, f"{rule}, got {tensor_parallel}; leave graphs out")


def check_width(width: int, max_length: int | None, asked: int | None = None) -> None:
    """Refuse runs wider than the model has positions, or than ``asked``, the ``max_length`` that was given."""
    remedy = f"give at least {width}, or load with a smaller width"
    require(asked is None or width <= asked, f"max_length={asked} leaves no room for runs of width {width}; {remedy}")
    require(
        max_length is None or width <= max_length,
        f"width must be at most the model's {max_length} positions, got {width}; load it with a smaller width",
    )


def check_trust(trust_remote_code: Any) -> None:
    good = isinstance(trust_remote_code, bool)  # a string such as "False" would count as yes
    require(good, f"trust_remote_code must be True or False, got {trust_remote_code!r}")


def check_gamma(gamma: Any) -> None:
    """Refuse what is neither a number of guesses, the name of a policy, a policy nor None."""
    allowed = f"a whole number of at least 0, {', '.join(repr(name) for name in GAMMAS)} or a policy"
    if isinstance(gamma, type):
        home = "outrider." if gamma.__module__.startswith("outrider.") else ""
        remedy = f"give {home}{gamma.__name__}()" if issubclass(gamma, GammaPolicy) else "leave it out for 'auto'"
        raise BadOption(f"gamma must be {allowed}, got the class {gamma.__name__}; {remedy}")
    number, name = is_whole(gamma) and gamma >= 0, isinstance(gamma, str) and gamma in GAMMAS
    good = gamma is None or number or name or isinstance(gamma, GammaPolicy)
    require(good, f"gamma must be {allowed}, got {gamma!r}; leave it out for 'auto'")


def check_64_bits(name: str, value: Any, several: bool = False) -> None:
    """Refuse what is neither None nor a whole number of 64 bits, nor a list of them where ``several`` may be given."""

    def good(one: Any) -> bool:
        return is_whole(one) and -(2**63) <= one < 2**63

    many = several and is_list(value) and all(good(one) for one in value)
    rule = "a whole number of 64 bits or several" if several else "None or a whole number of 64 bits"
    require(value is None or good(value) or many, f"{name} must be {rule}, got {value!r}")


def biases(given: Any) -> dict[int, float]:
    """What ``logit_bias`` adds to which token. Ids may be strings of digits, which is how JSON writes them."""
    rule = "logit_bias must map token ids, which are whole numbers, to finite numbers or -inf, which forbids a token"
    require(isinstance(given, Mapping), f"{rule}, got {given!r}")
    found: dict[int, float] = {}
    for token, value in given.items():
        try:
            whole = int(token) if isinstance(token, str) else operator.index(token)
            found[whole] = float(value)
        except (TypeError, ValueError):
            raise BadOption(f"{rule}, got {{{token!r}: {value!r}}}") from None
        good = not isinstance(token, bool) and found[whole] < math.inf  # NaN is not
        require(good, f"{rule}, got {{{token!r}: {value!r}}}")
        good = found[whole] <= LARGEST_BIAS
        require(good, f"logit_bias must be at most {LARGEST_BIAS:g}, got {{{token!r}: {value!r}}}; 100 is plenty")
    return found


def unknown(name: str, known: Sequence[str], elsewhere: Mapping[str, Iterable[str]]) -> BadOption:
    """The error for an argument that is not known: where it belongs, or which known one is nearest."""
    for place, names in elsewhere.items():
        if name in names:
            return BadOption(f"unknown option {name!r}; it is an option of {place}")
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known options: {', '.join(known)}"
    return BadOption(f"unknown option {name!r}; {hint}")


def only_known_options(elsewhere: Mapping[str, Iterable[str]]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For a function: a keyword that it does not have is an error of ours. ``elsewhere``: as ``unknown`` takes it."""

    def wrapper(function: Callable[P, T]) -> Callable[P, T]:
        known = list(inspect.signature(function).parameters)

        @wraps(function)
        def checked(*given: P.args, **options: P.kwargs) -> T:
            for name in options:
                if name not in known:
                    raise unknown(name, known, elsewhere)
            return function(*given, **options)

        return checked

    return wrapper


def is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
