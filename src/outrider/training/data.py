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
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from outrider.errors import BadOption, ModelNotFound, TokenizerMismatch, require
from outrider.models.loading import Loaded
from outrider.models.writing import user_turn_opener, write

Progress = Callable[[str, float], None]
"""(what is being done, share done)."""


PADDING = -1
"""Behind the end of a text that is shorter than its row; not a token of any target."""


@dataclass(frozen=True)
class Corpus:
    """Blocks of tokens [M, T]; with sources [M, S] for an encoder-decoder target. A row is one training example."""

    tokens: Tensor
    sources: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def row_tokens(self) -> float:
        """Tokens of a row, padding not counted, on average."""
        return float((self.tokens >= 0).sum()) / max(1, len(self))

    def take(self, rows: slice | Sequence[int]) -> Corpus:
        """Some rows, no wider than they need be."""
        sources = None if self.sources is None else _narrowed(self.sources[rows])
        return Corpus(_narrowed(self.tokens[rows]), sources)

    def to(self, device: torch.device) -> Corpus:
        return Corpus(self.tokens.to(device), None if self.sources is None else self.sources.to(device))

    def split(self, held_out: int) -> tuple[Corpus, Corpus]:
        """The last rows are kept for measuring."""
        require(len(self) > held_out, f"only {len(self)} blocks of text: too little to train on; give more data")
        return self.take(slice(0, -held_out)), self.take(slice(-held_out, None))

    def save(self, path: Path, target: str) -> None:
        """``target`` is the fingerprint of the model whose tokens these are."""
        tensors = {"tokens": self.tokens.to(torch.int32)}
        if self.sources is not None:
            tensors["sources"] = self.sources.to(torch.int32)
        save_file(tensors, str(path), {"target": target})

    @staticmethod
    def load(path: Path, target: str) -> Corpus:
        try:
            with safe_open(str(path), "pt") as file:
                made_for = (file.metadata() or {}).get("target")
                tensors = {name: file.get_tensor(name).long() for name in file.keys()}  # noqa: SIM118
            corpus = Corpus(tensors["tokens"], tensors.get("sources"))
        except (SafetensorError, OSError, KeyError) as error:
            raise BadOption(f"{path} is not text gathered by `outrider distill` ({error}); gather it again") from error
        if made_for != target:
            raise TokenizerMismatch(
                f"the text in {path} was gathered for another target, whose tokens may mean something else; gather it "
                "anew with --data or --self"
            )
        return corpus


def _narrowed(tokens: Tensor) -> Tensor:
    """Without columns at the end that are padding in every row."""
    used = (tokens >= 0).any(0).nonzero()
    return tokens[:, : int(used[-1]) + 1] if len(used) else tokens[:, :1]


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


def frequent_tokens(corpus: Corpus, vocab_size: int, most: int | None, always: Sequence[int] = ()) -> Tensor:
    """The N most frequent tokens of a corpus, in ascending order [N], ``always`` among them; all where N is None."""
    if most is None or most >= vocab_size:
        return torch.arange(vocab_size)
    seen = [t[t >= 0] for t in (corpus.tokens, corpus.sources) if t is not None]
    counts = torch.bincount(torch.cat(seen), minlength=vocab_size)
    counts[list(always)] = counts.sum() + 1
    return counts.topk(most).indices.sort().values
