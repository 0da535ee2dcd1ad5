"""Text to train on: the user's files, or what the target writes itself; kept on disk so that a run can resume."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.errors import BadOption, ModelNotFound, require
from outrider.models.loading import Loaded
from outrider.models.writing import user_turn_opener, write

Progress = Callable[[str, float], None]
"""(what is being done, share done)."""


@dataclass(frozen=True)
class Corpus:
    """Blocks of tokens [M, T]; with sources [M, S] for an encoder-decoder target. A row is one training example."""

    tokens: Tensor
    sources: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def split(self, held_out: int) -> tuple[Corpus, Corpus]:
        """The last rows are kept for measuring."""
        require(len(self) > held_out, f"only {len(self)} blocks of text: too little to train on; give more data")

        def part(rows: slice) -> Corpus:
            return Corpus(self.tokens[rows], None if self.sources is None else self.sources[rows])

        return part(slice(0, -held_out)), part(slice(-held_out, None))

    def save(self, path: Path) -> None:
        tensors = {"tokens": self.tokens.to(torch.int32)}
        if self.sources is not None:
            tensors["sources"] = self.sources.to(torch.int32)
        save_file(tensors, str(path))

    @staticmethod
    def load(path: Path) -> Corpus:
        tensors = load_file(str(path))
        sources = tensors.get("sources")
        return Corpus(tensors["tokens"].long(), None if sources is None else sources.long())


def open_text(path: Path) -> IO[str]:
    """A text file, packed with gzip or xz or not."""
    if not path.is_file():
        raise ModelNotFound(f"data file {path} does not exist")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def documents(paths: Iterable[Path], most_characters: int | None = None) -> Iterator[str]:
    """Documents of text files: separated by blank lines, or one per line of a .jsonl file (field text or prompt)."""
    read = 0
    for path in paths:
        with open_text(path) as file:
            for document in _jsonl(file) if ".jsonl" in path.suffixes else _paragraphs(file):
                yield document
                read += len(document)
                if most_characters is not None and read >= most_characters:
                    return


def _jsonl(file: IO[str]) -> Iterator[str]:
    for line in file:
        if line.strip():
            record: Any = json.loads(line)
            yield record if isinstance(record, str) else record.get("text") or record["prompt"]


def _paragraphs(file: IO[str]) -> Iterator[str]:
    lines: list[str] = []
    for line in file:
        if line.strip():
            lines.append(line)
        elif lines:
            yield "".join(lines).strip()
            lines = []
    if lines:
        yield "".join(lines).strip()


def from_texts(texts: Iterable[str], loaded: Loaded, block: int, most_tokens: int) -> Corpus:
    """The user's own text, cut into blocks."""
    end = loaded.tokenizer.eos_token_id
    return pack((loaded.tokenizer.encode(t) + ([end] if end is not None else []) for t in texts), block, most_tokens)


def pack(sequences: Iterable[Sequence[int]], block: int, most_tokens: int) -> Corpus:
    """Sequences one after another, cut into blocks of equal length."""
    stream: list[int] = []
    for sequence in sequences:
        stream.extend(sequence)
        if len(stream) >= most_tokens:
            break
    rows = len(stream) // block
    if rows == 0:
        raise BadOption(f"the data has {len(stream)} tokens, less than one block of {block}; give more text")
    return Corpus(torch.tensor(stream[: rows * block]).reshape(rows, block))


@dataclass(frozen=True)
class SelfText:
    """How a target writes its own training text."""

    tokens: int  # to write, about
    temperatures: tuple[float, ...] = (0.0, 1.0)  # of the answers, in turn
    new_tokens: int = 256
    batch: int = 64
    block: int = 512
    seed: int = 0


def self_written(loaded: Loaded, plan: SelfText, prompts: Sequence[str], progress: Progress) -> Corpus:
    """Answers of the target to prompts that are given, and to prompts it made up itself from an empty user turn."""
    per_round = plan.batch * max(1, plan.tokens // (plan.new_tokens * plan.batch * 8))
    sequences: list[list[int]] = []
    total, rounds = 0, 0
    while total < plan.tokens:
        asked = _asked(loaded, plan, prompts, rounds, per_round)
        temperature = plan.temperatures[rounds % len(plan.temperatures)]
        for prompt, answer in write(
            loaded.model, loaded.tokenizer, asked, new_tokens=plan.new_tokens, temperature=temperature,
            batch=plan.batch, seed=plan.seed + rounds,
        ):  # fmt: skip
            sequences.append([*prompt, *answer])
            total += len(prompt) + len(answer)
            progress("the target writes its own text", min(1.0, total / plan.tokens))
        rounds += 1
    order = torch.randperm(len(sequences), generator=torch.Generator().manual_seed(plan.seed)).tolist()
    return pack((sequences[i] for i in order), plan.block, total)


def _asked(loaded: Loaded, plan: SelfText, prompts: Sequence[str], rounds: int, count: int) -> list[list[int]]:
    """Prompts for a round: the next of those given, as a user's message where there is a chat template.

    Every third round the target makes up its own, so that given prompts do not narrow what it writes.
    """
    if prompts and rounds % 3 != 2:
        first = rounds * count
        chosen = [prompts[(first + i) % len(prompts)] for i in range(count)]
        return [_as_message(loaded, text) for text in chosen]
    opener = loaded.tokenizer.encode(user_turn_opener(loaded.tokenizer), add_special_tokens=False) or [0]
    written = write(
        loaded.model, loaded.tokenizer, [opener] * count, new_tokens=96, temperature=1.0, batch=plan.batch,
        seed=plan.seed + 500_000 + rounds,
    )  # fmt: skip
    if not getattr(loaded.tokenizer, "chat_template", None):
        return [[*opener, *words] for _, words in written]
    texts = (loaded.tokenizer.decode(words, skip_special_tokens=True).strip() for _, words in written)
    return [_as_message(loaded, text) for text in texts if text]


def _as_message(loaded: Loaded, text: str, longest: int = 1024) -> list[int]:
    if getattr(loaded.tokenizer, "chat_template", None):
        text = loaded.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        return list(loaded.tokenizer.encode(text, add_special_tokens=False))[-longest:]
    return list(loaded.tokenizer.encode(text))[-longest:]


def frequent_tokens(corpus: Corpus, vocab_size: int, most: int | None) -> Tensor:
    """The N most frequent tokens of a corpus, in ascending order [N]; all of them where N is None."""
    if most is None or most >= vocab_size:
        return torch.arange(vocab_size)
    counts = torch.bincount(corpus.tokens.flatten(), minlength=vocab_size)
    return counts.topk(most).indices.sort().values
