"""Text the target writes itself: answers to prompts, given or of its own making. Kept round by round on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from outrider.models.loading import Loaded
from outrider.models.writing import user_turn_opener, write
from outrider.training.data import Corpus, Pair, Progress, from_answers

LONGEST_PROMPT = 1024


@dataclass(frozen=True)
class SelfText:
    """How a target writes its own training text."""

    tokens: int  # prompts and answers, about
    temperatures: tuple[float, ...] = (0.0, 1.0)  # of the answers, round by round in turn
    new_tokens: int = 256
    batch: int = 64
    block: int = 512
    seed: int = 0


def self_written(
    loaded: Loaded, plan: SelfText, prompts: Sequence[str], progress: Progress, kept: Path | None = None
) -> Corpus:
    """Answers of the target to prompts that are given, and to prompts it made up itself from an empty user turn.

    Rounds follow from the plan alone, and finished ones lie in ``kept``: a killed run goes on with the next.
    """
    per_round = plan.batch * max(1, plan.tokens // (plan.new_tokens * plan.batch * 8))
    pairs: list[Pair] = []
    for number in count():
        path = None if kept is None else kept / f"{number:04}.safetensors"
        done = sum(len(prompt) + len(answer) for prompt, answer in pairs)
        if done >= plan.tokens:
            break
        if path is not None and path.is_file():
            pairs += _load(path)
            continue
        fresh = _round(loaded, plan, prompts, number, per_round, done, progress)
        if path is not None:
            _save(fresh, path)
        pairs += fresh
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(plan.seed)).tolist()
    return from_answers([pairs[i] for i in order], plan.block)


def _round(
    loaded: Loaded, plan: SelfText, prompts: Sequence[str], number: int, size: int, done: int, progress: Progress
) -> list[Pair]:
    asked = _asked(loaded, plan, prompts, number, size)
    pairs: list[Pair] = []
    for prompt, answer in write(
        loaded.model, loaded.tokenizer, asked, new_tokens=plan.new_tokens,
        temperature=plan.temperatures[number % len(plan.temperatures)], batch=plan.batch, seed=plan.seed + number,
    ):  # fmt: skip
        pairs.append((prompt, answer))
        done += len(prompt) + len(answer)
        progress("the target writes its own text", min(1.0, done / plan.tokens))
    return pairs


def _asked(loaded: Loaded, plan: SelfText, prompts: Sequence[str], number: int, size: int) -> list[list[int]]:
    """Prompts for a round: the next of those given, as a user's message where there is a chat template.

    Every third round the target makes up its own, so that given prompts do not narrow what it writes.
    """
    if prompts and number % 3 != 2:
        first = (number - number // 3) * size
        return messages(loaded, [prompts[(first + i) % len(prompts)] for i in range(size)])
    opener = loaded.tokenizer.encode(user_turn_opener(loaded.tokenizer), add_special_tokens=False) or [0]
    written = write(
        loaded.model, loaded.tokenizer, [opener] * size, new_tokens=96, temperature=1.0, batch=plan.batch,
        seed=plan.seed + 500_000 + number,
    )  # fmt: skip
    if not getattr(loaded.tokenizer, "chat_template", None):
        return [[*opener, *words] for _, words in written]
    texts = loaded.tokenizer.batch_decode([words for _, words in written], skip_special_tokens=True)
    return messages(loaded, [text.strip() for text in texts if text.strip()])


def messages(loaded: Loaded, texts: Sequence[str]) -> list[list[int]]:
    """All at once: the tokenizer then uses every core."""
    if not texts:
        return []
    chat = bool(getattr(loaded.tokenizer, "chat_template", None))
    if chat:
        turns = [[{"role": "user", "content": text}] for text in texts]
        texts = loaded.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    encoded = loaded.tokenizer(list(texts), add_special_tokens=not chat)["input_ids"]
    return [list(ids)[-LONGEST_PROMPT:] for ids in encoded]


def _save(pairs: Sequence[Pair], path: Path) -> None:
    """A kill leaves the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lengths = torch.tensor([[len(prompt), len(answer)] for prompt, answer in pairs], dtype=torch.int32).reshape(-1, 2)
    tokens = torch.tensor([token for pair in pairs for part in pair for token in part], dtype=torch.int32)
    temporary = path.with_suffix(".tmp")
    save_file({"lengths": lengths, "tokens": tokens}, str(temporary))
    os.replace(temporary, path)


def _load(path: Path) -> list[Pair]:
    kept = load_file(str(path))
    parts = torch.split(kept["tokens"], kept["lengths"].flatten().tolist())
    return [(prompt.tolist(), answer.tolist()) for prompt, answer in zip(parts[::2], parts[1::2], strict=True)]
