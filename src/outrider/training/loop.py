"""The training loop: AdamW, a cosine schedule, checkpoints that resume to the same weights."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from outrider import timer
from outrider.errors import BadOption, require
from outrider.training.data import Corpus
from outrider.training.objectives import OBJECTIVES, fused, known, objective_at
from outrider.training.order import STRIDE, Order
from outrider.training.students import Measured, Student


@dataclass(frozen=True)
class Budget:
    """How long and how hard to train. Everything that decides the result is here."""

    tokens: int  # of text, repeated as needed
    batch: int = 16  # rows of full length per step, or as many shorter ones as have as many tokens
    rate: float = 1e-3
    warmup: float = 0.03  # share of the steps
    objective: str = "kl"
    seed: int = 0
    clip: float = 1.0
    on_policy: float = 0.0  # share of the text's tokens that are replaced by the draft's own guesses

    def __post_init__(self) -> None:
        require(self.tokens > 0, f"tokens must be positive, got {self.tokens}")
        require(self.batch > 0, f"batch must be positive, got {self.batch}")
        require(0 <= self.on_policy <= 1, f"on_policy must be a share from 0 to 1, got {self.on_policy}")
        require(
            known(self.objective),
            f"objective must be one of {', '.join(OBJECTIVES)}, or several as in kl+kl+tv, got {self.objective!r}",
        )

    def steps(self, order: Order) -> int:
        return max(1, int(self.tokens / order.tokens_per_step))

    def rate_at(self, step: int, steps: int) -> float:
        """Linear warm-up, then half a cosine down to a fiftieth."""
        warm = max(1, int(self.warmup * steps))
        if step < warm:
            return self.rate * (step + 1) / warm
        return self.rate * (0.51 + 0.49 * math.cos(math.pi * (step - warm) / max(1, steps - warm)))


@dataclass(frozen=True)
class Report:
    """What the loop tells while it runs."""

    step: int
    steps: int
    loss: float
    measured: Measured | None
    tokens_per_second: float


def train(
    student: Student,
    corpus: Corpus,
    held_out: Corpus,
    budget: Budget,
    checkpoint: Path | None = None,
    report: Callable[[Report], None] = lambda _: None,
    every: int = 100,
) -> Report:
    """Train to the end of the budget. Killed at any moment and started again, it ends with the same weights.

    The order of the text is a function of the seed and the step, and a checkpoint holds the optimiser too.
    """
    order = Order(corpus, budget.batch, budget.seed)
    steps = budget.steps(order)
    optimiser = torch.optim.AdamW(student.module.parameters(), lr=budget.rate, betas=(0.9, 0.95), weight_decay=0.01)
    first = _resume(student, optimiser, budget, checkpoint)
    cuda = next(student.module.parameters()).is_cuda
    done = measure(student, held_out, budget.batch) if first >= steps else None  # killed after the last step
    last, began = Report(first, steps, math.nan, done, 0.0), timer.now()
    for step in range(first, steps):
        for group in optimiser.param_groups:
            group["lr"] = budget.rate_at(step, steps)
        with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
            batch = mixed(student, corpus.take(order.rows(step), STRIDE), budget, step)
            objective = objective_at(budget.objective, step / steps)
            loss = student.loss(batch, fused(objective) if cuda else objective)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(student.module.parameters(), budget.clip)
        optimiser.step()
        if (step + 1) % every == 0 or step + 1 == steps:
            total = float(loss.detach())
            require(math.isfinite(total), f"the loss became {total} at step {step + 1}; lower --rate", BadOption)
            rate = (step + 1 - first) * order.tokens_per_step / (timer.now() - began)
            last = Report(step + 1, steps, total, measure(student, held_out, budget.batch), rate)
            report(last)
            _save(student, optimiser, budget, checkpoint, step + 1)
    return last


def mixed(student: Student, batch: Corpus, budget: Budget, step: int) -> Corpus:
    """On-policy mixing: some tokens become guesses of the draft's own, and the target judges what follows them.

    A draft's later guesses stand behind its earlier ones, which text of the target's alone never shows it.
    """
    if budget.on_policy == 0:
        return batch
    random = torch.Generator().manual_seed(budget.seed * 1_000_003 + step)
    guesses = student.draw(batch, random)
    chosen = (torch.rand(guesses.shape, generator=random) < budget.on_policy) & (guesses >= 0)
    return Corpus(torch.where(chosen, guesses, batch.tokens), batch.sources, batch.written)


def measure(student: Student, held_out: Corpus, batch: int) -> Measured:
    """Quality over all held-out text."""
    student.module.eval()
    parts = []
    cuda = next(student.module.parameters()).is_cuda
    for start in range(0, len(held_out), batch):
        with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
            parts.append(student.measure(held_out.take(slice(start, start + batch))))
    student.module.train()

    def mean(name: str) -> list[float]:
        return [sum(values) / len(values) for values in zip(*(getattr(p, name) for p in parts), strict=True)]

    return Measured(mean("overlap"), mean("agreement"))


def _save(student: Student, optimiser: torch.optim.Optimizer, budget: Budget, path: Path | None, step: int) -> None:
    if path is None:
        return
    state = {"step": step, "budget": asdict(budget), "student": student.module.state_dict()}
    temporary = path.with_suffix(".tmp")
    torch.save({**state, "optimiser": optimiser.state_dict()}, temporary)
    os.replace(temporary, path)  # a kill leaves the old checkpoint or the new one, never half of one


def _resume(student: Student, optimiser: torch.optim.Optimizer, budget: Budget, path: Path | None) -> int:
    if path is None or not path.is_file():
        return 0
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    require(
        state["budget"] == asdict(budget),
        f"the checkpoint in {path.parent} was made with other settings: {state['budget']}; "
        "use them again, or another --out",
    )
    student.module.load_state_dict(state["student"])
    optimiser.load_state_dict(state["optimiser"])
    return int(state["step"])
