"""Everything ``generate`` can be asked for, by the names transformers users know, checked in one place."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, runtime_checkable

from outrider.core.noise import row_seeds
from outrider.core.sampling import Sampling
from outrider.errors import BadOption, require, require_unicode

COUPLINGS = ("maximal", "gumbel", "block")
GAMMAS = ("auto", "gradient")
SAMPLING_ONLY = ("temperature", "top_k", "top_p", "min_p", "coupling", "lenience", "seed")
BEAMS_ONLY = ("length_penalty", "early_stopping", "num_return", "draft_beams")


@runtime_checkable
class GammaPolicy(Protocol):
    """What ``gamma`` takes beside numbers and names: a policy, as in ``outrider.planning.policies``."""

    def start(self, setting: Any) -> Any: ...


@dataclass(frozen=True)
class Options:
    """Options of one call. What is not listed here is refused, never ignored."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float | None = None  # None: what the model's generation config says
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: str | Sequence[str] = ()
    eos: int | Sequence[int] | None = None  # None: the model's own; () : never stop at a token
    seed: int | Sequence[int] | None = None
    gamma: Any = None  # guesses per run, "auto", "gradient" or a policy; None: "auto"
    coupling: str = "maximal"
    lenience: float = 1.0  # below 1: more guesses kept, no longer exact
    draft_temperature: float | None = None  # None: the target's, here and in the next two
    draft_top_k: int | None = None
    draft_top_p: float | None = None
    beams: int = 1  # hypotheses that run together; 1 is no beam search
    length_penalty: float = 1.0  # beam scores are divided by length ** length_penalty
    early_stopping: bool | str = False  # True, False or "never", as in transformers
    num_return: int = 1  # hypotheses to return
    draft_beams: int | None = None  # the drafter's beams and the rows of a target run; None: see beam/search.py
    logits_processor: Sequence[Any] = ()  # a transformers LogitsProcessorList
    stopping_criteria: Sequence[Any] = ()  # a transformers StoppingCriteriaList

    @staticmethod
    def parse(options: Mapping[str, Any]) -> Options:
        """Options by name; an unknown one is an error that names the nearest known one."""
        known = [f.name for f in fields(Options)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known options: {', '.join(known)}"
                raise BadOption(f"unknown option {name!r}; {hint}")
        several = {k: tuple(v) for k, v in options.items() if isinstance(v, Iterator)}  # read once, checked and used
        return Options(**{**options, **several})

    def __post_init__(self) -> None:
        def whole(name: str, least: int) -> None:
            value = getattr(self, name)
            good = isinstance(value, int) and not isinstance(value, bool) and value >= least
            require(good, f"{name} must be a whole number of at least {least}, got {value!r}")

        self._check_kinds()
        whole("max_new_tokens", 1)
        if isinstance(self.gamma, (str, GammaPolicy)):
            known = not isinstance(self.gamma, str) or self.gamma in GAMMAS
            require(known, f"gamma must be a whole number, {' or '.join(GAMMAS)}, or a policy, got {self.gamma!r}")
        elif self.gamma is not None:
            whole("gamma", 0)
        require(
            self.coupling in COUPLINGS,
            f"coupling must be one of {', '.join(COUPLINGS)}, got {self.coupling!r}",
        )
        self._check_lenience()
        self._check_draft()
        stops = self.stop_strings
        require(all(isinstance(s, str) and s for s in stops), f"stop must be non-empty strings, got {self.stop!r}")
        for text in stops:
            require_unicode("stop", text)
        self.sampling()  # checks the rest
        for name in ("beams", "num_return"):
            whole(name, 1)
        if self.draft_beams is not None:
            whole("draft_beams", self.beams)
        self._check_beams()

    def _check_beams(self) -> None:
        """What beam search has no use for is refused beside it, and the other way round."""
        require(
            isinstance(self.early_stopping, bool) or self.early_stopping == "never",
            f'early_stopping must be True, False or "never", got {self.early_stopping!r}',
        )
        penalty = self.length_penalty
        good = isinstance(penalty, (int, float)) and not isinstance(penalty, bool) and -100 <= penalty <= 100
        require(good, f"length_penalty must be a number from -100 to 100, got {penalty!r}")
        require(
            self.num_return <= self.beams,
            f"num_return must be at most beams, which is {self.beams}; got {self.num_return}",
        )
        planned = self.gamma is None or self.gamma == "auto" or isinstance(self.gamma, int)
        require(
            self.beams == 1 or planned,
            f"gamma must be a whole number with beams, the levels of a draft tree, got {self.gamma!r}; or leave it out",
        )
        unused = SAMPLING_ONLY if self.beams > 1 else BEAMS_ONLY
        asked = [
            f"{k}={getattr(self, k)!r}" for k in unused if getattr(self, k) != Options.__dataclass_fields__[k].default
        ]
        remedy = "leave it out, or set beams=1" if self.beams > 1 else "set beams to at least 2, or leave it out"
        kind = "beam search" if self.beams > 1 else "decoding without beams"
        require(not asked, f"{', '.join(asked)} means nothing to {kind}; {remedy}")

    def _check_lenience(self) -> None:
        number = isinstance(self.lenience, (int, float)) and not isinstance(self.lenience, bool)
        require(
            number and 0 < self.lenience <= 1,
            f"lenience must be a number above 0 and at most 1 (1 is exact), got {self.lenience!r}",
        )
        require(
            self.lenience == 1 or self.coupling == "maximal",
            f"lenience {self.lenience!r} loosens coupling 'maximal' only, got {self.coupling!r}; leave one out",
        )

    def _check_draft(self) -> None:
        own = self.draft_options
        for name, value in own.items():
            try:
                Sampling(**{"temperature": 1.0, name: value})
            except BadOption as error:
                raise BadOption(f"draft_{error}") from None
        require(
            self.temperature != 0 or not own,
            f"{', '.join(f'draft_{name}' for name in own)} cannot help at temperature 0, where only the draft's "
            "likeliest guess can be right; leave it out",
        )

    @property
    def draft_options(self) -> dict[str, Any]:
        """The draft's own sampling options, where it has any."""
        given = {"temperature": self.draft_temperature, "top_k": self.draft_top_k, "top_p": self.draft_top_p}
        return {name: value for name, value in given.items() if value is not None}

    def _check_kinds(self) -> None:
        """Values of the wrong kind would fail deep inside or, worse, have no effect."""

        def several(value: Any) -> bool:
            return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))

        def whole(value: Any) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63

        for name in ("seed", "eos"):
            value = getattr(self, name)
            good = value is None or whole(value) or (several(value) and all(whole(v) for v in value))
            require(good, f"{name} must be a whole number of 64 bits or several, got {value!r}")
        require(
            isinstance(self.stop, str) or several(self.stop), f"stop must be a string or several, got {self.stop!r}"
        )
        for name in ("logits_processor", "stopping_criteria"):
            value = getattr(self, name)
            good = several(value) and all(callable(v) for v in value)
            require(good, f"{name} must be a list of callables, got {value!r}")
        try:
            bias = {int(k): float(v) for k, v in self.logit_bias.items()}
        except (AttributeError, TypeError, ValueError):
            raise BadOption(f"logit_bias must map token ids to numbers, got {self.logit_bias!r}") from None
        # Minus infinity forbids a token; NaN and plus infinity leave no distribution.
        good = all(v < math.inf for v in bias.values())
        require(good, f"logit_bias must be numbers or minus infinity, got {self.logit_bias!r}")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def end_tokens(self) -> frozenset[int]:
        """The call's own, where it names any."""
        given = () if self.eos is None else self.eos
        return frozenset([given] if isinstance(given, int) else given)

    def sampling(self, default_penalty: float = 1.0, constraints: Sequence[Any] = ()) -> Sampling:
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=default_penalty if self.repetition_penalty is None else self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias={int(k): float(v) for k, v in self.logit_bias.items()},
            processors=(*constraints, *self.logits_processor),
        )

    def seeds(self, prompts: Sequence[Sequence[int]], fresh: int) -> list[int]:
        """A seed per prompt (``row_seeds``): of this call's seed, of several, or of a fresh one if none was given."""
        if self.seed is None or isinstance(self.seed, int):
            return row_seeds(fresh if self.seed is None else self.seed, prompts)
        seeds = [int(s) for s in self.seed]
        require(len(seeds) == len(prompts), f"seed has {len(seeds)} values for {len(prompts)} prompts")
        return row_seeds(seeds, prompts)
