"""The loop: requests in, tokens out as they are accepted, whatever the number of rows that run together."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from torch import Tensor

from outrider.core.model_facts import facts_of
from outrider.core.protocols import Shape, Source
from outrider.core.verification.tree import tree_rule
from outrider.decoding.batch import WIDTH as WIDTH
from outrider.decoding.batch import BatchRules, RunningBatch
from outrider.decoding.inbox import RequestList, RequestQueue
from outrider.decoding.request import Event as Event
from outrider.decoding.request import Request as Request
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.stopping import Row
from outrider.decoding.tree_loop import TreeDecoding, TreePlan, tree_events
from outrider.errors import PromptError, require
from outrider.planning.policies import Policy
from outrider.trace import Trace


@dataclass(frozen=True)
class Decoder(BatchRules):
    """Target, drafter, rule and shapes. ``stream`` generates."""

    pool: SessionPool = field(default_factory=SessionPool)  # where sessions come from, and whether steps are replayed
    common: Shape | None = None  # the shape of all requests, which then run side by side; None: each has its own
    tree: int | None = None  # guesses of a run at most, where they are a tree, of gamma levels; None: they are a chain

    def __post_init__(self) -> None:
        require(self.width >= 1, f"width must be at least 1, got {self.width}")
        if isinstance(self.gamma, int):
            require(self.gamma >= 0, f"gamma must be 0 (no guesses) or more, got {self.gamma}")
            require(
                self.gamma < self.width,
                f"gamma {self.gamma} needs a width of {self.gamma + 1}, this model was loaded with {self.width}; "
                f"load it with width={self.gamma + 1}",
            )
        self._check_tree()
        require(isinstance(self.gamma, (int, Policy)), f"gamma must be a whole number or a policy, got {self.gamma!r}")
        require(self.slots is None or self.slots >= 1, f"slots must be at least 1, got {self.slots}")
        size = self.target.vocab_size
        outside = [token for token in self.sampling.logit_bias if not 0 <= token < size]
        require(not outside, f"logit_bias names token {outside}, the vocabulary has {size} tokens")

    def _check_tree(self) -> None:
        if self.tree is None:
            return
        require(self.tree >= 1, f"tree must be at least 1 guess, got {self.tree}")
        require(self.gamma != 0, f"gamma=0 makes no guesses, and tree={self.tree} is made of them; leave one out")
        require(
            self.tree < self.width,
            f"tree={self.tree} needs a width of {self.tree + 1}, this model was loaded with {self.width}; "
            f"load it with width={self.tree + 1}",
        )
        tree_rule(self.verifier)
        facts = facts_of(self.target)
        kind = (
            "an encoder-decoder model" if facts.encoder_decoder else f"engine {facts.engine!r} on {facts.device.type!r}"
        )
        require(
            facts.runs_trees,
            f"tree: {kind} does not run trees of guesses; use a decoder-only model of Llama's kind, on a GPU or on a "
            "CPU with engine='numba', or leave tree out",
        )

    def stream(self, requests: Sequence[Request], trace: Trace, names: Sequence[int] | None = None) -> Generator[Event]:
        """Events in the order they happen. A row depends on its own request and the shapes, never on others.

        A row whose logits are not numbers, or whose stopping criterion fails, ends there with ``row.error``, and the
        others go on; NumericalError or CriterionError if that leaves none.
        ``names`` are the numbers the requests go by in events and trace; 0, 1, 2... if not given.
        """
        names = range(len(requests)) if names is None else names
        groups: dict[Shape, list[int]] = {}
        for index, shape in enumerate(self.shared(self.shapes(requests, names))):
            groups.setdefault(shape, []).append(index)
        slots = self.slots or min(len(requests), facts_of(self.target).slots)
        decoder = self.ending(requests)
        if self.tree is not None:
            slots = 1  # one request after another
        distinct = len({request.seed for request in requests}) == len(requests)
        failed: dict[int, Row] = {}
        for shape, members in groups.items():
            with self.pool.lend((self.target, self.drafter), slots, shape) as runner:
                numbered = [(names[i], requests[i]) for i in members]
                if self.tree is not None:
                    plan = TreePlan(self.tree, self.gamma if isinstance(self.gamma, int) else None)
                    batch = tree_events(TreeDecoding(decoder, plan, runner, trace), numbered)
                else:
                    batch = RunningBatch(decoder, runner, trace, distinct).run(RequestList(numbered))
                with closing(batch):  # before its sessions serve another batch
                    for event in batch:
                        yield event
                        if event.row.error is not None:
                            failed[event.index] = event.row
        if failed and len(failed) == len(requests):  # nothing is left to go on with
            raise next(iter(failed.values())).exception

    def queue(self, capacity: int) -> RequestQueue:
        """A queue for ``serve``, for texts of up to so many tokens, prompts included."""
        return RequestQueue(lambda request: self._check_room(request, capacity))

    def serve(self, queue: RequestQueue, trace: Trace, capacity: int, slots: int) -> Generator[Event]:
        """Events of requests that come and go while this runs; ends when the queue is closed and all are done.

        Rows share sessions of one capacity, so a text is the one ``stream`` gives where bits do not depend on it.
        Runs in the thread that asks for events; requests come from any.
        """
        require(self.tree is None, "tree: a server does not decode with trees of guesses; leave tree out")
        shape = self.shape_for(capacity)
        with (
            self.pool.lend((self.target, self.drafter), slots, shape) as runner,
            closing(RunningBatch(self, runner, trace, serving=True).run(queue)) as events,
        ):
            yield from events

    def _check_room(self, request: Request, capacity: int) -> None:
        require(request.source is None, "a queue is for decoder-only models; give requests with a source to `stream`")
        needed = len(request.prompt) + self.stopping(request).max_new_tokens
        self.shape(request)
        require(
            needed <= capacity,
            f"the prompt and max_new_tokens are {needed} tokens together, and the queue was made for {capacity}; "
            "shorten one of them",
            PromptError,
        )

    def shape_for(self, tokens: int, source_capacity: int = 0) -> Shape:
        return Shape(self._capacity(tokens), self.width, source_capacity, fixed=self.exact)

    def shapes(self, requests: Sequence[Request], names: Sequence[int] | None = None) -> list[Shape]:
        """The shape of each request; PromptError names the first one that cannot be continued."""
        names, found = range(len(requests)) if names is None else names, []
        for name, request in zip(names, requests, strict=True):
            try:
                found.append(self.shape(request))
            except PromptError as error:
                if len(names) == 1 and name == 0:
                    raise
                raise PromptError(f"prompts[{name}], {request.opening}: {error}") from None
        return found

    def shared(self, shapes: Sequence[Shape]) -> list[Shape]:
        """One shape for all requests, the largest, where a row's bits do not depend on the capacity."""
        if not shapes or not facts_of(self.target).capacity_invariant:
            return list(shapes)
        most = replace(
            shapes[0],
            capacity=max(shape.capacity for shape in shapes),
            source_capacity=max(shape.source_capacity for shape in shapes),
        )
        return [most] * len(shapes)

    def shape(self, request: Request) -> Shape:
        """The shapes a request runs in follow from it alone: that is what keeps its bits its own."""
        require(len(request.prompt) > 0, "the prompt is empty; give at least one token", PromptError)
        limit, length = self.target.max_length, len(request.prompt)
        if limit is not None and length >= limit:
            raise PromptError(f"the prompt has {length} tokens, the model's limit is {limit}; {self._shorter(limit)}")
        outside = [t for t in request.prompt if not 0 <= t < self.target.vocab_size]
        require(
            not outside,
            f"prompt token {outside[:1]} is outside the vocabulary of {self.target.vocab_size}",
            PromptError,
        )
        self._check_source(request.source)
        source = bucket(len(request.source), least=64) if request.source is not None else 0
        return self.common or self.shape_for(length + self.stopping(request).max_new_tokens, source)

    def _shorter(self, limit: int) -> str:
        """What to do about a prompt beyond the limit."""
        longest = facts_of(self.target).longest
        if longest is None or longest <= limit:
            return "shorten it"
        return f"shorten it, or load the model with a max_length of up to {longest}"

    def _capacity(self, tokens: int) -> int:
        """Room for a text of so many tokens and for guesses behind it; never twice the limit to hold the limit."""
        limit, facts = self.target.max_length, facts_of(self.target)
        # Every shape has CUDA graphs of its own: where bits allow it, short texts share one.
        on_gpu = facts.device.type == "cuda"
        least = 1024 if facts.capacity_invariant and on_gpu else 256
        beyond = (3 if on_gpu else 2) * self.width  # there a step may be under way when a text ends
        room = bucket(tokens + beyond, least)
        if limit is None:
            return room
        chunk = Shape.chunk  # prefill writes whole ones
        return min(room, -(-(limit + beyond) // chunk) * chunk)

    def ending(self, requests: Sequence[Request]) -> Decoder:
        """The same, with sampling options that name the end tokens all requests have: processors need them."""
        if not self.sampling.processors or not requests:
            return self
        ends = frozenset.intersection(*(request.stopping.eos for request in requests))
        return replace(self, sampling=replace(self.sampling, ends=ends))

    def _check_source(self, source: Source | None) -> None:
        if source is None:
            return
        limit = self.target.max_length
        require(len(source) > 0, "the source is empty; give at least one token", PromptError)
        if isinstance(source, Tensor):  # an encoder's finished output
            return
        if limit is not None and len(source) > limit:
            raise PromptError(f"the source has {len(source)} tokens, the model's limit is {limit}; shorten it")
        outside = [t for t in source if not 0 <= t < self.target.vocab_size]
        require(not outside, f"source token {outside[:1]} is outside the vocabulary", PromptError)


def bucket(size: int, least: int = 256) -> int:
    """The next power of two, so that few different shapes occur."""
    return max(least, 1 << (size - 1).bit_length())
