"""Training text in blocks of tokens, stored on disk so that a run can resume."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from outrider.errors import BadOption, ModelNotFound, TokenizerMismatch, require
from outrider.models.hub.loading import Loaded

Pair = tuple[Sequence[int], Sequence[int]]
"""A prompt, and what the target answered."""

PADDING = -1
"""Behind the end of a text that is shorter than its row; not a token of any target."""


@dataclass(frozen=True)
class Corpus:
    """Blocks of tokens [M, T]; with sources [M, S] for an encoder-decoder target. A row is one training example.

    ``written`` [M, T] says which tokens the target wrote: a draft is asked for nothing else, so nothing else is
    learnt from or counted. None: all of them are.
    """

    tokens: Tensor
    sources: Tensor | None = None
    written: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: slice | Sequence[int], stride: int = 1) -> Corpus:
        """Some rows, no wider than they need be: a multiple of ``stride``, where the text is that wide."""
        sources = None if self.sources is None else _narrowed(self.sources[rows], stride)
        tokens = _narrowed(self.tokens[rows], stride)
        written = None if self.written is None else self.written[rows][:, : tokens.shape[1]]
        return Corpus(tokens, sources, written)

    def to(self, device: torch.device) -> Corpus:
        parts = (self.tokens, self.sources, self.written)
        return Corpus(*(None if part is None else part.to(device) for part in parts))  # type: ignore[arg-type]

    @property
    def counts(self) -> Tensor:
        """[M, T]: the tokens a draft is judged by."""
        text = self.tokens >= 0
        return text if self.written is None else text & self.written

    def split(self, held_out: int) -> tuple[Corpus, Corpus]:
        """The last rows are kept for measuring."""
        require(len(self) > held_out, f"only {len(self)} blocks of text: too little to train on; give more data")
        return self.take(slice(0, -held_out)), self.take(slice(-held_out, None))

    def save(self, path: Path, target: str) -> None:
        """``target`` is the fingerprint of the model whose tokens these are."""
        tensors = {"tokens": self.tokens.to(torch.int32)}
        if self.sources is not None:
            tensors["sources"] = self.sources.to(torch.int32)
        if self.written is not None:
            tensors["written"] = self.written
        save_file(tensors, str(path), {"target": target})

    @staticmethod
    def load(path: Path, target: str) -> Corpus:
        try:
            with safe_open(str(path), "pt") as file:
                made_for = (file.metadata() or {}).get("target")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            sources = tensors["sources"].long() if "sources" in tensors else None
            corpus = Corpus(tensors["tokens"].long(), sources, tensors.get("written"))
        except (SafetensorError, OSError, KeyError) as error:
            raise BadOption(f"{path} is not text gathered by `outrider distill` ({error}); gather it again") from error
        if made_for != target:
            raise TokenizerMismatch(
                f"the text in {path} was gathered for another target, whose tokens may mean something else; gather it "
                "anew with --data or --self"
            )
        return corpus


def text_size(path: Path) -> int:
    """Tokens of text in a file that ``Corpus.save`` wrote."""
    with safe_open(str(path), "pt") as file:
        return int((file.get_tensor("tokens") >= 0).sum())


def _narrowed(tokens: Tensor, stride: int) -> Tensor:
    """Without columns at the end that are padding in every row."""
    used = (tokens >= 0).any(0).nonzero()
    wide = int(used[-1]) + 1 if len(used) else 1
    return tokens[:, : -(-wide // stride) * stride]


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
        with open_text(path) as file, readable(path):
            for document in _jsonl(file, path) if ".jsonl" in path.suffixes else _paragraphs(file):
                yield document
                read += len(document)
                if most_characters is not None and read >= most_characters:
                    return


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What is no text is one line of an error."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise BadOption(f"data file {path} is not UTF-8 text ({error.reason}); convert it first") from None
    except (lzma.LZMAError, EOFError, gzip.BadGzipFile) as error:
        raise BadOption(f"data file {path} cannot be unpacked ({error}); fetch it again") from None


def _jsonl(file: IO[str], path: Path) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            record: Any = json.loads(line)
            text = record if isinstance(record, str) else record.get("text") or record["prompt"]
        except (ValueError, AttributeError, KeyError) as error:
            raise BadOption(
                f"{path}, line {number}: needs a text, or an object with a text or a prompt ({error})"
            ) from None
        yield str(text)


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
    ends = [end] if end is not None else []
    return Corpus(pack((loaded.tokenizer.encode(t) + ends for t in texts), block, most_tokens))


def from_answers(pairs: Sequence[Pair], block: int) -> Corpus:
    """Prompts with the target's answers, one in a row as in use; which tokens are answers is kept beside them.

    What is longer than a block loses its beginning.
    """
    require(len(pairs) > 0, "there is no answer to learn from; give other prompts")
    width = min(block, max(len(prompt) + len(answer) for prompt, answer in pairs))
    tokens = torch.full((len(pairs), width), PADDING)
    written = torch.zeros((len(pairs), width), dtype=torch.bool)
    for row, (prompt, answer) in enumerate(pairs):
        text = torch.tensor([*prompt, *answer])[-width:]
        tokens[row, : len(text)] = text
        written[row, max(0, len(text) - len(answer)) : len(text)] = True
    return Corpus(tokens, written=written)


def pack(sequences: Iterable[Sequence[int]], block: int, most: int) -> Tensor:
    """Sequences one after another, cut into blocks of equal length [M, block]."""
    stream: list[int] = []
    for sequence in sequences:
        stream.extend(sequence)
        if len(stream) >= most:
            break
    rows = len(stream) // block
    if rows == 0:
        raise BadOption(f"the data has {len(stream)} tokens, less than one block of {block}; give more text")
    return torch.tensor(stream[: rows * block]).reshape(rows, block)


def frequent_tokens(corpus: Corpus, vocab_size: int, most: int | None, always: Sequence[int] = ()) -> Tensor:
    """The N most frequent tokens that count, in ascending order [N], ``always`` among them; all where N is None."""
    if most is None or most >= vocab_size:
        return torch.arange(vocab_size)
    seen = [corpus.tokens[corpus.counts]] + ([] if corpus.sources is None else [corpus.sources[corpus.sources >= 0]])
    counts = torch.bincount(torch.cat(seen), minlength=vocab_size)
    counts[list(always)] = counts.sum() + 1
    return counts.topk(most).indices.sort().values
