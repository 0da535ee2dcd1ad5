"""Guesses that the text goes on as it did the last time: copying after the longest suffix match.

Leviathan section 3.6 names it for summaries and chats. For an encoder-decoder model the *source* is searched
as well. All rows are matched at once with a handful of tensor operations, on the device, at no host cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from outrider.core import host_sync
from outrider.core.noise import Noise
from outrider.core.numpy_ops import whole
from outrider.core.protocols import Draft, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.core.token_tree import NodeTree, TreeShape
from outrider.core.traits import DrafterTraits
from outrider.drafters.matching import SearchingSession, Tokens, longest_matches, searchable
from outrider.errors import require


@dataclass(frozen=True)
class Copying:
    """Proposes what followed the latest among the longest earlier matches of the last tokens.

    A match must be at least ``shortest`` tokens long; beyond ``longest`` tokens, longer is no better. A copy that
    reaches the end of the text goes on with its own first token: a text that goes round in a circle goes round again.
    """

    shortest: int = 2
    longest: int = 8
    name: str = "copy"
    traits: ClassVar[DrafterTraits] = DrafterTraits(point_masses=True)

    def __post_init__(self) -> None:
        require(self.shortest >= 1, f"shortest must be at least 1, got {self.shortest}")
        require(self.longest >= self.shortest, f"longest must be at least shortest, got {self.longest}")

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _CopyingSession(self, rows, shape, target)


class _CopyingSession(SearchingSession):
    capturable = grows_trees = True

    def __init__(self, drafter: Copying, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        self.drafter = drafter

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        if host_sync.free(self.context.device):
            return self._propose_on_host(gamma)
        return self.propose_on_device(gamma)

    def grow(self, shape: TreeShape) -> NodeTree:
        """One copy. Where there is none its tokens are any: they are judged like all others."""
        return NodeTree.chain(self.propose_on_device(min(shape.levels, shape.nodes)).tokens)

    def propose_on_device(self, gamma: int) -> Draft:
        text = self._searchable()  # [B, T]
        score = self._match_lengths(text) * (text.shape[1] + 1)
        score = score + torch.arange(text.shape[1], device=text.device) * (score > 0)  # latest among the longest
        best = score.amax(1)  # [B]
        found = (best >= self.drafter.shortest * (text.shape[1] + 1)) & self.context.active
        self.matched = torch.where(found, best // (text.shape[1] + 1), 0)
        start = score.argmax(1)[:, None] + 1  # [B, 1]
        end = self.context.lengths[:, None] + (text.shape[1] - self.context.capacity)
        place = start + torch.arange(gamma, device=text.device) % (end - start).clamp(min=1)  # [B, G]
        tokens = text.gather(1, place.clamp(max=text.shape[1] - 1))
        real = (tokens >= 0) & found[:, None]
        proposed = real.to(torch.int64).cumprod(1).bool()
        return Draft(tokens.clamp(min=0, max=self.vocab_size - 1), None, proposed)

    def _propose_on_host(self, gamma: int) -> Draft:
        """The same, row by row, where looking at a few places costs less than comparing all of them."""
        texts, sources = self.context.tokens.numpy(), self.sources.numpy()
        lengths = (self.context.lengths * self.context.active).tolist()  # nothing is copied in an empty slot
        found = [self._copy(texts[row, :length], sources[row], gamma) for row, length in enumerate(lengths)]
        self.matched = torch.tensor([match for match, _ in found])
        if not any(len(copy) for _, copy in found):
            return Draft.empty(len(found), self.context.device)
        tokens = np.zeros((len(found), gamma), dtype=np.int64)
        for row, (_, copy) in enumerate(found):
            tokens[row, : len(copy)] = copy
        return Draft(whole(tokens), None, torch.arange(gamma) < torch.tensor([[len(copy)] for _, copy in found]))

    def _copy(self, text: Tokens, source: Tokens, gamma: int) -> tuple[int, Tokens]:
        """Tokens of the best match, 0 if it is too short, and up to gamma tokens that followed it."""
        searched = searchable(text, source)
        matched, places = longest_matches(searched, text[: -self.drafter.longest - 1 : -1]) if len(text) else (0, text)
        if matched < self.drafter.shortest:
            return 0, searched[:0]
        start = places[-1] + 1
        after = searched[start + np.arange(gamma) % (len(searched) - start)]
        return matched, after[: int((after >= 0).cumprod().sum())].clip(max=self.vocab_size - 1)

    def _searchable(self) -> Tensor:
        """Source, a wall, then the committed text; -1 beyond its end -> [B, T]."""
        place = torch.arange(self.context.capacity, device=self.context.device)
        text = torch.where(place < self.context.lengths[:, None], self.context.tokens, -1)
        if not self.sources.shape[1]:
            return text
        wall = torch.full_like(text[:, :1], -1)
        return torch.cat([self.sources, wall, text], 1)

    def _match_lengths(self, text: Tensor) -> Tensor:
        """How many tokens ending at each place equal the last tokens of the row -> [B, T].

        Zero for the end of the text itself, which would match trivially, and where nothing follows.
        """
        length = torch.zeros_like(text)
        running = torch.ones_like(text, dtype=torch.bool)
        for back in range(self.drafter.longest):
            last = self.context.tokens.gather(1, (self.context.lengths - 1 - back).clamp(min=0)[:, None])
            last = torch.where((self.context.lengths > back)[:, None], last, -2)  # -2 matches nothing
            shifted = torch.nn.functional.pad(text, (back, 0), value=-1)[:, : text.shape[1]]
            running = running & (shifted == last)
            length = length + running
        followed = torch.nn.functional.pad(text[:, 1:], (0, 1), value=-1) >= 0
        return length * followed
