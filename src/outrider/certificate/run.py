"""The certificate as a whole: what is checked, in which order, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from outrider.certificate.conditions import conditions
from outrider.certificate.distribution import NEVER_KEPT, DistributionResult, distribution_tests
from outrider.certificate.identity import IdentityResult, Rehearsed, Rows, compare
from outrider.certificate.invariance import InvarianceResult, invariance
from outrider.certificate.plan import MOST_NODES, TREE_PROMPTS, Plan
from outrider.core.model_facts import facts_of
from outrider.core.protocols import Drafter
from outrider.core.verification.choose import VERIFIERS
from outrider.drafters import Nothing, built_in
from outrider.errors import NotForkable, require
from outrider.llm import LLM
from outrider.models.settings import has_chat_template
from outrider.output import Output
from outrider.runtime import timer
from outrider.trace import finite


@dataclass
class Certificate:
    """Everything that was found. Complete only if ``finished``."""

    target: str
    drafter: str
    conditions: dict[str, Any] = field(default_factory=dict)
    greedy: list[IdentityResult] = field(default_factory=list)
    gumbel: list[IdentityResult] = field(default_factory=list)
    trees: list[IdentityResult] = field(default_factory=list)  # of guesses, at temperature 0 and 1
    distribution: list[DistributionResult] = field(default_factory=list)
    invariance: list[InvarianceResult] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # parts that were not run, and why
    seconds: float = 0.0
    finished: bool = False

    @property
    def results(self) -> list[Any]:
        return [result for part in self._parts().values() for result in part]

    def _parts(self) -> dict[str, Sequence[Any]]:
        """In the order they are run in."""
        return {
            "invariance": self.invariance,
            "greedy": self.greedy,
            "gumbel": self.gumbel,
            "trees": self.trees,
            "distribution": self.distribution,
        }

    @property
    def verdict(self) -> str:
        """failed if anything did; unfinished if interrupted; inconclusive if a test had no power; else passed."""
        conclusive: list[Any] = [
            *self.invariance,
            *self.greedy,
            *self.gumbel,
            *self.trees,
            *(r for r in self.distribution if not r.inconclusive),
        ]
        if not all(r.passed for r in conclusive):
            return "failed"
        if not self.finished:
            return "unfinished"
        return "inconclusive" if any(r.inconclusive for r in self.distribution) else "passed"

    @property
    def tokens(self) -> int:
        return sum(r.tokens for r in (*self.greedy, *self.gumbel, *self.trees))

    @property
    def mismatches(self) -> int:
        return sum(r.mismatches for r in (*self.greedy, *self.gumbel, *self.trees))

    def to_json(self) -> dict[str, Any]:
        whole = asdict(self)
        for name, part in self._parts().items():
            whole[name] = [{**entry, "passed": r.passed} for entry, r in zip(whole[name], part, strict=True)]
        for entry, r in zip(whole["distribution"], self.distribution, strict=True):
            entry["inconclusive"] = r.inconclusive
        totals = {
            "verdict": self.verdict,
            "passed": self.verdict == "passed",
            "tokens_compared": self.tokens,
            "mismatched_tokens": self.mismatches,
        }
        return {**totals, **finite(whole)}


class Progress:
    """Shares of the whole; a part's steps take about the time of one drafter and gamma each."""

    def __init__(self, show: Callable[[str, float], None], steps: float) -> None:
        self.show, self.steps = show, steps
        self.what, self.done, self.current = "", 0.0, 0.0

    def begin(self, what: str, steps: float) -> None:
        self.done += self.current
        self.what, self.current = what, steps
        self(0.0)

    def __call__(self, share: float) -> None:
        self.show(self.what, min(1.0, (self.done + share * self.current) / self.steps))


def certify(llm: LLM, plan: Plan, certificate: Certificate, show: Callable[[str, float], None]) -> Certificate:
    """Fill in the certificate step by step; interrupted at any moment, what is in it is true."""
    began = timer.now()
    require(max(plan.gammas) < llm.width, f"gammas up to {max(plan.gammas)} need --width {max(plan.gammas) + 1}")
    slots = plan.slots(llm.slots)
    engine, single = (
        LLM(llm.target, llm.drafter, width=llm.width, slots=n, exact=llm.exact, graphs=llm.graphs) for n in (slots, 1)
    )
    prompts = [_ids(engine, text, plan.chat) for text in plan.prompts]
    combinations = len(_drafters(llm, ())) * len(plan.gammas)
    new_tokens = plan.new_tokens(len(_drafters(llm, ())))
    _check_room(llm, prompts, new_tokens)
    certificate.conditions = conditions(llm, slots) | {"prompts": len(prompts), "new_tokens": new_tokens}
    certificate.left_out = _left_out(llm, plan)
    trees = len(_tree_drafters(llm)) if runs_trees(llm) else 0
    progress = Progress(show, 2 * combinations + 4 + 3 + trees + 6)
    try:
        progress.begin("row invariance of the kernels", 4)
        certificate.invariance = invariance(single, prompts, max(4, slots))
        progress.begin("bit identity at temperature 0", combinations)
        greedy = Rows(prompts, new_tokens)
        texts = _identity(engine, plan, greedy, certificate.greedy, progress)
        if llm.slots is None and slots > 1:  # one prompt alone is the commonest call, and has another shape
            progress.begin("bit identity in one slot", 3)
            _alone(single, plan, greedy, certificate.greedy, progress)
        if plan.seeds:
            numbers, seeds = zip(*plan.seeded_rows(), strict=True)
            progress.begin("bit identity at temperature 1", combinations)
            seeded = Rows([prompts[i] for i in numbers], new_tokens, seeds)
            texts = _identity(engine, plan, seeded, certificate.gumbel, progress)
        if runs_trees(llm):
            progress.begin("bit identity of trees of guesses", trees)
            _trees(single, plan, prompts[:TREE_PROMPTS], new_tokens, certificate, progress)
        progress.begin(f"distribution under {plan.coupling} coupling", 6)
        certificate.distribution = distribution_tests(
            engine, texts[:8], VERIFIERS[plan.coupling], (plan.samples, plan.engine_samples), progress
        )
        certificate.finished = True
    finally:
        certificate.seconds = timer.now() - began
    return certificate


def _identity(
    llm: LLM, plan: Plan, rows: Rows, results: list[IdentityResult], progress: Progress
) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Plain decoding once, then every drafter and gamma against it -> prompts and plain texts."""
    plain = _plain(llm, rows)
    texts: list[tuple[Sequence[int], Sequence[int]]] = [(p, o.tokens) for p, o in zip(rows.prompts, plain, strict=True)]
    drafters = _drafters(llm, texts)
    for number, result in enumerate(compare(llm, rows, plain, drafters, plan.gammas), 1):
        results.append(result)
        progress(number / (len(drafters) * len(plan.gammas)))
    return texts


def _alone(llm: LLM, plan: Plan, rows: Rows, results: list[IdentityResult], progress: Progress) -> None:
    """Every drafter once on the first prompt, in a single slot, with the gammas in turn."""
    one = Rows(rows.prompts[:1], rows.max_new_tokens)
    plain = _plain(llm, one)
    drafters = _drafters(llm, [(one.prompts[0], plain[0].tokens)])
    for number, drafter in enumerate(drafters):
        gamma = plan.gammas[-1 - number % len(plan.gammas)]
        results.extend(compare(llm, one, plain, [drafter], [gamma]))
        progress((number + 1) / len(drafters))


def runs_trees(llm: LLM) -> bool:
    return facts_of(llm.target.model).runs_trees and llm.width > 2


def _trees(
    llm: LLM,
    plan: Plan,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    certificate: Certificate,
    progress: Progress,
) -> None:
    """Every drafter whose sessions can be forked, with trees of as many levels as the gammas say, in turn."""
    nodes = min(MOST_NODES, llm.width - 1)
    temperatures = [Rows(prompts, new_tokens)]
    if plan.seeds:
        seeds = tuple(plan.seeds[number % len(plan.seeds)] for number in range(len(prompts)))
        temperatures.append(Rows(prompts, new_tokens, seeds))
    drafters, cannot = _tree_drafters(llm), list[str]()
    for half, rows in enumerate(temperatures):
        plain = _plain(llm, rows)
        for number, drafter in enumerate(drafters):
            levels = max(1, min(nodes - 1, plan.gammas[-1 - number % len(plan.gammas)]))
            try:
                certificate.trees.extend(compare(llm, rows, plain, [drafter], [levels], nodes))
            except NotForkable:
                cannot.append(drafter.name)
            progress((half + (number + 1) / len(drafters)) / len(temperatures))
    certificate.left_out += [f"trees of guesses by {name}, which cannot draft them" for name in dict.fromkeys(cannot)]
    if not any(result.branched for result in certificate.trees):
        certificate.left_out.append("trees that branch: no drafter here had several candidates for a position")


def _tree_drafters(llm: LLM) -> list[Drafter]:
    return [one for one in _drafters(llm, ()) if not isinstance(one, Rehearsed)]


def _plain(llm: LLM, rows: Rows) -> list[Output]:
    return rows.generate(
        LLM(llm.target, Nothing(), width=llm.width, slots=llm.slots, exact=llm.exact, graphs=llm.graphs)
    )


def _drafters(llm: LLM, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Drafter]:
    """The user's drafter, the built-in ones, and rehearsed texts that make every outcome occur."""
    chosen = [drafter for name, drafter in built_in().items() if name not in ("auto", "none")]
    chosen += [Rehearsed(texts, spoilt) for spoilt in (0.0, 0.3)]
    if llm.drafter.name not in {d.name for d in chosen} and llm.drafter.name != "none":
        chosen.insert(0, llm.drafter)
    return chosen


def _left_out(llm: LLM, plan: Plan) -> list[str]:
    drafts = llm.drafter.name not in NEVER_KEPT
    run = {
        "temperature 1": plan.seeds,
        "distribution test of the rule": plan.samples,
        f"distribution test of the engine{'' if drafts else f' with draft {llm.drafter.name}'}": plan.engine_samples
        and drafts,
        "trees of guesses, which this engine does not run": runs_trees(llm),
    }
    return [part for part, wanted in run.items() if not wanted]


def _check_room(llm: LLM, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
    limit = llm.target.model.max_length
    longest = 1 if llm.target.model.encoder_decoder else max(map(len, prompts))
    require(
        limit is None or longest + new_tokens <= limit,
        f"{new_tokens} new tokens after a prompt of {longest} do not fit this model's limit of {limit}; "
        "give more or shorter prompts by --prompts, or compare fewer tokens",
    )


def _ids(llm: LLM, text: str, chat: bool) -> list[int]:
    if chat and has_chat_template(llm.tokenizer):
        return llm.chat_prompt([{"role": "user", "content": text}])
    return list(llm.tokenizer.encode(text))
