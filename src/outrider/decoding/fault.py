"""Who is to blame where no token can be chosen: the model, whose logits are no numbers, or options that forbid all."""

from __future__ import annotations

import math

import torch

from outrider.core.protocols import Session
from outrider.core.sampling import Sampling


def fault(target: Session, row: int, length: int, sampling: Sampling) -> str:
    """Why the row cannot go on behind its first ``length`` tokens, and what to do. Runs the model once more there."""
    if sampling.adjusts and _finite(target, row, length):
        return (
            f"no token is left to choose from after {length} tokens: {_forbidding(sampling)} together forbid all "
            f"{target.vocab_size}; allow at least one"
        )
    return (
        f"the model returned NaN or infinite logits after {length} tokens; "
        "try dtype='float32', or check the model's weights"
    ) + (" and any logits_processor" if sampling.processors else "")


def _finite(target: Session, row: int, length: int) -> bool:
    """Whether the model itself leaves a choice there, before any option."""
    alone = target.fork(torch.tensor([row], device=target.device))
    alone.rewind(torch.tensor([length], device=target.device))
    logits = alone.score(torch.zeros((1, 0), dtype=torch.int64, device=target.device))
    return math.isfinite(float(logits[0, -1].amax()))  # NaN if there is any


def _forbidding(sampling: Sampling) -> str:
    names = [type(processor).__name__ for processor in sampling.processors]
    named = {
        "logit_bias": -math.inf in sampling.logit_bias.values(),
        "min_tokens": sampling.min_tokens > 0,
        "repetition_penalty": sampling.repetition_penalty != 1,
        f"logits_processor ({', '.join(names)})": bool(names),
    }
    return " and ".join(name for name, given in named.items() if given) or "the options"
