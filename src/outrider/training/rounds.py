"""Finished rounds of generated text on disk, so that an interrupted run resumes with the next round."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from outrider.training.data import Pair


class Rounds:
    """Pairs of prompt and answer by number of the round; without a folder nothing is kept."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def load(self, number: int) -> list[Pair] | None:
        path = self._path(number)
        if path is None or not path.is_file():
            return None
        kept = load_file(str(path))
        parts = torch.split(kept["tokens"], kept["lengths"].flatten().tolist())
        return [(prompt.tolist(), answer.tolist()) for prompt, answer in zip(parts[::2], parts[1::2], strict=True)]

    def save(self, number: int, pairs: Sequence[Pair]) -> None:
        """A kill leaves the whole file or none."""
        path = self._path(number)
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        lengths = torch.tensor([[len(prompt), len(answer)] for prompt, answer in pairs], dtype=torch.int32)
        tokens = torch.tensor([token for pair in pairs for part in pair for token in part], dtype=torch.int32)
        temporary = path.with_suffix(".tmp")
        save_file({"lengths": lengths.reshape(-1, 2), "tokens": tokens}, str(temporary))
        os.replace(temporary, path)

    def tokens(self) -> int:
        """Of everything that is kept."""
        files = [] if self._folder is None else sorted(self._folder.glob("*.safetensors"))
        return sum(load_file(str(path))["tokens"].numel() for path in files)

    def _path(self, number: int) -> Path | None:
        return None if self._folder is None else self._folder / f"{number:04}.safetensors"


def size(pairs: Sequence[Pair]) -> int:
    """Tokens of prompts and answers."""
    return sum(len(prompt) + len(answer) for prompt, answer in pairs)
