"""A session of one row that runs trees of guesses: every node once, whatever paths share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outrider.core.token_tree import TokenTree
from outrider.models.cached_session import CachedSession
from outrider.models.engine.panel_buffers import PanelBuffers


class TreeSession(CachedSession):
    """One row on an engine that runs trees. Nodes lie behind the text in the order of the tree until some are true."""

    cache: PanelBuffers
    _tree: TokenTree | None = None  # what was run last, until something is committed

    @torch.no_grad()
    def score_tree(self, tree: TokenTree) -> Tensor:
        assert self.context.rows == 1, "a tree is behind one text"
        if self.behind > 1 or not len(tree):  # after other runs: pending tokens are run as a text first
            logits = self.score(torch.zeros((1, 0), dtype=torch.int64))
            if not len(tree):
                return logits
            self.cached.copy_(self.context.lengths - 1)
            self.behind = 1
        root = int(self.context.lengths[0]) - 1
        depths = torch.tensor([0, *tree.depths])
        tokens = torch.tensor([[int(self.context.tokens[0, root]), *tree.tokens]])
        wanted = replace(self._wanted(len(depths)), tree=tree)
        found = self.engine.run(tokens, (root + depths)[None], self.cache, wanted)
        places = root + torch.arange(len(depths))
        self._keep(range(1), places[None], found.states)
        self._window = None if found.hidden is None else (places[:1], found.hidden)
        self._scored, self._tree = True, tree
        assert found.logits is not None
        return found.logits

    def commit_path(self, path: Sequence[int], token: int) -> None:
        tree, self._tree = self._tree, None
        if tree is None:  # nothing was guessed
            self.commit(torch.tensor([[token]]), torch.tensor([1]))
            return
        root = int(self.context.lengths[0]) - 1
        places = [root + 1 + node for node in path]
        self._gather(list(range(root + 1, root + 1 + len(path))), places)
        tokens = torch.tensor([[*(tree.tokens[node] for node in path), token]])
        self.context.append(tokens, torch.tensor([tokens.shape[1]]))
        self.cached.copy_(self.context.lengths - 1)
        if self.hidden is not None and self._window is not None:
            self.hidden[0] = self._window[1][0, path[-1] + 1 if path else 0]
        self.behind, self.guessed, self._scored, self._window = 1, 0, False, None

    def _gather(self, to: list[int], places: list[int]) -> None:
        """What is true now goes where it belongs: keys and values, and states of layers."""
        moved = [(new, old) for new, old in zip(to, places, strict=True) if new != old]
        if not moved:
            return
        new, old = (list(each) for each in zip(*moved, strict=True))
        self.cache.move_positions(0, new, old)
        if self.states is not None:
            self.states[0, new] = self.states[0, old]
