"""The certificate as a whole: what is checked, in which order, and the verdict."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import torch

from outrider.certificate.identity import IdentityResult, Rehearsed, compare
from outrider.certificate.invariance import InvarianceResult, invariance
from outrider.certificate.law import LawResult, laws
from outrider.drafters import Nothing, built_in
from outrider.errors import require
from outrider.llm import LLM, Output
from outrider.trace import finite
from outrider.types import Drafter
from outrider.verification.choose import VERIFIERS

PROMPTS = (
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain in simple words why the sky is blue.",
    "Repeat this list and add two more: apple, pear, plum, apple, pear, plum, apple, pear.",
    "def fibonacci(n):\n    # return the first n Fibonacci numbers\n",
)


@dataclass(frozen=True)
class Plan:
    """How much to check. The defaults end within minutes on two cores."""

    prompts: tuple[str, ...] = PROMPTS
    max_new_tokens: int = 24
    gammas: tuple[int, ...] = (1, 4, 8)
    seeds: tuple[int, ...] = (0,)
    samples: int = 2048  # draws per law test
    rows: int = 128  # of them at a time
    chat: bool = True  # ask by the chat template where there is one
    coupling: str = "maximal"  # whose law is tested
    lenience: float = 1.0  # anything else is refused: there would be nothing to certify

    def __post_init__(self) -> None:
        require(len(self.prompts) > 0, "no prompts: the prompts file is empty")
        require(self.max_new_tokens >= 1, f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        require(all(g >= 1 for g in self.gammas), f"gammas must be at least 1, got {self.gammas}")
        require(
            self.lenience == 1,
            f"lenience {self.lenience!r} is inexact by design, so there is nothing to certify; leave it out",
        )
        require(
            self.coupling in VERIFIERS,
            f"coupling must be one of {', '.join(VERIFIERS)}, got {self.coupling!r}",
        )
        require(
            self.samples >= 200, f"samples must be at least 200 for the law test to say anything, got {self.samples}"
        )


@dataclass
class Certificate:
    """Everything that was found. Complete only if ``finished``."""

    target: str
    drafter: str
    conditions: dict[str, Any]
    greedy: list[IdentityResult] = field(default_factory=list)
    gumbel: list[IdentityResult] = field(default_factory=list)
    law: list[LawResult] = field(default_factory=list)
    invariance: list[InvarianceResult] = field(default_factory=list)
    seconds: float = 0.0
    finished: bool = False

    @property
    def results(self) -> list[Any]:
        return [*self.greedy, *self.gumbel, *self.law, *self.invariance]

    @property
    def passed(self) -> bool:
        return bool(self.results) and all(r.passed for r in self.results)

    @property
    def tokens(self) -> int:
        return sum(r.tokens for r in (*self.greedy, *self.gumbel))

    @property
    def mismatches(self) -> int:
        return sum(r.mismatches for r in (*self.greedy, *self.gumbel))

    def to_json(self) -> dict[str, Any]:
        whole = asdict(self)
        for name in ("greedy", "gumbel", "law", "invariance"):
            whole[name] = [
                {**entry, "passed": r.passed} for entry, r in zip(whole[name], getattr(self, name), strict=True)
            ]
        totals = {"passed": self.passed, "tokens_compared": self.tokens, "mismatched_tokens": self.mismatches}
        return {**totals, **finite(whole)}


def conditions(llm: LLM) -> dict[str, Any]:
    """What the certificate holds for: same machine, same software, same shapes."""
    device = llm.target.model.device
    return {
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.processor() or platform.machine(),
        "dtype": str(llm.target.model.dtype).removeprefix("torch."),
        "width": llm.width,
        "slots": llm.slots or 1,
        "exact": llm.exact,
        "attention": str(llm.target.model.config._attn_implementation),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def certify(llm: LLM, plan: Plan, certificate: Certificate, progress: Callable[[str, float], None]) -> Certificate:
    """Fill in the certificate step by step; interrupted at any moment, what is in it is true."""
    began = time.perf_counter()
    require(max(plan.gammas) < llm.width, f"gammas up to {max(plan.gammas)} need --width {max(plan.gammas) + 1}")
    engine = LLM(llm.target, llm.drafter, width=llm.width, slots=llm.slots or 1, exact=llm.exact)
    prompts = [_ids(engine, text, plan.chat) for text in plan.prompts]
    try:
        progress("row invariance of the kernels", 0.0)
        certificate.invariance = invariance(engine, prompts, max(4, engine.slots or 1))
        _identity(engine, plan, prompts, certificate.greedy, None, progress)
        for seed in plan.seeds:
            _identity(engine, plan, prompts, certificate.gumbel, seed, progress)
        certificate.law = laws(
            engine, prompts, VERIFIERS[plan.coupling], plan.samples, plan.rows,
            lambda share: progress(f"law of {plan.coupling} coupling", share),
        )  # fmt: skip
        certificate.finished = True
    finally:
        certificate.seconds = time.perf_counter() - began
    return certificate


def _identity(
    llm: LLM, plan: Plan, prompts: Sequence[list[int]], results: list[IdentityResult], seed: int | None,
    progress: Callable[[str, float], None],
) -> None:  # fmt: skip
    what = "temperature 0" if seed is None else f"temperature 1, seed {seed}"
    options: dict[str, Any] = {"max_new_tokens": plan.max_new_tokens, "eos": ()}
    if seed is not None:
        options |= {"temperature": 1.0, "coupling": "gumbel", "seed": seed}
    progress(f"plain decoding at {what}", 0.0)
    plain: list[Output] = LLM(
        llm.target, Nothing(), width=llm.width, slots=llm.slots, exact=llm.exact
    ).generate(prompts, **options)  # fmt: skip
    gammas = plan.gammas
    drafters = _drafters(llm, [(p, o.tokens) for p, o in zip(prompts, plain, strict=True)])
    total = len(drafters) * len(gammas)
    for number, result in enumerate(compare(llm, drafters, gammas, prompts, plain, options, seed), 1):
        results.append(result)
        progress(f"bit identity at {what}", number / total)


def _drafters(llm: LLM, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Drafter]:
    """The user's drafter, the built-in ones, and rehearsed texts that make every outcome occur."""
    known = built_in()
    chosen: list[Drafter] = [known["copy"], known["ngram"], known["uniform"]]
    chosen += [Rehearsed(texts, spoilt) for spoilt in (0.0, 0.3)]
    if llm.drafter.name not in {d.name for d in chosen} and llm.drafter.name != "none":
        chosen.insert(0, llm.drafter)
    return chosen


def _ids(llm: LLM, text: str, chat: bool) -> list[int]:
    if chat and getattr(llm.tokenizer, "chat_template", None):
        return llm.chat_prompt([{"role": "user", "content": text}])
    return list(llm.tokenizer.encode(text))
