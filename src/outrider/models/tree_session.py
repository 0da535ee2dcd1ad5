"""A session of one row that runs trees of guesses: every node once, whatever paths share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outrider.core import host_sync
from outrider.core.token_tree import TokenTree, TreePlaces
from outrider.models.cached_session import CachedSession


class TreeSession(CachedSession):
    """One row on an engine that runs trees. Nodes lie behind the text in the order of the tree until some are true."""

    _tree: TokenTree | None = None  # what was run last, until something is committed

    def score_tree(self, tree: TokenTree) -> Tensor:
        if not len(tree):
            return self.score(torch.zeros((1, 0), dtype=torch.int64, device=self.device))
        tokens = torch.tensor([tree.tokens]).to(self.device)
        logits = self.score_nodes(tokens, tree.places(self.device))
        self._tree = tree
        return logits

    @torch.no_grad()
    def score_nodes(self, tokens: Tensor, places: TreePlaces) -> Tensor:
        assert self.context.rows == 1, "a tree is behind one text"
        if self.behind > 1:  # after other runs: pending tokens are run as a text first
            self.score(tokens[:, :0])
            self.cached.copy_(self.context.lengths - 1)
            self.behind = 1
        root = self.context.lengths - 1  # [1]
        run = torch.cat([self.context.read(root, 1), tokens], 1)
        wanted = replace(self._wanted(run.shape[1]), tree=places)
        found = self.engine.run(run, root[:, None] + places.depths, self.cache, wanted)
        self._keep(range(1), root[:, None] + torch.arange(run.shape[1], device=self.device), found.states)
        self._window = None if found.hidden is None else (root, found.hidden)
        self._scored = True
        assert found.logits is not None
        return found.logits

    def commit_path(self, path: Sequence[int], token: int) -> None:
        tree, self._tree = self._tree, None
        if tree is None:  # nothing was guessed
            new = torch.tensor([[token]]).to(self.device)
            self.commit(new, torch.ones_like(new[0]))
            return
        tokens = torch.tensor([[*(tree.tokens[node] for node in path), token]]).to(self.device)
        places = torch.tensor([[node + 1 for node in path]], dtype=torch.int64).to(self.device)
        self.commit_nodes(places, tokens, torch.full_like(tokens[0, :1], tokens.shape[1]))

    def commit_nodes(self, path: Tensor, tokens: Tensor, count: Tensor) -> None:
        root = self.context.lengths - 1  # [1]
        self._gather(root + 1 + torch.arange(path.shape[1], device=self.device), root + path[0])
        if self.hidden is not None and self._window is not None:
            last = torch.nn.functional.pad(path, (1, 0)).gather(1, count[:, None] - 1)  # the root, where none was kept
            self.hidden.copy_(self._window[1][0].index_select(0, last[0]))
        self.context.append(tokens, count)
        self.cached.copy_(self.context.lengths - 1)
        self.behind, self.guessed, self._scored, self._window = 1, 0, False, None

    def _gather(self, to: Tensor, places: Tensor) -> None:
        """What is true now goes where it belongs: keys and values, and states of layers."""
        if host_sync.free(self.device):
            moved = to != places
            if not moved.any():
                return
            to, places = to[moved], places[moved]
        self.cache.move_positions(0, to, places)
        if self.states is not None:
            self.states[0, to] = self.states[0, places]
