"""The training loop: a cosine schedule, checkpoints that resume to the same weights."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.errors import BadOption, require
from outrider.runtime import timer
from outrider.training.data import Corpus
from outrider.training.objectives import OBJECTIVES, fused, known, objective_at
from outrider.training.optimisers import ADAMW, OPTIMISERS, Optimiser
from outrider.training.order import STRIDE, Order
from outrider.training.progress import Now, uninterrupted
from outrider.training.students import Measured, Student


@dataclass(frozen=True)
class Budget:
    """How long and how hard to train. Everything that decides the result is here."""

    tokens: int  # of text, repeated as needed
    seconds: float | None = None  # train so long, whatever ``tokens`` says; the clock then decides the steps
    batch: int = 16  # rows of full length per step, or as many shorter ones as have as many tokens
    rate: float = 1e-3
    warmup: float = 0.03  # share of the steps
    objective: str = "kl"
    seed: int = 0
    clip: float = 1.0
    on_policy: float = 0.0  # share of the text's tokens that are replaced by the draft's own guesses
    optimizer: str = ADAMW

    def __post_init__(self) -> None:
        require(self.tokens > 0, f"tokens must be positive, got {self.tokens}")
        require(0 < self.rate < math.inf, f"rate must be above 0, got {self.rate}")
        require(self.batch > 0, f"batch must be positive, got {self.batch}")
        require(0 <= self.on_policy <= 1, f"on_policy must be a share from 0 to 1, got {self.on_policy}")
        require(
            self.optimizer in OPTIMISERS,
            f"optimizer must be one of {', '.join(OPTIMISERS)}, got {self.optimizer!r}",
        )
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
class TrainingReport:
    """What the loop tells while it runs."""

    step: int
    steps: int  # expected, where a clock decides
    loss: float
    measured: Measured | None
    tokens_per_second: float
    seconds_left: float | None = None
    text_tokens: int = 0  # of the text that is learnt from


SAVE_SECONDS = 60.0
"""A checkpoint is written after so many seconds, and after every ``every`` steps."""

REPORT_SECONDS = 1.0


def train(
    student: Student,
    corpus: Corpus,
    held_out: Corpus,
    budget: Budget,
    checkpoint: Path | None = None,
    report: Callable[[TrainingReport], None] = lambda _: None,
    every: int = 100,
    now: Now = timer.now,
) -> TrainingReport:
    """Train to the end of the budget. Stopped at any moment and started again, it ends with the same weights.

    The order of the text is a function of the seed and the step, and a checkpoint holds the optimiser too. Ctrl-C
    writes one at once. With a limit in seconds it ends in time instead, having done at least one step.
    """
    order = Order(corpus, budget.batch, budget.seed)
    optimiser = Optimiser(budget.optimizer, student.module, budget.rate)
    first, spent = _resume(student, optimiser, budget, checkpoint)
    pace = _Pace(budget, order, first, spent, now)
    steps = pace.steps(first)
    done = measure(student, held_out, budget.batch) if first >= steps else None  # stopped after the last step
    text = int((corpus.tokens >= 0).sum())
    last = TrainingReport(first, steps, math.nan, done, 0.0, None, text)
    step, loss, said, saved = first, torch.tensor(0.0), now(), now()
    try:
        while step < steps:
            loss = _learn(student, optimiser, corpus.take(order.rows(step), STRIDE), budget, (step, steps))
            with uninterrupted():
                optimiser.step(budget.rate_at(step, steps))
                step += 1
            steps = pace.steps(step)
            whole = step % every == 0 or step >= steps
            if not whole and now() - said < REPORT_SECONDS:
                continue
            total = float(loss)
            require(math.isfinite(total), f"the loss became {total} at step {step}; lower --rate", BadOption)
            if whole or now() - saved >= SAVE_SECONDS:
                save_checkpoint(student, optimiser, budget, checkpoint, pace.at(step))
                saved = now()
            quality = measure(student, held_out, budget.batch) if whole else last.measured
            last, said = TrainingReport(step, steps, total, quality, *pace.speed(step), text), now()
            report(last)
    except KeyboardInterrupt:
        if step > first and math.isfinite(float(loss)):
            save_checkpoint(student, optimiser, budget, checkpoint, pace.at(step))
        raise
    return last


def _learn(
    student: Student, optimiser: Optimiser, batch: Corpus, budget: Budget, place: tuple[int, int]
) -> torch.Tensor:
    """The gradient of one step, and its loss. Weights are not changed yet. ``place``: the step, and steps in all."""
    step, steps = place
    cuda = next(student.module.parameters()).is_cuda
    with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
        objective = objective_at(budget.objective, step / steps)
        loss = student.loss(mixed(student, batch, budget, step), fused(objective) if cuda else objective)
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(student.module.parameters(), budget.clip)
    return loss.detach()


class _Pace:
    """Steps by the tokens of the budget, or by its seconds and what steps have taken so far."""

    def __init__(self, budget: Budget, order: Order, first: int, spent: float, now: Now) -> None:
        self._limit, self._first, self._spent, self._now = budget.seconds, first, spent, now
        self._fixed, self._per_step = budget.steps(order), order.tokens_per_step
        self._began = now()

    @property
    def seconds(self) -> float:
        """Of training, with those of earlier runs."""
        return self._spent + self._now() - self._began

    def steps(self, step: int) -> int:
        """In all, as far as is known after ``step`` of them."""
        if self._limit is None:
            return self._fixed
        if step == 0:
            return GUESSED_STEPS
        return step + max(0, int((self._limit - self.seconds) * step / max(self.seconds, 1e-9)))

    def at(self, step: int) -> dict[str, float]:
        """For a checkpoint."""
        return {"step": step, "steps": self.steps(step), "seconds": self.seconds}

    def speed(self, step: int) -> tuple[float, float]:
        """Tokens a second in this run, and seconds left."""
        took = max(self.seconds - self._spent, 1e-9)
        left = (self.steps(step) - step) * took / (step - self._first)
        return (step - self._first) * self._per_step / took, left


GUESSED_STEPS = 1000
"""In all, before the first step has shown how long one takes: for the learning rate of that step."""


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


def save_checkpoint(
    student: Student, optimiser: Optimiser, budget: Budget, path: Path | None, place: dict[str, float]
) -> None:
    if path is None:
        return
    state = {**place, "budget": asdict(budget), "student": student.module.state_dict()}
    temporary = path.with_suffix(".tmp")
    torch.save({**state, "optimiser": optimiser.state_dict()}, temporary)
    os.replace(temporary, path)  # a kill leaves the old checkpoint or the new one, never half of one


def _resume(student: Student, optimiser: Optimiser, budget: Budget, path: Path | None) -> tuple[int, float]:
    """Steps that are done, and the seconds they took."""
    if path is None or not path.is_file():
        return 0, 0.0
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    require(
        state["budget"] == asdict(budget),
        f"the checkpoint in {path.parent} was made with other settings: {state['budget']}; "
        "use them again, or another --out",
    )
    student.module.load_state_dict(state["student"])
    optimiser.load_state_dict(state["optimiser"])
    return int(state["step"]), float(state["seconds"])
