"""How much a certificate checks: prompts, drafters' gammas, seeds, draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

from outrider.core.verification.choose import VERIFIERS
from outrider.errors import require

PROMPTS = (
    "Repeat this list and add two more: apple, pear, plum, apple, pear, plum, apple, pear.",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain in simple words why the sky is blue.",
    "def fibonacci(n):\n    # return the first n Fibonacci numbers\n",
)

NEW_TOKENS = 16
"""Short texts and many of them: a wrong bit shows in any run, and prompts cost more than tokens."""

MOST_SLOTS = 8
"""Row slots a call with many prompts runs in unless told otherwise; see Decoder."""

MOST_NODES, TREE_PROMPTS = 8, 2
"""Guesses of a tree, and prompts with which trees are checked, one after another."""


@dataclass(frozen=True)
class Plan:
    """How much to check. The defaults end within minutes on two slow cores."""

    prompts: tuple[str, ...] = PROMPTS
    max_new_tokens: int | None = None  # per row and combination of drafter and gamma; None: NEW_TOKENS
    tokens_total: int | None = None  # instead: compare at least this many in all
    gammas: tuple[int, ...] = (1, 4, 8)
    seeds: tuple[int, ...] = (0, 1, 2)  # for temperature 1; rows take them in turn
    samples: int = 50_000  # draws of the rule, from the target's own distributions
    engine_samples: int = 256  # draws by the whole engine, every one of them from runs of the model
    chat: bool = True  # ask by the chat template where there is one
    coupling: str = "maximal"  # whose distribution is tested
    lenience: float = 1.0  # anything else is refused: there would be nothing to certify

    def __post_init__(self) -> None:
        require(len(self.prompts) > 0, "no prompts: the prompts file is empty")
        for name, count in (("max_new_tokens", self.max_new_tokens), ("tokens_total", self.tokens_total)):
            require(count is None or count >= 1, f"{name} must be at least 1, got {count}")
        require(
            self.max_new_tokens is None or self.tokens_total is None,
            "max_new_tokens and tokens_total each decide how long the texts are; give one of them",
        )
        require(len(self.gammas) > 0, "no gammas: give at least one, as 1,4,8 or 1-8")
        require(all(g >= 1 for g in self.gammas), f"gammas must be at least 1, got {self.gammas}")
        require(
            self.lenience == 1,
            f"lenience {self.lenience!r} is inexact by design, so there is nothing to certify; leave it out",
        )
        require(self.coupling in VERIFIERS, f"coupling must be one of {', '.join(VERIFIERS)}, got {self.coupling!r}")
        for name, count, least in (("samples", self.samples, 1000), ("engine_samples", self.engine_samples, 200)):
            require(count == 0 or count >= least, f"{name} must be 0 (none) or at least {least}, got {count}")

    def slots(self, asked: int | None) -> int:
        """Row slots of the identity checks: as asked, or what a call with these prompts would run in."""
        return asked or min(len(self.prompts), MOST_SLOTS)

    def seeded_rows(self) -> list[tuple[int, int]]:
        """(prompt, seed) of every row at temperature 1: all prompts and all seeds occur, in turn."""
        count = max(len(self.prompts), len(self.seeds)) if self.seeds else 0
        return [(i % len(self.prompts), self.seeds[i % len(self.seeds)]) for i in range(count)]

    def new_tokens(self, drafters: int) -> int:
        """Tokens per row and combination, enough for ``tokens_total`` over all of them."""
        if self.tokens_total is None:
            return self.max_new_tokens or NEW_TOKENS
        rows = len(self.prompts) + len(self.seeded_rows())
        return math.ceil(self.tokens_total / (drafters * len(self.gammas) * rows))
