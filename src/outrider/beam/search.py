"""Beam search with one target run for several steps, and the same search without speculation.

The search itself is ``beam/rules.py``; here the drafter's tree is run through the target, the search is
replayed on what that run has shown, and rows move to the hypotheses that survive. Without a drafter every run
shows the running hypotheses alone, which is plain beam search; the shapes are the same, and so are the bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider.beam.request_rules import close_fitting, rules_of
from outrider.beam.rules import Hypothesis, Scored, Search, Tokens, replay
from outrider.beam.tree import Growth, Path, Root, grow, lay_out
from outrider.beam.tree_levels import Levels, SearchShape
from outrider.core.model_facts import facts_of
from outrider.core.sampling import log_standardise
from outrider.decoding.fault import fault
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.memory import memory_for
from outrider.decoding.safe_drafter import SafeDrafter
from outrider.drafters import Nothing
from outrider.errors import NumericalError, require
from outrider.options import Options
from outrider.planning.policies import Policy
from outrider.trace import Ending, Record, Stopwatch, Trace

GAMMA = 2
"""Levels of a draft tree unless asked otherwise, whatever the drafter: the width of a run, gamma + 1, decides bits."""


@dataclass(frozen=True)
class BeamDecoder:
    """A decoder's target, drafter, sampling and shapes, for beam search. Requests run one after another."""

    decoder: Decoder
    beams: int  # w: hypotheses that run together
    rows: int  # u: rows of a target run, and the drafter's beams
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    policy: Policy | None = None  # decides whether to guess, and how many levels up to gamma; None: always all

    def __post_init__(self) -> None:
        require(self.rows >= self.beams, f"draft_beams must be at least beams, {self.beams}; got {self.rows}")
        size = self.decoder.target.vocab_size
        require(self.beams <= size, f"beams must be at most the {size} tokens of the vocabulary, got {self.beams}")
        require(self.decoder.sampling.greedy, "beams: beam search has no temperature; leave it at 0")

    @staticmethod
    def of(decoder: Decoder, options: Options) -> BeamDecoder:
        """A run is as wide as the tree is deep, and has a row for each of the drafter's beams."""
        gamma = options.gamma if isinstance(options.gamma, int) else min(GAMMA, decoder.width - 1)
        rows = options.draft_beams or draft_beams(options.beams)
        if isinstance(decoder.drafter, Nothing) and not _padded(decoder):
            gamma, rows = 0, options.beams
        shaped = replace(decoder, gamma=gamma, width=gamma + 1)
        policy = None if isinstance(options.gamma, int) or isinstance(decoder.gamma, int) else decoder.gamma
        policy = None if isinstance(decoder.drafter, Nothing) else policy
        return BeamDecoder(shaped, options.beams, rows, options.length_penalty, options.early_stopping, policy)

    @property
    def gamma(self) -> int:
        """Levels of a draft tree: as many as asked for, or as a run has room for."""
        return self.decoder.gamma if isinstance(self.decoder.gamma, int) else self.decoder.width - 1

    def search(self, request: Request, trace: Trace, index: int = 0) -> tuple[Hypothesis, ...]:
        """The finished hypotheses of a request, best first: w of them, or fewer if the target allows no more."""
        remedy = "use fewer beams, fewer draft_beams, a smaller max_new_tokens, or a shorter prompt"
        with memory_for(f"{self.rows} rows of a beam search with {self.beams} beams", remedy):
            return _Search(self, request, trace, index).run()


@dataclass(frozen=True)
class Beam:
    """A finished hypothesis as text. The score is its log-probability over length ** length_penalty."""

    text: str
    tokens: list[int]
    score: float
    finish_reason: str
    stop_reason: str | int | None = None


def beam_search(decoder: Decoder, request: Request, options: Options, trace: Trace) -> tuple[Beam, ...]:
    """The best ``num_return`` hypotheses; fewer if a processor leaves fewer possible."""
    rules = decoder.stopping(request)
    assert rules.decode is not None
    beams = []
    for hypothesis in BeamDecoder.of(decoder, options).search(request, trace)[: options.num_return]:
        row = rules.start(request.prompt)
        row.push(hypothesis.tokens)
        reason = str(hypothesis.finish_reason)
        beams.append(Beam(row.text(rules.decode), row.tokens, hypothesis.score, reason, row.stop_reason))
    require(bool(beams), "no hypothesis can be finished: logit_bias or a logits_processor forbids every token")
    trace.endings.append(Ending(0, beams[0].finish_reason, beams[0].stop_reason))
    return tuple(beams)


def _padded(decoder: Decoder) -> bool:
    """Whether bits depend on the shape of a run and are to be the same: a plain run then has that shape, too."""
    return decoder.exact and not facts_of(decoder.target).batch_invariant


def draft_beams(beams: int) -> int:
    """u where none is asked for: half as many again, since a row more costs more than the steps it gains."""
    return beams + max(1, beams // 2)


class _Search:
    """One request on one target session and one draft session with a row for every path of the tree."""

    def __init__(self, plan: BeamDecoder, request: Request, trace: Trace, index: int) -> None:
        decoder = plan.decoder.ending([request])
        self.stopping = decoder.stopping(request)
        shape = close_fitting(decoder.shape(request), request, self.stopping)
        self.trace, self.index, self.request = trace, index, request
        self.rows, self.sampling = plan.rows, decoder.sampling
        self.rules = rules_of(
            self.stopping, request, plan.decoder.sampling.lowers, plan.beams, plan.length_penalty, plan.early_stopping
        )
        tree = SearchShape(plan.beams, plan.rows, plan.gamma)
        self.levels = Levels(plan.policy, tree, decoder.target, decoder.drafter)
        self.asked: int | None = self.levels.choose(self._left(0))  # None: this search has no drafter any more
        drafter = decoder.drafter
        if self.asked == 0 and plan.policy is not None:
            drafter, self.asked = Nothing(), None
            self.rows = plan.rows if _padded(decoder) else plan.beams
        self.watch = Stopwatch(trace.seconds)
        self.shape, self.target = shape, decoder.target.start(self.rows, shape)
        self.drafter = SafeDrafter(lambda: drafter.start(self.rows, shape, self.target), self.rows, self.target)
        self.growth = Growth(
            self.rows,
            plan.gamma,
            replace(self.sampling, temperature=1.0),
            tuple(self.stopping.eos),
            self.target.device,
            self.target.vocab_size,
        )
        self.state = Search.start(plan.beams)
        self.home: dict[Tokens, int] = {(): 0}  # the row of each running hypothesis
        self.busy = {0}  # rows that are run

    def run(self) -> tuple[Hypothesis, ...]:
        for session in (self.target, self.drafter):
            session.admit(0, self.request.prompt, self.request.source)  # other rows are empty until they are copied to
        self.watch.lap("prefill")
        while not self.state.done:
            self._step()
        self.trace.drafter_error = self.trace.drafter_error or self.drafter.error
        return self.state.finished

    def _left(self, written: int) -> int:
        """Steps that a search may still have."""
        return self.rules.max_new_tokens - written

    def _step(self) -> None:
        paths, guesses = self._draft()
        self.levels.made()
        self.watch.lap("draft")
        came_from = self._place(paths)
        scored, where = self._score(paths)
        self.watch.lap("target")
        before = len(self.state.running[0].tokens)
        self.state, steps = replay(self.state, self.rules, scored)
        self._settle(where, steps, came_from)
        self.watch.lap("accept")
        self.trace.runs += 1
        self._record(before, steps, guesses)
        left = self._left(before + steps)
        self.levels.learn(self.asked, len(guesses), steps, 0 if self.state.done else left)
        if not self.state.done:
            self._ask(left)
        self.watch.lap("host")

    def _ask(self, left: int) -> None:
        """How many levels of guesses the next run is to have."""
        if self.asked is None:
            self.levels.plain()
            return
        self.asked = self.levels.choose(left)
        if self.levels.dismissed:
            self.asked, self.trace.drafter_error = None, self.trace.drafter_error or self.drafter.error
            self.drafter = SafeDrafter(
                lambda: Nothing().start(self.rows, self.shape, self.target), self.rows, self.target
            )

    def _draft(self) -> tuple[list[Path], Tokens]:
        """The rows of the next target run, and the drafter's best guesses: one for each level of its tree."""
        # The copies that a search starts with are one hypothesis.
        running = {h.tokens: h for h in reversed(self.state.running)}
        roots = [Root(h, self.home[h.tokens]) for h in reversed(running.values())]
        growth = replace(self.growth, depth=self.asked or 0)
        levels = self.drafter.attempt(lambda session: grow(session, roots, growth)) if growth.depth > 0 else None
        best = levels[-1][0].tokens[len(roots[0].hypothesis.tokens) :] if levels else ()
        return lay_out(roots, levels or [], self.rows), best

    def _place(self, paths: list[Path]) -> list[int]:
        """A row for every path, the first of a root in its own -> the row each row was copied from."""
        free = [row for row in range(self.rows) if row not in self.home.values()]
        came_from, taken = list(range(self.rows)), set()
        for path in paths:
            row = path.root.row if path.root.row not in taken else free.pop()
            taken.add(row)
            came_from[row], path.row = path.root.row, row
        self.busy |= taken
        self.target.select(self._tensor(came_from))
        return came_from

    def _score(self, paths: list[Path]) -> tuple[Scored, dict[Tokens, int]]:
        """Run all paths -> the best continuations behind every node, and the row each node is in."""
        guesses = max(len(path.tail) for path in paths)
        tails = torch.zeros((self.rows, guesses), dtype=torch.int64)
        place: dict[Tokens, int] = {}
        for path in paths:
            tails[path.row, : len(path.tail)] = torch.tensor(path.tail, dtype=torch.int64)
            for depth in range(len(path.tail) + 1):
                node = (*path.root.hypothesis.tokens, *path.tail[:depth])
                place.setdefault(node, path.row * (guesses + 1) + depth)
        tails = tails.to(self.target.device)
        logits = self.target.score(tails)  # [u, G+1, V]
        place = self._healthy(place, logits)
        if self.sampling.adjusts:  # behind its own text each
            scores = log_standardise(logits, self.sampling, self.target.context, tails)
            self._check_processed(place, scores)
            scores = scores.flatten(0, 1)[list(place.values())]
        else:
            nodes = logits.flatten(0, 1)[list(place.values())]  # neither empty rows nor what fills up short ones
            scores = log_standardise(nodes[:, None], self.sampling, self.target.context, tails)[:, 0]
        best = scores.topk(min(self.rules.kept, scores.shape[-1]), -1)
        scored = Scored({node: index for index, node in enumerate(place)}, best.values.cpu(), best.indices.tolist())
        return scored, {node: index // (guesses + 1) for node, index in place.items()}

    def _healthy(self, place: dict[Tokens, int], logits: Tensor) -> dict[Tokens, int]:
        """The nodes whose logits are numbers. Others do not count as shown; without a hypothesis itself, it ends."""
        good = logits.amax(-1).isfinite().flatten().tolist()
        shown = {node: index for node, index in place.items() if good[index]}
        if not all(h.tokens in shown for h in self.state.running):
            raise NumericalError(
                f"the model returned NaN or infinite logits after {int(self.target.context.lengths.max())} tokens; "
                "try dtype='float32', or check the model's weights"
            )
        return shown

    def _check_processed(self, place: dict[Tokens, int], scores: Tensor) -> None:
        """Refuse processors that make NaN or plus infinity of a running hypothesis' scores; -inf forbids a token."""
        if not self.sampling.processors:
            return
        good = (scores.amax(-1) < torch.inf).flatten().tolist()  # NaN is not
        columns = scores.shape[1]
        for hypothesis in self.state.running:
            row, depth = divmod(place[hypothesis.tokens], columns)
            if not good[row * columns + depth]:
                length = int(self.target.context.lengths[row])
                raise NumericalError(fault(self.target, row, length, self.sampling))

    def _settle(self, where: dict[Tokens, int], steps: int, came_from: list[int]) -> None:
        """Every surviving hypothesis gets a row that holds all of it but its last token; the first one stays."""
        survivors = list(dict.fromkeys(h.tokens for h in self.state.running)) if not self.state.done else []
        origin, home = list(range(self.rows)), dict[Tokens, int]()
        parents = {tokens: where[tokens[:-1]] for tokens in survivors}
        for tokens in survivors:
            if parents[tokens] not in home.values():
                home[tokens] = parents[tokens]
        free = [row for row in range(self.rows) if row not in home.values()]
        for tokens in survivors:
            if tokens not in home:
                home[tokens] = free.pop()
            origin[home[tokens]] = parents[tokens]
        new, count = torch.zeros((self.rows, steps), dtype=torch.int64), torch.zeros(self.rows, dtype=torch.int64)
        for tokens, row in home.items():
            new[row], count[row] = torch.tensor(tokens[-steps:]), steps
        new, count = new.to(self.target.device), count.to(self.target.device)
        self.target.select(self._tensor(origin))
        self.target.commit(new, count)
        self.drafter.select(self._tensor([came_from[row] for row in origin]))
        self.drafter.commit(new, count)
        for row in sorted(self.busy - set(home.values())):  # until something is copied there: empty rows need not run
            self.target.release(row)
            self.drafter.release(row)
        self.home, self.busy = home, set(home.values())

    def _record(self, before: int, steps: int, guesses: Tokens) -> None:
        self.trace.records.append(
            Record(
                row=self.index,
                position=len(self.request.prompt) + before,
                drafted=guesses,
                accepted=steps - 1,
                token=self.state.running[0].tokens[-1],
                overlap=(None,) * len(guesses),
                emitted=steps,
            )
        )

    def _tensor(self, rows: list[int]) -> Tensor:
        return torch.tensor(rows, device=self.target.device)
