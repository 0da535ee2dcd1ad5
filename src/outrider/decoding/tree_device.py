"""Steps with trees of guesses on a device: the tree is grown, run, judged and committed without a host-device sync.

At temperature 0, where a guess is kept if it is the target's own token: whatever the tree, the text is plain
decoding's. Everything has constant shapes, so a step can be captured as a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core import host_sync
from outrider.core.abilities import TreeGrowing
from outrider.core.sampling import Sampling, choices
from outrider.core.token_tree import NodeScoring, NodeTree, TreeShape
from outrider.core.verification.tree import by_matching, tree_rule
from outrider.decoding.batch import BatchRules
from outrider.decoding.step_result import PendingStep
from outrider.decoding.step_runner import StepRunner


@dataclass(frozen=True)
class TreeOutcome:
    """What a step with a tree gave."""

    emitted: tuple[int, ...]  # the guesses that are kept, then a token of the target's own
    healthy: int  # how many of these tokens rest on logits that are numbers
    beside: tuple[int, ...]  # the first guess behind those that are kept, if there is one: it is not kept
    nodes: int  # that were run

    @staticmethod
    def read(step: PendingStep) -> TreeOutcome:
        count, healthy, beside, nodes, *tokens = map(int, step.read().rows[0])
        return TreeOutcome(tuple(tokens[:count]), healthy, () if beside < 0 else (beside,), nodes)


class DeviceTrees:
    """The steps of one row, all with trees of one shape."""

    def __init__(self, runner: StepRunner, growing: TreeGrowing, sampling: Sampling, shape: TreeShape) -> None:
        assert isinstance(runner.target, NodeScoring)
        self.runner, self.growing, self.sampling, self.shape = runner, growing, sampling, shape
        self.target: NodeScoring = runner.target
        self.none = torch.zeros((1, 0), dtype=torch.int64, device=runner.target.device)

    @staticmethod
    def of(runner: StepRunner, rules: BatchRules, shape: TreeShape) -> DeviceTrees | None:
        """None where steps are better taken on the host, or a rule or drafter can be asked nowhere else."""
        sampling, growing = rules.sampling, runner.drafter.abilities.growing
        device, matching = runner.target.device, tree_rule(rules.verifier) is by_matching
        if host_sync.free(device) or not matching or not sampling.greedy or sampling.adjusts or growing is None:
            return None
        return DeviceTrees(runner, growing, sampling, shape)

    @torch.no_grad()
    def launch(self) -> PendingStep | None:
        """None: the drafter has failed, and the text goes on without it."""
        name = ("tree", self.shape, str(self.sampling))
        found = self.runner.replayed(name, self._watched) if self.runner.graphs else None
        if found is None:
            tree = self.runner.drafter.attempt(lambda _: self.growing.grow(self.shape))
            found = None if tree is None else self.step(tree)
        return None if found is None else PendingStep(found)

    def _watched(self) -> Tensor:
        """A step to be captured: what the drafter raises ends that."""
        with self.runner.drafter.raising():
            return self.step(self.growing.grow(self.shape))

    def step(self, tree: NodeTree) -> Tensor:
        """One step -> [1, 4 + levels + 1] float64: what ``TreeOutcome`` reads."""
        context = self.runner.target.context
        own = choices(self.target.score_nodes(tree.tokens, tree.places), self.sampling, context, self.none)
        last, kept = tree.followed(own.tokens[0])
        path = tree.places.paths[last]  # [1, levels + 1]: places in the run, the root's first
        place = torch.arange(path.shape[1], device=path.device)
        run = torch.cat([torch.zeros_like(last)[None], tree.tokens], 1)  # [1, W]; the root's token is nobody's guess
        emitted = run.gather(1, path.roll(-1, 1)).scatter(1, kept[:, None], own.tokens.gather(1, last[:, None]))
        finite = own.weight.gather(1, path).isfinite().to(torch.int64).cumprod(1).sum(1)
        nodes = torch.full_like(kept, tree.tokens.shape[1])  # a copy is a chain, however many nodes were asked for
        table = [kept + 1, torch.minimum(finite, kept + 1), tree.beside(last), nodes, *emitted.unbind(1)]
        self.target.commit_nodes(torch.where(place < kept, path.roll(-1, 1), place + 1)[:, :-1], emitted, kept + 1)
        self.runner.drafter.commit(emitted, kept + 1)
        return torch.stack(table, 1).to(torch.float64)
