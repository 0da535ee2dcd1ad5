"""Many short generations at once through the product's own step, and the exact distribution they should follow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from outrider.core.algorithm import autoregressive_step, speculative_step
from outrider.core.noise import Noise, Silence
from outrider.core.protocols import Drafter, DraftSession, LanguageModel, Session, Shape, Verifier
from outrider.core.sampling import Sampling, standardise


def sample(
    model: LanguageModel,
    drafter: Drafter | None,
    verifier: Verifier,
    sampling: Sampling,
    *,
    prompts: Sequence[Sequence[int]],
    rows: int,
    length: int,
    gamma: int = 4,
    sources: Sequence[Sequence[int]] | None = None,
    first_seed: int = 0,
) -> Tensor:
    """The first ``length`` tokens of ``rows`` generations -> [rows, length]; row i has seed i, prompt i modulo.

    ``drafter=None`` is plain decoding by ``autoregressive_step``. Prompts are admitted once and forked.
    """
    longest = max(len(p) for p in prompts)
    room = max((len(s) for s in sources), default=0) if sources else 0
    capacity = 64 * (1 + (longest + (length + 2) * (gamma + 1)) // 64)  # whole chunks of prefill fit
    shape = Shape(capacity=capacity, width=gamma + 1, source_capacity=room)
    copies = torch.arange(rows, device=model.device) % len(prompts)
    target = model.start(len(prompts), shape)
    drafting = None if drafter is None else drafter.start(len(prompts), shape, target)
    sessions: list[Session | DraftSession] = [target] if drafting is None else [target, drafting]
    for session in sessions:
        for row, prompt in enumerate(prompts):
            session.admit(row, prompt, sources[row] if sources else None)
        session.select(copies)
    seeds = torch.arange(first_seed, first_seed + rows, device=model.device)
    noise = Silence(seeds) if sampling.greedy else Noise(seeds)
    context = target.context
    while int((context.lengths - context.prompt_lengths).min()) < length:
        if drafting is None:
            autoregressive_step(target, sampling, noise)
        else:
            speculative_step(target, drafting, verifier, sampling, noise, gamma)
    return context.read(context.prompt_lengths, length)


def exact_distribution(model: LanguageModel, sampling: Sampling, prompt: Sequence[int], length: int) -> Tensor:
    """Joint probabilities of the next ``length`` tokens, by enumeration -> [V] * length. For tiny vocabularies."""
    size = model.vocab_size
    prefixes = torch.tensor(list(product(range(size), repeat=length - 1)), dtype=torch.int64, device=model.device)
    prefixes = prefixes.reshape(size ** (length - 1), length - 1)
    capacity = 64 * (1 + (len(prompt) + 2 * length) // 64)  # whole chunks of prefill fit
    session = model.start(1, Shape(capacity=capacity, width=length))
    session.admit(0, prompt)
    session.select(torch.zeros(len(prefixes), dtype=torch.int64, device=model.device))
    p = standardise(session.score(prefixes), sampling, session.context, prefixes)  # [V^(length-1), length, V]
    before = p[:, :-1].gather(-1, prefixes[..., None])[..., 0].prod(-1)  # [V^(length-1)]
    return (before[:, None] * p[:, -1]).reshape([size] * length)


def counts_of(tokens: Tensor, vocab_size: int) -> Tensor:
    """How often each joint outcome occurs: tokens [N, length] -> [V] * length."""
    length = tokens.shape[1]
    place = vocab_size ** torch.arange(length - 1, -1, -1, device=tokens.device)
    counts = torch.bincount((tokens * place).sum(-1), minlength=vocab_size**length)
    return counts.reshape([vocab_size] * length)
