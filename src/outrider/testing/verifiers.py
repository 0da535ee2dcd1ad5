"""check_verifier: a rule that calls itself exact gives the target's distribution, whoever drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Drafter, Verifier
from outrider.core.sampling import Sampling
from outrider.drafters import Copying, ModelDrafter, Ngram, Uniform
from outrider.models.toy import ToyModel
from outrider.testing.distribution import assert_same_distribution
from outrider.testing.rollout import counts_of, exact_distribution, sample

PROMPTS: tuple[Sequence[int], ...] = ((1, 2, 3, 1, 2, 3, 1, 2), (3,))


def check_verifier(verifier: Verifier, *, rows: int = 40_000) -> None:
    """Check a rule: its form, greedy equality, equality with plain decoding if it shares noise, and the distribution.

    A rule that does not call itself exact is checked for its form only.
    The joint distribution of the first two tokens of ``rows`` generations is tested for every kind of drafter, with a
    false-failure rate of 1e-9 each; the smallest total-variation distance found is about 0.05.
    """
    model = ToyModel(vocab_size=6, order=2, seed=5)
    for case in _cases():
        _check_form(verifier, case)
    for drafter in _drafters(model):
        if verifier.exact:
            _check_greedy(verifier, model, drafter)
        if verifier.shares_noise:
            _check_same_as_plain(verifier, model, drafter)
        if verifier.exact:
            _check_distribution(verifier, model, drafter, rows)


def _drafters(model: ToyModel) -> list[Drafter]:
    near, far = ModelDrafter(model.near(0.7), "near"), ModelDrafter(ToyModel(6, seed=77, sharpness=3.0), "far")
    same = ModelDrafter(model, "the target itself")
    return [same, near, far, Uniform(), Copying(shortest=1), Ngram()]


def _check_greedy(verifier: Verifier, model: ToyModel, drafter: Drafter) -> None:
    def text(by: Drafter | None) -> Tensor:
        return sample(model, by, verifier, Sampling(), prompts=PROMPTS, rows=2, length=20)

    assert torch.equal(text(drafter), text(None)), (
        f"{verifier.name}: at temperature 0 the text with drafter {drafter.name!r} is not the greedy text"
    )


def _check_same_as_plain(verifier: Verifier, model: ToyModel, drafter: Drafter) -> None:
    def text(by: Drafter | None) -> Tensor:
        return sample(model, by, verifier, Sampling(1.0), prompts=PROMPTS, rows=64, length=12)

    assert torch.equal(text(drafter), text(None)), (
        f"{verifier.name} shares the target's noise, yet the text with drafter {drafter.name!r} is not the text "
        "without: keep a guess only if it is draw(p, noise.race('token', at))"
    )


def _check_distribution(verifier: Verifier, model: ToyModel, drafter: Drafter, rows: int) -> None:
    sampling = Sampling(temperature=1.0)
    tokens = sample(model, drafter, verifier, sampling, prompts=PROMPTS, rows=rows, length=2, gamma=3)
    for i, prompt in enumerate(PROMPTS):
        counts = counts_of(tokens[i :: len(PROMPTS)], model.vocab_size)
        distribution = exact_distribution(model, sampling, prompt, 2)
        what = f"{verifier.name} with drafter {drafter.name!r}, first two tokens"
        assert_same_distribution(counts, distribution, detects=0.05 if rows >= 40_000 else None, what=what)


@dataclass(frozen=True)
class _Case:
    p: Tensor  # [B, G+1, V]
    draft: Draft
    at: Tensor  # [B, G+1]


def _cases() -> list[_Case]:
    """Distributions with zeros, point masses and ragged drafts; with q, with point masses, without guesses."""
    generator = torch.Generator().manual_seed(0)
    rows, guesses, size = 64, 3, 7
    p = torch.randn((rows, guesses + 1, size), generator=generator, dtype=torch.float64).mul(2).softmax(-1)
    p = p * (torch.rand(p.shape, generator=generator) < 0.6)
    p[..., 0] += 0.1
    q = torch.randn((rows, guesses, size), generator=generator, dtype=torch.float64).softmax(-1)
    q[: rows // 2] = p[: rows // 2, :guesses]  # half the rows draft from the target itself
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    tokens = torch.multinomial(q.reshape(-1, size), 1, generator=generator).reshape(rows, guesses)
    length = torch.randint(0, guesses + 1, (rows, 1), generator=generator)
    proposed = torch.arange(guesses) < length
    at = torch.randint(1, 50, (rows, 1), generator=generator) + torch.arange(guesses + 1)
    empty = Draft.empty(rows, torch.device("cpu"))
    return [
        _Case(p, Draft(tokens, q, proposed), at),
        _Case(p, Draft(tokens, None, proposed), at),
        _Case(p[:, :1], empty, at[:, :1]),
    ]


def _check_form(verifier: Verifier, case: _Case) -> None:
    p, draft, at = case.p.clone(), case.draft, case.at
    rows = p.shape[0]
    noise = Noise(torch.arange(rows))
    verdict = verifier(p, draft, noise, at)
    name = verifier.name
    assert verdict.accepted.shape == (rows,) and verdict.token.shape == (rows,), f"{name}: a verdict is n [B] and t [B]"
    assert torch.equal(p, case.p), f"{name} changes the p it is given; the rule must be a pure function"
    n = verdict.accepted
    assert bool(((n >= 0) & (n <= draft.proposed.sum(-1))).all()), f"{name} accepts guesses that were not proposed"
    index = torch.arange(rows)
    assert bool((p[index, n, verdict.token] > 0).all()), f"{name} emits a token the target gives probability zero"
    kept = p[:, : draft.tokens.shape[1]].gather(-1, draft.tokens[..., None])[..., 0] > 0  # [B, G]
    kept |= torch.arange(draft.tokens.shape[1]) >= n[:, None]
    assert bool(kept.all()), f"{name} keeps a guess the target gives probability zero"
    again = verifier(p, draft, noise, at)
    assert torch.equal(again.accepted, n) and torch.equal(again.token, verdict.token), (
        f"{name} gives another verdict the second time: randomness must come from `noise` only"
    )
    turned = index.flip(0)
    probs = None if draft.probs is None else draft.probs[turned]
    moved = verifier(p[turned], Draft(draft.tokens[turned], probs, draft.proposed[turned]), Noise(turned), at[turned])
    assert torch.equal(moved.accepted, n[turned]) and torch.equal(moved.token, verdict.token[turned]), (
        f"{name}: a row's verdict must not depend on the rows beside it"
    )
