"""Distillation of a target into a draft in a directory: data, student, training, model card."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from outrider.drafters.head import Head, HeadDrafter
from outrider.drafters.model import ModelDrafter
from outrider.drafters.published import PublishedDrafter
from outrider.errors import BadOption, require
from outrider.models.hub.loading import Loaded
from outrider.models.transformers import trimmed
from outrider.models.transformers.fingerprint import fingerprint
from outrider.models.transformers.model import HuggingFaceModel
from outrider.runtime import timer
from outrider.training import eagle3_shape, student_models
from outrider.training.answers import SelfText, self_written
from outrider.training.data import Corpus, documents, frequent_tokens, from_texts, text_size
from outrider.training.distill_plan import DistillPlan
from outrider.training.head_shape import head_shape, started
from outrider.training.head_students import Eagle3Student, HeadStudent
from outrider.training.loop import TrainingReport, train
from outrider.training.progress import Gathering, Now, Written
from outrider.training.rounds import Rounds
from outrider.training.sources import examples, from_examples
from outrider.training.students import ModelStudent, Student, Vocabulary
from outrider.training.teacher import Teacher

WRITING_SHARE = 0.5
"""Of ``DistillPlan.seconds``: what writing text may take at most. Training has the rest."""


class ProgressListener(Protocol):
    """Is told how far a run has come."""

    def writing(self, text: Written) -> None:
        """Text is being gathered."""

    def training(self, report: TrainingReport) -> None:
        """Training has reached a step."""

    def resuming(self, line: str) -> None:
        """An earlier run has done this much."""


class NoProgress:
    """Reports nothing."""

    def writing(self, text: Written) -> None: ...

    def training(self, report: TrainingReport) -> None: ...

    def resuming(self, line: str) -> None: ...


def distill(
    target: Loaded, out: Path, plan: DistillPlan, progress: ProgressListener | None = None, now: Now = timer.now
) -> TrainingReport:
    """Train a draft for ``target`` into ``out``. Run again after Ctrl-C or a kill, it goes on where it stopped."""
    progress = progress or NoProgress()
    work = prepare(out, plan)
    _same_target(work, fingerprint(target.model))
    if plan.layers:  # refused before text is written, which may take hours
        student_models.layer_lists(plan.layers, target.transformers_model)
    if (kept := kept_so_far(out)) is not None:
        progress.resuming(kept)
    with _memory_explained(plan, work):
        corpus = _corpus(target, plan, work, progress, now)
        training, held_out = corpus.split(max(2, min(256, len(corpus) // 20)))
        torch.manual_seed(plan.budget.seed)
        tokens = _tokens(target, plan, training)
        budget = replace(plan.budget, seconds=None if plan.seconds is None else max(0.0, plan.seconds - _spent(work)))
        torch.manual_seed(budget.seed)
        student, save = make_student(target, plan, tokens)
        last = train(student, training, held_out, budget, work / "checkpoint.pt", progress.training, now=now)
    save(out)
    return last


def kept_so_far(out: Path) -> str | None:
    """What a run has left in ``out``: ``12,288 tokens of text, step 300 of 1,000``. None: nothing yet."""
    work = out / "training"
    text, checkpoint = work / "text.safetensors", work / "checkpoint.pt"
    if checkpoint.is_file():
        state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        return f"{text_size(text):,} tokens of text, step {state['step']:,} of {state['steps']:,}"
    tokens = text_size(text) if text.is_file() else Rounds(work / "rounds").tokens()
    return f"{tokens:,} tokens of text" if tokens else None


@contextmanager
def _memory_explained(plan: DistillPlan, work: Path) -> Iterator[None]:
    """Too little memory is a matter of settings, not a stack trace."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, (torch.OutOfMemoryError, MemoryError)) and "allocate memory" not in str(error):
            raise
        raise BadOption(
            f"not enough memory for {plan.budget.batch} examples of {plan.block} tokens at a time, or "
            f"{plan.generate_batch} written at a time: lower --batch, --block or --generate-batch in another --out "
            f"(text that was gathered can be used again: --text {work / 'text.safetensors'})"
        ) from error


def _same_target(work: Path, name: str) -> None:
    """A resumed run must have the target it began with."""
    kept = work / "target.txt"
    if kept.is_file() and kept.read_text(encoding="utf-8") != name:
        raise BadOption(f"{work.parent} holds a draft in training for another target; choose another --out")
    kept.write_text(name, encoding="utf-8")


def _spent(work: Path) -> float:
    """Seconds that writing has taken, over all runs."""
    kept = work / "clock.json"
    return float(json.loads(kept.read_text(encoding="utf-8"))["writing"]) if kept.is_file() else 0.0


def prepare(out: Path, plan: DistillPlan) -> Path:
    """The working directory inside ``out``; refuses to overwrite anything that is not this very run."""
    work = out / "training"
    settings = json.loads(json.dumps(asdict(plan)))
    if out.exists() and any(out.iterdir()):
        known = work / "plan.json"
        if not known.is_file():
            raise BadOption(f"output directory {out} exists and is not empty; choose another --out or empty it")
        text = work / "text.safetensors"
        again = f" (its text can be used again: --text {text})" if text.is_file() else ""
        if json.loads(known.read_text(encoding="utf-8")) != settings and kept_so_far(out) is not None:
            raise BadOption(f"{out} holds a run with other settings (see {known}); choose another --out{again}")
    work.mkdir(parents=True, exist_ok=True)
    (work / "plan.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return work


def _corpus(target: Loaded, plan: DistillPlan, work: Path, progress: ProgressListener, now: Now) -> Corpus:
    """Gathered once, then kept: a resumed run must see the same text."""
    path, name = work / "text.safetensors", fingerprint(target.model)
    if not path.is_file():
        if plan.text is not None:
            corpus = Corpus.load(Path(plan.text), name)
        else:
            corpus = _gathered(target, plan, work, progress, now)
        temporary = path.with_suffix(".tmp")
        corpus.save(temporary, name)
        os.replace(temporary, path)
        shutil.rmtree(work / "rounds", ignore_errors=True)
    return Corpus.load(path, name)


def _gathered(target: Loaded, plan: DistillPlan, work: Path, progress: ProgressListener, now: Now) -> Corpus:
    how = SelfText(
        plan.text_tokens, plan.temperatures, batch=plan.generate_batch, block=plan.block, seed=plan.budget.seed
    )
    limit = None if plan.seconds is None else WRITING_SHARE * plan.seconds
    gathering, rounds = Gathering(plan.text_tokens, limit, _spent(work), progress.writing, now), Rounds(work / "rounds")
    gathering.add(0, 0)  # shows that writing has begun
    try:
        if target.model.encoder_decoder:
            return from_examples(target, list(examples(map(Path, (*plan.data, *plan.prompts)))), how, gathering, rounds)
        if plan.data:
            return from_texts(documents(map(Path, plan.data)), target, plan.block, plan.text_tokens)
        return self_written(target, how, list(documents(map(Path, plan.prompts))), gathering, rounds)
    finally:
        (work / "clock.json").write_text(json.dumps({"writing": gathering.seconds}), encoding="utf-8")


def make_student(target: Loaded, plan: DistillPlan, tokens: torch.Tensor) -> tuple[Student, Callable[[Path], None]]:
    """The student, and how its result is saved."""
    teacher = Teacher(target.transformers_model)
    vocabulary = Vocabulary(tokens, target.model.vocab_size, target.model.device)
    if plan.kind == "model":
        model = _small_model(target.transformers_model, plan, tokens).to(target.model.device).train()
        extra = {"fingerprint": fingerprint(target.model), "gamma": ModelDrafter.traits.gamma}
        return ModelStudent(teacher, model, vocabulary), lambda out: trimmed.save(model, tokens, out, extra)
    require(
        target.model.hidden_size is not None,
        f"{target.name} shows no hidden states for a head to read; use --kind model",
    )
    if plan.kind == "eagle3":
        return _eagle3_student(target, plan, tokens, teacher, vocabulary)
    head = Head(head_shape(target, plan)) if plan.start is None else started(target, plan).head
    head = head.to(target.model.device).requires_grad_().train()

    def save(out: Path) -> None:
        HeadDrafter(head, tokens, plan.kind).save(out)

    return HeadStudent(teacher, head, vocabulary, plan.depth), save


def _eagle3_student(
    target: Loaded, plan: DistillPlan, tokens: torch.Tensor, teacher: Teacher, vocabulary: Vocabulary
) -> tuple[Student, Callable[[Path], None]]:
    head = eagle3_shape.eagle3_head(target, plan, tokens).to(target.model.device).requires_grad_().train()
    head.lm_head.requires_grad_(False)

    def save(out: Path) -> None:
        eagle3_shape.named(head, target)
        PublishedDrafter(deepcopy(head).to(torch.bfloat16), tokens, plan.kind).save(out)

    return Eagle3Student(teacher, head, vocabulary, plan.depth), save


def _tokens(target: Loaded, plan: DistillPlan, corpus: Corpus) -> torch.Tensor:
    """The tokens [N] a draft can write. A head's states do not depend on them, so they can be chosen anew.

    An EAGLE-3 head has an output layer of its own, which is for its tokens.
    """
    if plan.start is not None and plan.kind == "eagle3":
        return eagle3_shape.started_drafter(target, plan).tokens
    if plan.start is not None and plan.vocab is None:
        return started(target, plan).tokens
    most = 8192 if plan.vocab is None else plan.vocab or None
    return frequent_tokens(
        corpus, target.model.vocab_size, most, student_models.special_tokens(target.transformers_model)
    )


def _small_model(target: HuggingFaceModel, plan: DistillPlan, tokens: torch.Tensor) -> Any:
    if plan.layers:
        return student_models.sliced(target, tokens.to(target.device), student_models.layer_lists(plan.layers, target))
    return student_models.build(student_models.DraftSize.parse(plan.size or "256x1024x2x4"), tokens, target)
