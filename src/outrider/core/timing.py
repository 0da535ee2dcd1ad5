"""Times the parts of a decoding step by wrapping the target's session: drafting ends where the target's run begins."""

from __future__ import annotations

from torch import Tensor

from outrider.core.protocols import Scoring
from outrider.trace import Stopwatch


class TimedTarget:
    """A target's session for one step. All before its run counts as drafting; whoever runs the step times the rest."""

    def __init__(self, session: Scoring, watch: Stopwatch) -> None:
        self.session, self.watch = session, watch
        self.context, self.vocab_size = session.context, session.vocab_size
        self.logits: Tensor | None = None  # [B, G+1, V] of its run

    def score(self, tail: Tensor) -> Tensor:
        self.watch.lap("draft")
        logits = self.session.score(tail)
        self.watch.lap("target")
        self.logits = logits
        return logits

    def commit(self, tokens: Tensor, count: Tensor, follows: bool = True) -> None:
        self.session.commit(tokens, count, follows)
