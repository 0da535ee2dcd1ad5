"""Pairs trained from scratch: text on the device, a loop with a wall-clock budget, and Table 3's acceptance rates.

``outrider distill`` trains a draft for a model that exists (loop.py). The recipes in ``recipes/`` train target and
draft from nothing, on running text or on pairs of sentences of any length, so they have a loop of their own.
Nothing of transformers is imported here: a model is whatever is called like its models.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.drafters import ngram
from outrider.drafters.ngram import Ngram, NgramTable
from outrider.errors import BadOption, require
from outrider.training.objectives import Objective
from outrider.types import Session, Shape

FOLLOWERS = 32
"""Followers a bigram table keeps per token, as NgramTable.fit does."""

IGNORED = -100
"""The label of a position that does not count."""


def say(line: str) -> None:
    """A line of progress, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


# --- the output directory ----------------------------------------------------------------------------


def open_run(out: Path, settings: Mapping[str, Any], resume: bool) -> Path:
    """The working directory inside ``out``; refuses to touch anything that is not this very run, resumed."""
    work = out / "training"
    known = work / "settings.json"
    wanted = json.loads(json.dumps(settings))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not known.is_file():
            raise BadOption(f"output directory {out} exists and is not empty; choose another --out or empty it")
        require(resume, f"output directory {out} holds an earlier run; go on with it by --resume, or choose another")
        before = json.loads(known.read_text(encoding="utf-8"))
        differing = sorted(k for k in before.keys() | wanted.keys() if before.get(k) != wanted.get(k))
        require(not differing, f"{out} holds a run with other settings ({', '.join(differing)}); choose another --out")
        return work
    work.mkdir(parents=True, exist_ok=True)
    known.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
    return work


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Weights in bfloat16, config, generation config and tokenizer; the folder appears whole or not at all."""
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    model.to(device="cpu", dtype=torch.bfloat16).save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    packed = temporary / "tokenizer.json"  # written with a line per number; a third of the size does
    content = json.loads(packed.read_text(encoding="utf-8"))
    packed.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    os.replace(temporary, folder)


def pack(out: Path, names: Sequence[str], part: int = 15 << 20) -> list[Path]:
    """``pair.tar`` of what is there of ``names``; beyond ``part`` bytes also in numbered parts to be put together."""
    whole = out / "pair.tar"
    with tarfile.open(whole, "w") as tar:
        for name in names:
            if (out / name).exists():
                tar.add(out / name, name, filter=_readable)
    parts: list[Path] = []
    if whole.stat().st_size > part:
        with whole.open("rb") as file:
            while block := file.read(part):
                parts.append(out / f"pair.tar.{len(parts)}")
                parts[-1].write_bytes(block)
    return parts or [whole]


def _readable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mode = 0o755 if member.isdir() else 0o644
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


# --- text on the device ------------------------------------------------------------------------------


def train_tokenizer(
    texts: Iterable[str], vocab: int, special: Sequence[str], *, words_alike: bool = False, end: str | None = None
) -> Tokenizer:
    """Byte-level BPE: any text can be written, and comes back as it was.

    words_alike: the first word of a text gets the tokens it would have in the middle. end: put after every text.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=words_alike)
    letters = decoders.ByteLevel()
    tokenizer.decoder = decoders.Sequence([letters, decoders.Strip(" ", 1, 0)]) if words_alike else letters
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if end is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, tokenizer.token_to_id(end))]
        )
    return tokenizer


@dataclass(frozen=True)
class Ragged:
    """Sequences of many lengths, one after another on the device."""

    flat: Tensor  # [N] int64
    starts: Tensor  # [M] of each sequence in flat
    lengths: Tensor  # [M]
    sizes: np.ndarray  # the lengths again, on the host: shapes are decided without asking the device

    def __len__(self) -> int:
        return len(self.sizes)

    @staticmethod
    def of(rows: Sequence[np.ndarray], device: torch.device) -> Ragged:
        require(len(rows) > 0, "the data is empty: no text was found in it")
        sizes = np.array([len(r) for r in rows], dtype=np.int64)
        flat = torch.from_numpy(np.concatenate(rows).astype(np.int64)).to(device)
        starts = torch.from_numpy(np.cumsum(sizes) - sizes).to(device)
        return Ragged(flat, starts, torch.from_numpy(sizes).to(device), sizes)

    def select(self, index: np.ndarray) -> Ragged:
        chosen = torch.from_numpy(index).to(self.flat.device)
        return Ragged(self.flat, self.starts[chosen], self.lengths[chosen], self.sizes[index])

    def join(self, other: Ragged) -> Ragged:
        starts = torch.cat([self.starts, other.starts + len(self.flat)])
        lengths, sizes = torch.cat([self.lengths, other.lengths]), np.concatenate([self.sizes, other.sizes])
        return Ragged(torch.cat([self.flat, other.flat]), starts, lengths, sizes)

    def rows(self, index: Tensor, width: int, padding: int) -> Tensor:
        """Sequences index [B], cut or padded at the end -> [B, width]."""
        place = torch.arange(width, device=self.flat.device)
        at = (self.starts[index, None] + place).clamp(max=len(self.flat) - 1)
        return torch.where(place < self.lengths[index, None], self.flat[at], padding)


def encode(tokenizer: Tokenizer, texts: Sequence[str], *, special: bool = False, piece: int = 4096) -> list[np.ndarray]:
    """Token ids of many texts, by as many threads as the tokenizers library takes."""
    rows: list[np.ndarray] = []
    for start in range(0, len(texts), piece):
        batch = tokenizer.encode_batch_fast(list(texts[start : start + piece]), add_special_tokens=special)
        rows.extend(np.array(e.ids, dtype=np.int32) for e in batch)
    return rows


@dataclass(frozen=True)
class Batch:
    """What a model is called with, what it should say, and how many tokens that is."""

    inputs: dict[str, Tensor]
    labels: Tensor  # [B, T], IGNORED where nothing is to be said
    tokens: int


class Data(Protocol):
    """Training text: the batch of a step follows from the seed and the step alone."""

    def batch(self, step: int) -> Batch: ...


class Blocks:
    """Running text in blocks of equal length: each pass is a new permutation."""

    def __init__(self, stream: Tensor, block: int, rows: int, seed: int) -> None:
        require(
            len(stream) > block,
            f"the data has {len(stream)} tokens, less than one block of {block}; give more text, or a smaller --block",
        )
        self.blocks = stream.unfold(0, block + 1, block)  # [M, block + 1]: the last token of one begins the next
        self.rows, self.seed = min(rows, len(self.blocks)), seed
        self.turns = len(self.blocks) // self.rows
        self._turn, self._order = -1, torch.zeros(0)

    def batch(self, step: int) -> Batch:
        turn, place = divmod(step, self.turns)
        if turn != self._turn:
            order = torch.randperm(len(self.blocks), generator=torch.Generator().manual_seed(self.seed * 7919 + turn))
            self._turn, self._order = turn, order.to(self.blocks.device)
        chosen = self.blocks[self._order[place * self.rows : (place + 1) * self.rows]]
        return _running(chosen)

    def in_order(self) -> Iterator[Batch]:
        """All of it once, for measuring."""
        for start in range(0, len(self.blocks), self.rows):
            yield _running(self.blocks[start : start + self.rows])


def _running(blocks: Tensor) -> Batch:
    return Batch({"input_ids": blocks[:, :-1]}, blocks[:, 1:], blocks[:, 1:].numel())


class Pairs:
    """Sources and targets in batches of similar lengths, so that little of a batch is padding.

    A batch holds at most ``budget`` positions, source and target together. Each pass makes new batches of the same
    lengths and takes them in a new order. ``start`` begins every target.
    """

    def __init__(self, sources: Ragged, targets: Ragged, *, start: int, padding: int, budget: int, seed: int) -> None:
        require(len(sources) == len(targets), "there must be as many sources as targets")
        self.sources, self.targets = sources, targets
        self.start, self.padding, self.budget, self.seed = start, padding, budget, seed
        self._turn, self._first, self._until = -1, 0, 0
        self._index = torch.zeros(0)
        self._cuts: list[tuple[int, int, int, int]] = []

    def batch(self, step: int) -> Batch:
        if step < self._first:
            self._turn, self._first, self._until = -1, 0, 0
        while step >= self._until:
            self._turn, self._first = self._turn + 1, self._until
            order = self._plan(self._turn)
            self._until = self._first + len(self._cuts)
            self._index = torch.from_numpy(order).to(self.sources.flat.device)
        return self._make(self._cuts[step - self._first])

    def in_order(self) -> Iterator[Batch]:
        """All of it once, for measuring."""
        order = self._plan(0)
        self._turn, self._first, self._until = -1, 0, 0
        self._index = torch.from_numpy(order).to(self.sources.flat.device)
        for cut in self._cuts:
            yield self._make(cut)

    def _plan(self, turn: int) -> np.ndarray:
        """The order of the pairs in this pass, and where it is cut into batches (first, last, widths)."""
        random = np.random.default_rng([self.seed, turn])
        order = random.permutation(len(self.sources))
        source, target = (_eights(r.sizes[order]) for r in (self.sources, self.targets))
        # Along rising target lengths the source lengths go up, then down, then up: neighbours are always alike.
        swing = np.where((target // 8) % 2 == 0, source, -source)
        arranged = np.lexsort((swing, target))
        order, source, target = order[arranged], source[arranged], target[arranged]
        cuts: list[tuple[int, int, int, int]] = []
        first = 0
        while first < len(order):
            last = first + max(1, self.budget // int(source[first] + target[first]))
            widest = int(source[first:last].max() + target[first:last].max())
            last = min(len(order), first + max(1, min(last - first, self.budget // widest)))
            cuts.append((first, last, int(source[first:last].max()), int(target[first:last].max())))
            first = last
        self._cuts = [cuts[i] for i in random.permutation(len(cuts))]
        self._counts = {c[0]: int(self.targets.sizes[order[c[0] : c[1]]].sum()) for c in cuts}
        return order

    def _make(self, cut: tuple[int, int, int, int]) -> Batch:
        first, last, wide, long = cut
        index = self._index[first:last]
        source = self.sources.rows(index, wide, self.padding)
        present = torch.arange(wide, device=source.device) < self.sources.lengths[index, None]
        labels = self.targets.rows(index, long, IGNORED)
        told = torch.where(labels == IGNORED, self.padding, labels)
        told = torch.cat([told.new_full((len(told), 1), self.start), told[:, :-1]], 1)
        inputs = {"input_ids": source, "attention_mask": present.long(), "decoder_input_ids": told}
        return Batch(inputs, labels, self._counts[first])


def _eights(lengths: np.ndarray) -> np.ndarray:
    """Up to the next multiple of eight: few shapes, and those that matrix units like."""
    return (lengths + 7) // 8 * 8


# --- what is learnt ----------------------------------------------------------------------------------


class Trunk:
    """A model without its output layer, which the losses apply piece by piece: logits of a large batch are large."""

    def __init__(self, model: Any) -> None:
        self.model, self.head = model, model.get_output_embeddings()
        self.head.forward = _unchanged  # on this instance only; weights and what is saved of them stay as they are

    def __call__(self, batch: Batch) -> Tensor:
        """What the output layer would read, at all positions -> [B * T, size]."""
        states: Tensor = self.model(**batch.inputs, use_cache=False).logits
        return states.flatten(0, 1)


def _unchanged(states: Tensor) -> Tensor:
    return states


class _InPieces(torch.autograd.Function):
    """Output layer and loss, a few rows at a time; the gradients are made on the way, so no logits are kept."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, loss: Any, rows: int) -> Tensor:
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else states.dtype
        own = weight.detach().to(dtype).requires_grad_()
        into_states, into_weight = torch.empty_like(states), torch.zeros_like(weight)
        total = torch.zeros((), device=states.device)
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            read = states[part].detach().to(dtype).requires_grad_()
            with torch.enable_grad():
                here = loss((read @ own.t()).float(), part)
            for_states, for_weight = torch.autograd.grad(here, (read, own))
            into_states[part] = for_states
            into_weight += for_weight
            total += here.detach()
        ctx.save_for_backward(into_states, into_weight)
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor, None, None]:
        into_states, into_weight = ctx.saved_tensors
        return into_states * scale, into_weight * scale, None, None


def in_pieces(states: Tensor, weight: Tensor, loss: Callable[[Tensor, slice], Tensor], rows: int = 16384) -> Tensor:
    """Sum of ``loss(logits, rows)`` over pieces of the rows of states [N, size]; weight [V, size] makes the logits."""
    return cast(Tensor, _InPieces.apply(states, weight, loss, rows))  # type: ignore[no-untyped-call]


def cross_entropy(trunk: Trunk, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Mean over the labels that count."""
    labels = batch.labels.flatten()

    def loss(logits: Tensor, rows: slice) -> Tensor:
        return F.cross_entropy(
            logits, labels[rows], ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
        ).div(batch.tokens)

    return in_pieces(trunk(batch), trunk.head.weight, loss)


def from_teacher(trunk: Trunk, teacher: Trunk, batch: Batch, objective: Objective) -> Tensor:
    """Mean of an objective against the teacher's probabilities, over the labels that count."""
    labels = batch.labels.flatten()
    with torch.no_grad():
        told = teacher(batch)

    def loss(logits: Tensor, rows: slice) -> Tensor:
        with torch.no_grad():
            p = F.linear(told[rows], teacher.head.weight).float().softmax(-1)
        return (objective(logits, p, labels[rows]) * (labels[rows] != IGNORED)).sum() / batch.tokens

    return in_pieces(trunk(batch), trunk.head.weight, loss)


# --- the loop ----------------------------------------------------------------------------------------


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
        self.began, self.first = time.perf_counter() - now.seconds, now.step
        self.mark: tuple[int, float] | None = None  # step and time from which the speed is measured

    def read(self, finished: bool = False) -> float:
        """Seconds so far; ``finished`` waits for the device, which otherwise lags behind."""
        if finished and self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - self.began

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


# --- what a model writes -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """Texts a model wrote: what was given before position ``first`` of tokens, and the sources if there are any."""

    tokens: Tensor  # [B, L]
    first: int
    source: Tensor | None = None  # [B, S]
    present: Tensor | None = None  # [B, S]: 1 where the source is no padding

    def inputs(self, rows: slice) -> dict[str, Tensor]:
        """To read the texts again in one run."""
        tokens = self.tokens[rows, :-1]
        if self.source is None or self.present is None:
            return {"input_ids": tokens}
        return {
            "input_ids": self.source[rows],
            "attention_mask": self.present[rows],
            "decoder_input_ids": tokens,
        }

    def counts(self, end: int) -> Tensor:
        """[B, L - first]: whether a token was really written, which means up to and with the first end."""
        ends = (self.tokens[:, self.first :] == end).long()
        return (ends.cumsum(1) - ends) == 0


@torch.no_grad()
def write(
    model: Any, given: Written, new_tokens: int, temperature: float, end: int, padding: int, seed: int
) -> Written:
    """Go on from what is given, all rows at a time, until all have ended or have their new tokens."""
    device = given.tokens.device
    random = torch.Generator(device).manual_seed(seed)
    fixed: dict[str, Any] = {}
    name = "input_ids"
    if given.source is not None:
        read = model.get_encoder()(input_ids=given.source, attention_mask=given.present)
        fixed, name = {"encoder_outputs": read, "attention_mask": given.present}, "decoder_input_ids"
    tokens = feed = given.tokens
    done = torch.zeros(len(tokens), dtype=torch.bool, device=device)
    cache = None
    for count in range(1, new_tokens + 1):
        output = model(**{name: feed}, past_key_values=cache, use_cache=True, **fixed)
        logits, cache = output.logits[:, -1].float(), output.past_key_values
        if temperature > 0:
            race = torch.empty_like(logits).exponential_(generator=random)
            logits = (logits / temperature).softmax(-1) / race
        feed = torch.where(done, padding, logits.argmax(-1))[:, None]
        tokens = torch.cat([tokens, feed], 1)
        done = done | (feed[:, 0] == end)
        if count % 8 == 0 and bool(done.all()):
            break
    return replace(given, tokens=tokens)


# --- what is measured --------------------------------------------------------------------------------


def count_tables(stream: Tensor, vocab_size: int, never: int | None = None) -> tuple[NgramTable, NgramTable]:
    """Unigram and bigram table of a stream of tokens [N]; ``never`` is a token that only ever begins a text.

    Gives what NgramTable.fit gives for one long text, by a dense count: seconds for any length, on any device.
    """
    unigram = torch.bincount(stream, minlength=vocab_size).float()
    if never is not None:
        unigram[never] = 0
    pairs = torch.bincount(stream[:-1] * vocab_size + stream[1:], minlength=vocab_size**2)
    counts, followers = pairs.view(vocab_size, vocab_size).float().topk(min(FOLLOWERS, vocab_size), 1)
    seen = (counts[:, 0] > 0).nonzero()[:, 0]
    keys, order = ngram._fold([seen], seen).sort()
    seen = seen[order]
    unigram, keys = unigram.cpu(), keys.cpu()
    table = (keys,), (followers[seen].int().cpu().contiguous(),), (counts[seen].cpu().contiguous(),)
    return NgramTable(vocab_size, unigram, (), (), ()), NgramTable(vocab_size, unigram, *table)


def table_weights(table: NgramTable, last: Tensor) -> Tensor:
    """What a table's drafter weighs the next token by, after each of the tokens last [N] -> [N, V]."""
    target = cast(Session, SimpleNamespace(vocab_size=table.vocab_size, device=last.device))
    session: Any = Ngram(table).start(len(last), Shape(capacity=1, width=1), target)
    session.context.tokens[:, 0] = last
    return cast(Tensor, session.weights(last.new_zeros((len(last), 0))))


@dataclass(frozen=True)
class Rate:
    """An acceptance rate with its standard error, texts taken as independent of each other."""

    alpha: float
    error: float
    tokens: int


@torch.no_grad()
def acceptance(
    target: Any, drafts: Mapping[str, Any], texts: Sequence[Written], temperature: int, end: int
) -> dict[str, Rate]:
    """alpha = E[sum-min(p, q)] of each draft (a model or an NgramTable) over the tokens of the target's own texts.

    At temperature 0, p and q are point masses on their likeliest token.
    """
    require(temperature in (0, 1), f"temperature must be 0 or 1, got {temperature}")
    sums: dict[str, list[Tensor]] = {name: [] for name in drafts}
    numbers: list[Tensor] = []
    for text in texts:
        vocab = target.get_output_embeddings().weight.shape[0]
        step = max(1, (1 << 27) // (text.tokens.shape[1] * vocab))
        for start in range(0, len(text.tokens), step):
            rows = slice(start, start + step)
            counts = text.counts(end)[rows]
            p = target(**text.inputs(rows), use_cache=False).logits[:, text.first - 1 :].float()
            before = text.tokens[rows, text.first - 1 : -1]
            numbers.append(counts.sum(1))
            for name, draft in drafts.items():
                if isinstance(draft, NgramTable):
                    q = table_weights(draft, before.flatten()).view(*before.shape, -1)
                    q = q / q.sum(-1, keepdim=True)
                else:
                    q = draft(**text.inputs(rows), use_cache=False).logits[:, text.first - 1 :].float().softmax(-1)
                same = p.argmax(-1) == q.argmax(-1)
                shared = same.float() if temperature == 0 else torch.minimum(p.softmax(-1), q).sum(-1)
                sums[name].append((shared * counts).sum(1))
    number = torch.cat(numbers).double()
    rates = {}
    for name, parts in sums.items():
        each = torch.cat(parts).double()
        alpha = each.sum() / number.sum()
        error = (each - alpha * number).square().sum().sqrt() / number.sum()
        rates[name] = Rate(float(alpha), float(error), int(number.sum()))
    return rates


@torch.no_grad()
def held_out_loss(model: Any, batches: Iterable[Batch]) -> float:
    """Mean negative log-likelihood per token, in nats."""
    total, tokens = 0.0, 0
    for batch in batches:
        logits = model(**batch.inputs, use_cache=False).logits.flatten(0, 1).float()
        total += float(F.cross_entropy(logits, batch.labels.flatten(), ignore_index=IGNORED, reduction="sum"))
        tokens += batch.tokens
    require(tokens > 0, "the held-out data is empty: nothing to measure on")
    return total / tokens
