"""What ``outrider distill`` shows: the stage it is in with the time left, what was kept, and a summary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from outrider.runtime import timer

LINE_SECONDS = 10.0
"""Between two lines of progress where there is no terminal to draw a bar on."""


def duration(seconds: float) -> str:
    """``45 s``, ``3 min``, ``2 h 05 min``: as much as one wants to know of a time to wait."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


class Stages:
    """One line for the stage a run is in: a bar in a terminal, elsewhere a line every few seconds."""

    def __init__(self, console: Console, now: Callable[[], float] = timer.now) -> None:
        self.stage = "loading"
        self._console, self._now = console, now
        self._shown: tuple[str, float] | None = None  # the stage and time of the last line
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[detail]}"),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task(self.stage, total=None, detail="")

    def __enter__(self) -> Stages:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, stage: str, detail: str = "", share: float | None = None) -> None:
        """``share`` None: how far it has come is not known."""
        self.stage = stage
        self._bar.update(self._task, description=stage, completed=share or 0.0, total=share and 1.0, detail=detail)
        if self._console.is_terminal:
            return
        if self._shown is None or self._shown[0] != stage or self._now() - self._shown[1] >= LINE_SECONDS:
            self._shown = (stage, self._now())
            self._console.print(f"{stage}: {detail}" if detail else stage, markup=False)

    def writing(self, text: Any) -> None:
        detail = f"{text.tokens:,} of {text.wanted:,} tokens" + _left(text.seconds_left)
        self.show("writing text", detail, text.tokens / text.wanted)

    def training(self, report: Any) -> None:
        alpha = report.measured
        seen = "" if alpha is None else f", held-out alpha {alpha.agreement[0]:.2f} (t=0) {alpha.overlap[0]:.2f} (t=1)"
        detail = f"step {report.step:,} of {report.steps:,}, loss {report.loss:.3f}{seen}{_left(report.seconds_left)}"
        self.show("training", detail, report.step / report.steps)

    def resuming(self, line: str) -> None:
        self._console.print(f"resuming: {line}", markup=False)


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f", {duration(seconds)} left"


def kept(out: Path, stage: str, command: str) -> str:
    """After Ctrl-C: what was kept, where, and the command that goes on."""
    from outrider.training.distill import kept_so_far

    if stage == "measuring":
        what = f"the draft in {out} is finished, its card is not measured"
    else:
        found = kept_so_far(out)
        what = f"{found} kept in {out / 'training'}" if found else "nothing was written yet"
    return f"interrupted while {stage}: {what}. Go on with:\n  {command}"


def summary(target: str, out: Path, last: Any) -> str:
    """What came out, in a few lines."""
    loss = "" if last.loss != last.loss else f", loss {last.loss:.3f}"
    lines = [f"Draft in {out}: {last.steps:,} steps on {last.text_tokens:,} tokens of text{loss}."]
    if last.steps < FEW_STEPS:
        lines.append(f"{last.steps:,} steps are few: give it more --seconds or --tokens, or a smaller --batch.")
    if last.measured is not None:
        lines += ["", "Acceptance (alpha) on text that was not trained on:", "  guess   t=0    t=1"]
        both = zip(last.measured.agreement, last.measured.overlap, strict=True)
        lines += [f"  {k:<5} {zero:.3f}  {one:.3f}" for k, (zero, one) in enumerate(both, 1)]
    words = ["outrider generate", f"--target {target} --draft {out}", '"Name three rivers."']
    return "\n".join([*lines, "", f"Card: {out / 'README.md'}", f"Use it: {' '.join(words)}"])


FEW_STEPS = 100
