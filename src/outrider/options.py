"""Everything ``generate`` can be asked for, by the names transformers users know, checked as it is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from outrider.checks import LOADING, MOST_ROWS, biases, check_64_bits, check_gamma, check_whole, is_list, unknown
from outrider.core.noise import row_seeds
from outrider.core.sampling import Sampling
from outrider.errors import BadOption, require, require_unicode

COUPLINGS = ("maximal", "gumbel", "block")
SAMPLING_ONLY = ("temperature", "top_k", "top_p", "min_p", "coupling", "lenience", "seed", "tree")
BEAMS_ONLY = ("length_penalty", "early_stopping", "num_return", "draft_beams")


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
    tree: int | None = None  # guesses of a run at most, in a tree with gamma levels at most; None: in a chain
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
                raise unknown(name, known, {"outrider.load": LOADING})
        several = {k: tuple(v) for k, v in options.items() if isinstance(v, Iterator)}  # read once, checked and used
        return Options(**{**options, **several})

    def __post_init__(self) -> None:
        self._check_kinds()
        check_whole("max_new_tokens", self.max_new_tokens, 1)
        check_gamma(self.gamma)
        require(
            self.coupling in COUPLINGS,
            f"coupling must be one of {', '.join(COUPLINGS)}, got {self.coupling!r}",
        )
        self._check_lenience()
        self._check_tree()
        self._check_draft()
        stops = self.stop_strings
        require(all(isinstance(s, str) and s for s in stops), f"stop must be non-empty strings, got {self.stop!r}")
        for text in stops:
            require_unicode("stop", text)
        self.sampling()  # checks the rest
        check_whole("beams", self.beams, 1, most=MOST_ROWS)
        check_whole("num_return", self.num_return, 1)
        if self.draft_beams is not None:
            check_whole("draft_beams", self.draft_beams, self.beams, most=MOST_ROWS)
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

    def _check_tree(self) -> None:
        """What a tree of guesses cannot be judged by, or planned by, is refused beside it."""
        if self.tree is None:
            return
        check_whole("tree", self.tree, 1, "; leave it out for chains of guesses", most=MOST_ROWS - 1)
        planned = self.gamma is None or self.gamma == "auto" or isinstance(self.gamma, int)
        require(planned, f"gamma must be a whole number with tree, its levels, got {self.gamma!r}; or leave it out")
        require(self.gamma != 0, f"gamma=0 makes no guesses, and tree={self.tree} is made of them; leave one out")
        judged = self.coupling != "block" and self.lenience == 1
        what = f"lenience={self.lenience!r}" if self.lenience != 1 else f"coupling={self.coupling!r}"
        require(judged, f"{what} judges chains of guesses only; use coupling 'maximal' or 'gumbel', or leave tree out")

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
        check_64_bits("seed", self.seed, several=True)
        check_64_bits("eos", self.eos, several=True)
        good = isinstance(self.stop, str) or is_list(self.stop)
        require(good, f"stop must be a string or several, got {self.stop!r}")
        for name, value in (("logits_processor", self.logits_processor), ("stopping_criteria", self.stopping_criteria)):
            good = is_list(value) and all(callable(v) for v in value)
            require(good, f"{name} must be a list of callables, got {value!r}")
        biases(self.logit_bias)

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
            logit_bias=biases(self.logit_bias),
            processors=(*constraints, *self.logits_processor),
        )

    def seeds(self, prompts: Sequence[Sequence[int]], fresh: int) -> list[int]:
        """A seed per prompt (``row_seeds``): of this call's seed, of several, or of a fresh one if none was given."""
        if self.seed is None or isinstance(self.seed, int):
            return row_seeds(fresh if self.seed is None else self.seed, prompts)
        seeds = [int(s) for s in self.seed]
        require(len(seeds) == len(prompts), f"seed has {len(seeds)} values for {len(prompts)} prompts")
        return row_seeds(seeds, prompts)
