"""Who is to blame where no token can be chosen: the model, whose logits are no numbers, or options that forbid all."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outrider.core.processors import named, of_row, processed
from outrider.core.protocols import Session
from outrider.core.sampling import Sampling

NO_CHOICE = "no token is left to choose from"
"""How a reason begins that lies in the options of a request, not in the model."""


def fault(target: Session, row: int, length: int, sampling: Sampling) -> str:
    """Why the row cannot go on behind its first ``length`` tokens, and what to do. Runs the model once more there."""
    alone = target.fork(torch.tensor([row], device=target.device))
    alone.rewind(torch.tensor([length], device=target.device))
    logits = alone.score(torch.zeros((1, 0), dtype=torch.int64, device=target.device))[:, -1]  # [1, V]
    if sampling.adjusts and math.isfinite(float(logits.amax())):  # NaN if there is any
        wrong = _returning_nan(sampling, row, alone.context.tokens[:, :length], logits.float())
        if wrong is not None:
            return f"{wrong} returned NaN or plus infinity after {length} tokens; -inf is what forbids a token"
        return (
            f"{NO_CHOICE} after {length} tokens: {_forbidding(sampling)} together forbid all "
            f"{target.vocab_size}; allow at least one"
        )
    return (
        f"the model returned NaN or infinite logits after {length} tokens; "
        "try dtype='float32', or check the model's weights"
    ) + (" and any logits_processor" if sampling.processors else "")


def _returning_nan(sampling: Sampling, row: int, ids: Tensor, scores: Tensor) -> str | None:
    """The first processor that makes something else of scores [1, V] than numbers and -inf, by its name."""
    for processor in (of_row(processor, row) for processor in sampling.processors):
        scores = processed(processor, ids, scores)
        if not float(scores.amax()) < math.inf:  # NaN is not
            return named(processor)
    return None


def _forbidding(sampling: Sampling) -> str:
    names = [type(processor).__name__ for processor in sampling.processors]
    named = {
        "logit_bias": -math.inf in sampling.logit_bias.values(),
        "min_tokens": sampling.min_tokens > 0,
        "repetition_penalty": sampling.repetition_penalty != 1,
        f"logits_processor ({', '.join(names)})": bool(names),
    }
    return " and ".join(name for name, given in named.items() if given) or "the options"
