"""From a target to a trained draft in a directory: data, student, training, model card."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from outrider.drafters.head_layers import Head, HeadConfig
from outrider.drafters.heads import HeadDrafter
from outrider.drafters.model import ModelDrafter
from outrider.errors import BadOption, require
from outrider.models import small, trimmed
from outrider.models.huggingface import HuggingFaceModel
from outrider.models.loading import Loaded
from outrider.models.teacher import Teacher, fingerprint
from outrider.training.answers import SelfText, self_written
from outrider.training.data import Corpus, documents, frequent_tokens, from_texts
from outrider.training.loop import Budget, Report, train
from outrider.training.order import Order
from outrider.training.sources import examples, from_examples
from outrider.training.students import HeadStudent, ModelStudent, Student, Vocabulary

KINDS = ("model", "feature", "blockwise")


@dataclass(frozen=True)
class Plan:
    """Everything that decides a draft."""

    kind: str = "feature"
    start: str | None = None  # heads: the directory of a draft to go on from, whose shape this one then has
    size: str | None = None  # model: 256x1024x2x4 (2+1 layers: encoder+decoder); heads: the inner width
    layers: str = ""  # model: start from these layers of the target (0,15,29 or 0,3+0) instead of from scratch
    data: tuple[str, ...] = ()  # text files, for an encoder-decoder sources and targets; none: the target writes
    prompts: tuple[str, ...] = ()  # files of prompts, or sources, for the target to answer
    text: str | None = None  # the training/text.safetensors of another run, to train on the same text
    vocab: int | None = None  # tokens the draft can write, 0: all; None: those of ``start``, or 8192
    text_tokens: int = 2_000_000  # of text to gather
    block: int = 512
    depth: int = 5  # heads: guesses trained in a row
    blocks: int | None = None  # feature head: layers; None: 1
    reads: tuple[int, ...] | None = None  # feature head: layers of the target it reads; None: two of them and the last
    attention: bool = True  # feature head: look back over the text
    generate_batch: int = 64
    temperatures: tuple[float, ...] = (0.0, 1.0)  # at which the target writes, in turn
    seconds: float | None = None  # of training; the budget's tokens then follow from the measured speed
    budget: Budget = Budget(tokens=10_000_000)

    def __post_init__(self) -> None:
        require(self.kind in KINDS, f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        require(self.vocab is None or self.vocab >= 0, f"vocab must be positive, or 0 for all, got {self.vocab}")
        require(self.blocks is None or self.blocks >= 1, f"blocks must be at least 1, got {self.blocks}")
        good = len(self.temperatures) > 0 and all(t >= 0 for t in self.temperatures)
        require(good, f"temperatures must be numbers of at least 0, got {self.temperatures}")
        require(self.depth >= 1, f"depth must be at least 1, got {self.depth}")
        require(not self.layers or self.kind == "model", "layers are for --kind model: heads read the target itself")
        require(self.start is None or self.kind != "model", "only heads go on from another draft: leave out --from")


class Say(Protocol):
    """Where progress goes."""

    def data(self, what: str, share: float) -> None:
        """Text is being gathered."""

    def training(self, report: Report) -> None:
        """Training has reached a step."""


class _Quiet:
    def data(self, what: str, share: float) -> None:
        """Nobody asked."""

    def training(self, report: Report) -> None:
        """Nobody asked."""


def distill(target: Loaded, out: Path, plan: Plan, say: Say | None = None) -> Report:
    """Train a draft for ``target`` into ``out``. Run again after a kill, it goes on where it stopped."""
    say = say or _Quiet()
    work = prepare(out, plan)
    _same_target(work, fingerprint(target.model))
    with _memory_explained(plan, work):
        corpus = _corpus(target, plan, work, say.data)
        training, held_out = corpus.split(max(2, min(256, len(corpus) // 20)))
        torch.manual_seed(plan.budget.seed)
        tokens = _tokens(target, plan, training)
        budget = _budget(target, plan, tokens, training, work)
        torch.manual_seed(budget.seed)
        student, save = make_student(target, plan, tokens)
        last = train(student, training, held_out, budget, work / "checkpoint.pt", say.training)
    save(out)
    return last


@contextmanager
def _memory_explained(plan: Plan, work: Path) -> Iterator[None]:
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


def _budget(target: Loaded, plan: Plan, tokens: torch.Tensor, corpus: Corpus, work: Path) -> Budget:
    """The plan's budget, or what fits into its seconds: measured once and kept, so that a resumed run agrees."""
    if plan.seconds is None:
        return plan.budget
    kept = work / "budget.json"
    if not kept.is_file():
        student, _ = make_student(target, plan, tokens)
        step = int(Order(corpus, plan.budget.batch, plan.budget.seed).tokens_per_step) + 1
        few = corpus.split(1)[1]
        # The first steps prepare whatever the parts of the training need, and do not count.
        for steps in (12, 60) if target.model.device.type == "cuda" else (3, 6):
            rate = train(
                student, corpus, few, replace(plan.budget, tokens=steps * step), every=1000
            ).tokens_per_second  # by its own clock, which starts when everything is laid out
        kept.write_text(json.dumps({"tokens": max(step, int(rate * plan.seconds))}), encoding="utf-8")
    return replace(plan.budget, tokens=int(json.loads(kept.read_text(encoding="utf-8"))["tokens"]))


def prepare(out: Path, plan: Plan) -> Path:
    """The working directory inside ``out``; refuses to overwrite anything that is not this very run."""
    work = out / "training"
    settings = json.loads(json.dumps(asdict(plan)))
    if out.exists() and any(out.iterdir()):
        known = work / "plan.json"
        if not known.is_file():
            raise BadOption(f"output directory {out} exists and is not empty; choose another --out or empty it")
        if json.loads(known.read_text(encoding="utf-8")) != settings:
            raise BadOption(f"{out} holds a run with other settings (see {known}); choose another --out")
    work.mkdir(parents=True, exist_ok=True)
    (work / "plan.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return work


def _corpus(target: Loaded, plan: Plan, work: Path, progress: Callable[[str, float], None]) -> Corpus:
    """Gathered once, then kept: a resumed run must see the same text."""
    path, name = work / "text.safetensors", fingerprint(target.model)
    if not path.is_file():
        corpus = (
            Corpus.load(Path(plan.text), name) if plan.text is not None else _gathered(target, plan, work, progress)
        )
        temporary = path.with_suffix(".tmp")
        corpus.save(temporary, name)
        os.replace(temporary, path)
        shutil.rmtree(work / "rounds", ignore_errors=True)
    return Corpus.load(path, name)


def _gathered(target: Loaded, plan: Plan, work: Path, progress: Callable[[str, float], None]) -> Corpus:
    how = SelfText(
        plan.text_tokens, plan.temperatures, batch=plan.generate_batch, block=plan.block, seed=plan.budget.seed
    )
    if target.model.encoder_decoder:
        return from_examples(target, list(examples(map(Path, (*plan.data, *plan.prompts)))), how, progress)
    if plan.data:
        return from_texts(documents(map(Path, plan.data)), target, plan.block, plan.text_tokens)
    return self_written(target, how, list(documents(map(Path, plan.prompts))), progress, work / "rounds")


def make_student(target: Loaded, plan: Plan, tokens: torch.Tensor) -> tuple[Student, Callable[[Path], None]]:
    """The student, and how its result is saved."""
    teacher = Teacher(target.model)
    vocabulary = Vocabulary(tokens, target.model.vocab_size, target.model.device)
    if plan.kind == "model":
        model = _small_model(target.model, plan, tokens).to(target.model.device).train()
        extra = {"fingerprint": fingerprint(target.model), "gamma": ModelDrafter.gamma}
        return ModelStudent(teacher, model, vocabulary), lambda out: trimmed.save(model, tokens, out, extra)
    require(
        target.model.hidden_size is not None,
        f"{target.name} shows no hidden states for a head to read; use --kind model",
    )
    head = Head(_shape(target, plan)) if plan.start is None else _started(target, plan).head
    head = head.to(target.model.device).requires_grad_().train()

    def save(out: Path) -> None:
        HeadDrafter(head, tokens, plan.kind).save(out)

    return HeadStudent(teacher, head, vocabulary, plan.depth), save


def _shape(target: Loaded, plan: Plan) -> HeadConfig:
    size = int(target.model.hidden_size or 0)
    return HeadConfig(
        kind=plan.kind,
        hidden_size=size,
        inner_size=_inner(plan.size, 2 * size),
        blocks=plan.depth if plan.kind == "blockwise" else plan.blocks or 1,
        **({} if plan.kind == "blockwise" else _looks(target, plan)),
        fingerprint=fingerprint(target.model),
    )


def _started(target: Loaded, plan: Plan) -> HeadDrafter:
    """The head to go on from, which must be for this very target and of the shape that was asked for, if one was."""
    drafter = HeadDrafter.load(Path(str(plan.start)))
    has, wished = drafter.head.config, _shape(target, plan)
    if has.fingerprint != wished.fingerprint:
        raise BadOption(f"the draft in {plan.start} was trained for another target than {target.name}")
    asked = {
        "kind": True, "inner_size": plan.size is not None, "layers": plan.reads is not None,
        "blocks": plan.blocks is not None or plan.kind == "blockwise", "heads": not plan.attention,
    }  # fmt: skip
    for name in (name for name, given in asked.items() if given and getattr(has, name) != getattr(wished, name)):
        raise BadOption(
            f"{name} of the draft in {plan.start} is {getattr(has, name)}, not {getattr(wished, name)}: it goes on "
            "with the shape it has; leave the option out, or --from"
        )
    return drafter


def _tokens(target: Loaded, plan: Plan, corpus: Corpus) -> torch.Tensor:
    """The tokens [N] a draft can write. A head's states do not depend on them, so they can be chosen anew."""
    if plan.start is not None and plan.vocab is None:
        return _started(target, plan).tokens
    most = 8192 if plan.vocab is None else plan.vocab or None
    return frequent_tokens(corpus, target.model.vocab_size, most, small.special_tokens(target.model))


def _looks(target: Loaded, plan: Plan) -> dict[str, Any]:
    """What a feature head looks at: layers of the target, and the text before."""
    config = target.model.config
    layers = int(config.num_hidden_layers)
    reads = (layers // 3, 2 * layers // 3, -1) if plan.reads is None else (*plan.reads, -1)
    wrong = [layer for layer in reads if not -1 <= layer <= layers]
    require(not wrong, f"reads names layers {wrong}: the target has {layers}")
    heads = int(config.num_attention_heads)
    shared = int(getattr(config, "num_key_value_heads", None) or heads)
    return {"layers": reads, "heads": (heads, shared) if plan.attention else (0, 0), "window": plan.block}


def _small_model(target: HuggingFaceModel, plan: Plan, tokens: torch.Tensor) -> Any:
    if plan.layers:
        return small.sliced(target, tokens.to(target.device), small.layer_lists(plan.layers, target))
    return small.build(small.Size.parse(plan.size or "256x1024x2x4"), tokens, target)


def _inner(size: str | None, default: int) -> int:
    if size is None:
        return default
    require(size.isdigit() and int(size) > 0, f"size of a head is its inner width, a whole number; got {size!r}")
    return int(size)
