"""The loop: a budget by the clock or by steps, checkpoints, and a resumed run that ends in the same weights."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from outrider.errors import require
from outrider.runtime import timer
from pretrain.folder import say
from pretrain.text import Batch, Data


@dataclass(frozen=True)
class Effort:
    """How long and how hard to train: by the clock, or by a number of steps (which repeats to the bit)."""

    rate: float
    seconds: float | None = None
    steps: int | None = None
    warmup: int = 200  # steps
    betas: tuple[float, float] = (0.9, 0.95)
    decay: float = 0.1  # of matrices that are not embeddings
    clip: float = 1.0
    seed: int = 0
    save_every: float = 60.0  # seconds
    tell_every: float = 2.5

    def __post_init__(self) -> None:
        require((self.seconds is None) != (self.steps is None), "give either seconds or steps to train for")
        require((self.seconds or self.steps or 0) > 0, "the training time must be positive")
        require(self.rate > 0, f"rate must be positive, got {self.rate}")

    def rate_at(self, step: int, hold: int, steps: int | None) -> float:
        """Up in a line, level while the speed is being measured, then half a cosine down to a fiftieth."""
        warmup = self.warmup if steps is None else min(self.warmup, max(1, steps // 5))
        if step < warmup:
            return self.rate * (step + 1) / warmup
        begin = max(warmup, hold)
        if steps is None or step < begin:
            return self.rate
        return self.rate * (0.51 + 0.49 * math.cos(math.pi * (step - begin) / max(1, steps - begin)))


@dataclass
class Progress:
    """Where a training run stands; a checkpoint holds it."""

    step: int = 0
    steps: int | None = None  # unknown while the speed is being measured
    hold: int = 0  # the step at which the rate begins to fall
    tokens: int = 0
    seconds: float = 0.0
    loss: float = math.nan  # mean over the last stretch that was reported


def fit(
    model: nn.Module,
    loss: Callable[[Batch], Tensor],
    data: Data,
    effort: Effort,
    checkpoint: Path,
    name: str,
    scale: Callable[[str], float] = lambda _: 1.0,
) -> Progress:
    """Train to the end. Killed and started again it goes on from its checkpoint; by steps it ends in the same weights.

    scale: a factor on the learning rate of each parameter, by its name.
    """
    cuda = next(model.parameters()).is_cuda
    groups = _groups(model, effort.decay, scale)
    optimiser = torch.optim.AdamW(groups, lr=effort.rate, betas=effort.betas, fused=cuda)
    now = Progress(steps=effort.steps, hold=(effort.steps or 0) // 10)
    if checkpoint.is_file():
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        now = Progress(**state["progress"])
        say(f"{name}: goes on from step {now.step}")
    model.train()
    clock, saved, told = _Clock(now, effort.seconds, cuda), now.seconds, replace(now)
    total = torch.zeros((), device=next(model.parameters()).device)  # of the losses since the last report
    while now.steps is None or now.step < now.steps:
        rate = effort.rate_at(now.step, now.hold, now.steps)
        for group in optimiser.param_groups:
            group["lr"] = rate * group["scale"]
        torch.manual_seed(effort.seed * 1_000_003 + now.step)  # dropout, too, follows from the step
        batch = data.batch(now.step)
        with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
            value = loss(batch)
        optimiser.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), effort.clip)
        optimiser.step()
        total += value.detach()
        now.step, now.tokens = now.step + 1, now.tokens + batch.tokens
        clock.tick()
        save = now.seconds - saved >= effort.save_every
        if save or now.seconds - told.seconds >= effort.tell_every or now.step == now.steps:
            now.loss = float(total) / (now.step - told.step)
            require(math.isfinite(now.loss), f"{name}: the loss became {now.loss} by step {now.step}; lower the rate")
            clock.plan_again()
            speed = (now.tokens - told.tokens) / max(1e-9, now.seconds - told.seconds)
            of = "" if now.steps is None else f" of {now.steps}"
            when = f"{now.seconds:.0f} s" + ("" if effort.seconds is None else f" of {effort.seconds:.0f}")
            say(f"{name}: step {now.step}{of}, loss {now.loss:.4f}, rate {rate:.1e}, {speed:,.0f} tokens/s, {when}")
            told = replace(now)
            total.zero_()
            if save and now.step != now.steps:
                _save(checkpoint, model, optimiser, now)
                saved = clock.read()
    _save(checkpoint, model, optimiser, now)
    return now


class _Clock:
    """The time of a run, and how many steps will fit into it once the speed is known."""

    def __init__(self, now: Progress, limit: float | None, cuda: bool) -> None:
        self.now, self.limit, self.cuda = now, limit, cuda
        self.began, self.first = timer.now() - now.seconds, now.step
        self.mark: tuple[int, float] | None = None  # step and time from which the speed is measured

    def read(self, finished: bool = False) -> float:
        """Seconds so far; ``finished`` waits for the device, which otherwise lags behind."""
        if finished and self.cuda:
            torch.cuda.synchronize()
        return timer.now() - self.began

    def tick(self) -> None:
        """A step has been given out."""
        now = self.now
        now.seconds = self.read()
        if self.limit is None:
            return
        if self.mark is None and now.step - self.first >= 5:  # the first steps choose kernels and take memory
            self.mark = now.step, self.read(finished=True)
        elif self.mark is not None and now.steps is None and now.seconds >= self.limit / 10:
            now.seconds = self.read(finished=True)
            now.hold, now.steps = now.step, self._affordable(self.mark, self.limit)

    def plan_again(self) -> None:
        """Between steps, the device having caught up: other steps than planned if the speed has changed."""
        now = self.now
        now.seconds = self.read()
        if self.limit is None or self.mark is None or now.steps is None or now.step >= now.steps:
            return
        affordable = self._affordable(self.mark, self.limit)
        if not 0.95 < now.steps / affordable < 1.05:
            now.steps = affordable

    def _affordable(self, mark: tuple[int, float], limit: float) -> int:
        pace = (self.now.seconds - mark[1]) / max(1, self.now.step - mark[0])
        return self.now.step + max(1, int((limit - self.now.seconds) / max(1e-9, pace)))


def _groups(model: nn.Module, decay: float, scale: Callable[[str], float]) -> list[dict[str, Any]]:
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        key = (scale(name), parameter.dim() >= 2 and id(parameter) not in tables)
        groups.setdefault(key, []).append(parameter)
    return [{"params": p, "scale": s, "weight_decay": decay if d else 0.0} for (s, d), p in groups.items()]


def _save(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, now: Progress) -> None:
    state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "progress": asdict(now)}
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)  # a kill leaves the old checkpoint or the new one, never half of one
