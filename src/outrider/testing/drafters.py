"""check_drafter: the q a drafter reports is the q it drew from, and no text ever changes because of it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from outrider.core.abilities import Forkable
from outrider.core.noise import Noise, Silence
from outrider.core.protocols import Draft, Drafter, LanguageModel, Shape, Source
from outrider.core.sampling import Sampling, draw
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import Nothing
from outrider.errors import BadOption
from outrider.models.toy import ToyModel
from outrider.testing.distribution import assert_same_distribution
from outrider.trace import Trace

SAMPLINGS = {
    "temperature 0": Sampling(),
    "temperature 1": Sampling(temperature=1.0),
    "temperature 0.7, top-k 3, top-p 0.8": Sampling(temperature=0.7, top_k=3, top_p=0.8),
    "penalties": Sampling(temperature=1.0, repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.3),
}

DISTRIBUTION_ROWS = 4_000

PATTERN = (1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3, 4, 1, 2)
"""Repetitive, so that a drafter that looks back has something to say."""


def check_drafter(
    drafter: Drafter, model: LanguageModel | None = None, *, source: Source | None = None, gamma: int = 4
) -> None:
    """Check a drafter against the contract of ``DraftSession.propose`` and through whole generations.

    ``model`` is the target to draft for, a toy with 12 tokens if not given; ``source`` is for encoder-decoder
    targets. Give the drafter its usual settings: what is checked holds for any.
    """
    assert isinstance(drafter, Drafter), f"a drafter has a `name` and a `start` method, got {drafter!r}"
    model = ToyModel(vocab_size=12, seed=3, sharpness=2.0) if model is None else model
    bench = _Bench(drafter, model, source, gamma)
    for name, sampling in SAMPLINGS.items():
        bench.check_contract(name, sampling)
        bench.check_contract(name, sampling, shared=True)
    bench.check_distribution("temperature 1", SAMPLINGS["temperature 1"])
    bench.check_layout()
    bench.check_fork()
    bench.check_prefix_only()
    for name, sampling in SAMPLINGS.items():
        bench.check_same_text(name, sampling, gamma)
    bench.check_same_text("temperature 1", SAMPLINGS["temperature 1"], 1)


class _Pair:
    """A target session and the drafter's beside it, in step as the decoder keeps them."""

    def __init__(self, drafter: Drafter, model: LanguageModel, prompts: Sequence[Sequence[int]], source: Source | None):
        shape = Shape(capacity=64, width=8, source_capacity=0 if source is None else len(source))
        self.target = model.start(len(prompts), shape)
        self.session = drafter.start(len(prompts), shape, self.target)
        for row, prompt in enumerate(prompts):
            self.target.admit(row, prompt, source)
            self.session.admit(row, prompt, source)

    def propose(
        self, gamma: int, sampling: Sampling, seeds: Tensor, shared: bool = False
    ) -> tuple[Draft, Noise, Tensor]:
        """``shared``: with the noise the target itself draws from, as Gumbel coupling asks for it."""
        noise = Silence(seeds) if sampling.greedy else Noise(seeds) if shared else Noise(seeds).child("draft")
        at = self.target.context.positions(gamma + 1)
        return self.session.propose(gamma, sampling, noise, at).dense(self.target.vocab_size), noise, at

    def commit(self, guesses: Tensor, emitted: Tensor, count: Tensor) -> None:
        self.target.score(guesses)
        self.target.commit(emitted, count)
        self.session.commit(emitted, count)

    def select(self, rows: Tensor) -> None:
        self.target.select(rows)
        self.session.select(rows)


class _Bench:
    """A drafter, a target, and ragged prompts."""

    def __init__(self, drafter: Drafter, model: LanguageModel, source: Source | None, gamma: int) -> None:
        self.drafter, self.model, self.source, self.gamma = drafter, model, source, gamma
        self.vocab_size, self.device = model.vocab_size, model.device
        base = [token % self.vocab_size for token in PATTERN]
        self.prompts = [base, base[:1], base[3:9], base[:5] + base, base[:2] * 6, base[::-1], base[5:], base[:4]]

    def start(self, prompts: Sequence[Sequence[int]]) -> _Pair:
        return _Pair(self.drafter, self.model, prompts, self.source)

    def check_contract(self, name: str, sampling: Sampling, shared: bool = False) -> None:
        """Three rounds: guesses rejected at once, kept in part, and all kept. Each draft must obey the contract."""
        rows = len(self.prompts)
        pair, seeds = self.start(self.prompts), torch.arange(rows, device=self.device)
        for round_ in range(3):
            draft, noise, at = pair.propose(self.gamma, sampling, seeds, shared)
            _check_form(draft, rows, self.gamma, self.vocab_size, name)
            if shared or sampling.greedy or not draft.by_verification:  # else the distribution is checked, on more rows
                _check_drawn(draft, noise, at, name, sampling.greedy)
            place = torch.arange(draft.tokens.shape[1] + 1, device=self.device)
            kept = draft.proposed.sum(-1) * round_ // 2  # none, half, all of them
            other = (place + seeds[:, None]) % self.vocab_size
            emitted = torch.where(place < kept[:, None], torch.nn.functional.pad(draft.tokens, (0, 1)), other)
            pair.commit(draft.tokens, emitted, kept + 1)
        nothing, _, _ = pair.propose(0, sampling, seeds)
        assert nothing.tokens.shape == (rows, 0), (
            f"propose with gamma 0 must return Draft.empty(rows, device), got tokens {tuple(nothing.tokens.shape)}"
        )

    def check_distribution(self, name: str, sampling: Sampling) -> None:
        """Guesses that say ``by_verification``: each follows its q given the guesses before it, one false alarm in 1e9.

        Two rounds, so that guesses are also checked behind guesses that were kept in part.
        """
        rows = torch.arange(DISTRIBUTION_ROWS, device=self.device)
        pair = self.start(self.prompts[:1])
        if not pair.propose(self.gamma, sampling, rows[:1])[0].by_verification:
            return
        pair = self.start(self.prompts[:1])
        pair.select(rows * 0)
        for _ in range(2):
            draft, _, _ = pair.propose(self.gamma, sampling, rows)
            for k in range(draft.tokens.shape[1]):
                _check_guess_distribution(draft, k, f"{name}, guess {k}")
            # Every row keeps its first guess and gets one same token: the contexts differ in one place only.
            emitted = torch.cat([draft.tokens[:, :1], torch.ones_like(draft.tokens[:, :1])], 1)
            pair.commit(draft.tokens, emitted, torch.full_like(rows, 2))

    def check_layout(self) -> None:
        """The same rows in another order give the same drafts: no hidden randomness, no rows mixed up."""
        sampling, rows = SAMPLINGS["temperature 1"], torch.arange(len(self.prompts), device=self.device)
        seeds, order = rows + 100, rows.flip(0)
        straight, _, _ = self.start(self.prompts).propose(self.gamma, sampling, seeds)
        again, _, _ = self.start(self.prompts).propose(self.gamma, sampling, seeds)
        _check_same(straight, again, "proposing twice from the same state")
        turned, _, _ = self.start(self.prompts[::-1]).propose(self.gamma, sampling, seeds[order])
        _check_same(_rows(straight, order), turned, "the same rows in another order")
        pair = self.start(self.prompts)
        pair.select(order)
        selected, _, _ = pair.propose(self.gamma, sampling, seeds[order])
        _check_same(_rows(straight, order), selected, "select (row i becomes the old row rows[i])")

    def check_fork(self) -> None:
        """A fork proposes what its rows would have, takes suppositions, and leaves no trace. Only beam search forks."""
        sampling, rows = SAMPLINGS["temperature 1"], torch.arange(len(self.prompts), device=self.device)
        pair, order = self.start(self.prompts), rows.flip(0)
        straight, _, at = pair.propose(1, sampling, rows)
        if not isinstance(pair.session, Forkable):
            return
        try:
            fork, noise = pair.session.fork(order), Noise(rows[order]).child("draft")
        except BadOption:  # made of parts, and one of them says that it cannot be forked
            return
        for round_ in range(3):
            draft = fork.propose(1, sampling, noise, at[order] + round_).dense(self.vocab_size)
            _check_form(draft, len(rows), 1, self.vocab_size, "a fork")
            if round_ == 0:
                _check_same(_rows(straight, order), draft, "fork (row i of the copy is row rows[i])")
            supposed = (order[:, None] + round_) % self.vocab_size
            fork.commit(supposed, torch.ones_like(order))
        again, _, _ = pair.propose(1, sampling, rows)
        _check_same(straight, again, "proposing again after a fork was used")

    def check_prefix_only(self) -> None:
        """Whether and from what x_k is drawn may depend on x_1..x_(k-1), never on x_k itself.

        Withdrawing a guess because it looks unlikely changes the distribution of what is left.
        """
        rows = torch.arange(24, device=self.device)
        draft, _, _ = self.start([self.prompts[0]] * len(rows)).propose(self.gamma, SAMPLINGS["temperature 1"], rows)
        if draft.probs is None:
            return  # a point mass is right whatever it was chosen by
        first: dict[tuple[int, ...], int] = {}
        for row, k in product(range(len(rows)), range(draft.tokens.shape[1])):
            if not bool(draft.proposed[row, :k].all()):
                continue
            other = first.setdefault(tuple(draft.tokens[row, :k].tolist()), row)
            assert bool(draft.proposed[row, k] == draft.proposed[other, k]), (
                f"`proposed` at guess {k} differs between rows with the same text and the same guesses before it: "
                "it must not depend on the token drawn there, or the output is biased"
            )
            close = torch.allclose(draft.probs[row, k], draft.probs[other, k], atol=1e-4)
            assert close or not bool(draft.proposed[row, k]), (
                f"`probs` at guess {k} differ between rows with the same text and the same guesses before it"
            )

    def check_same_text(self, name: str, sampling: Sampling, gamma: int) -> None:
        """Greedy and Gumbel text is the target's own, to the token, whatever the drafter."""
        assert self.texts(self.drafter, sampling, gamma) == self.texts(Nothing(), sampling, 0), (
            f"{name}, gamma {gamma}: the text with {self.drafter.name!r} is not the text without; "
            "does `propose` or `commit` change tensors it is given, or share state with the target?"
        )

    def texts(self, drafter: Drafter, sampling: Sampling, gamma: int) -> list[list[int]]:
        decoder = Decoder(self.model, drafter, gumbel_coupling, sampling, gamma, width=self.gamma + 1, slots=2)
        requests = [
            Request(tuple(prompt), Stopping(max_new_tokens=8 + 3 * i), seed=i, source=self.source)
            for i, prompt in enumerate(self.prompts[:3])
        ]
        trace = Trace()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = {event.index: event.row for event in decoder.stream(requests, trace)}
        assert trace.drafter_error is None, f"the drafter raised during generation: {trace.drafter_error}"
        return [rows[i].tokens for i in range(len(requests))]


def _check_form(draft: Draft, rows: int, gamma: int, vocab_size: int, name: str) -> None:
    assert isinstance(draft, Draft), f"propose must return a Draft, got {type(draft).__name__}"
    shape = tuple(draft.tokens.shape)
    assert len(shape) == 2 and shape[0] == rows and shape[1] <= gamma, (
        f"Draft.tokens must be [rows, at most gamma] = [{rows}, <= {gamma}], got {shape}"
    )
    assert draft.tokens.dtype == torch.int64, f"Draft.tokens must be int64, got {draft.tokens.dtype}"
    assert draft.proposed.shape == shape and draft.proposed.dtype == torch.bool, (
        f"Draft.proposed must be bool {shape} like tokens, got {draft.proposed.dtype} {tuple(draft.proposed.shape)}"
    )
    steps = draft.proposed.to(torch.int64).diff(dim=1)
    assert not bool((steps > 0).any()), "Draft.proposed must be True for a prefix of each row: no guess after a gap"
    inside = (draft.tokens >= 0) & (draft.tokens < vocab_size)
    assert bool(inside.all()), "Draft.tokens must be in the vocabulary everywhere, also where nothing is proposed"
    if draft.probs is None:
        return
    assert tuple(draft.probs.shape) == (*shape, vocab_size), (
        f"Draft.probs must be [rows, guesses, target's vocabulary] = {(*shape, vocab_size)}, "
        f"got {tuple(draft.probs.shape)}"
    )
    probs = draft.probs[draft.proposed]
    assert bool((probs >= 0).all()), f"{name}: Draft.probs has negative or NaN entries"
    off = float((probs.sum(-1) - 1).abs().max()) if len(probs) else 0.0
    assert off < 1e-4, f"{name}: Draft.probs must sum to 1 where proposed, off by {off:.1e}; use standardise"


def _check_drawn(draft: Draft, noise: Noise, at: Tensor, name: str, greedy: bool) -> None:
    """The contract, bit for bit: tokens == draw(probs, noise.race("token", at))."""
    if draft.probs is None:
        return
    race = noise.race("token", at[:, : draft.tokens.shape[1]], draft.probs.shape[-1])
    differs = (draw(draft.probs, race) != draft.tokens) & draft.proposed
    assert not bool(differs.any()), (
        f"{name}: {int(differs.sum())} of {int(draft.proposed.sum())} guesses are not "
        "draw(probs, noise.race('token', at)): the q reported is not the q drawn from. "
        "Return the very tensor given to draw, after standardise, "
        "and take randomness from `noise` at the position of each guess only"
    )
    if greedy:
        peak = draft.probs[draft.proposed].amax(-1)
        assert bool((peak > 1 - 1e-6).all()), (
            f"{name}: q must be one-hot at temperature 0, its largest entry is {float(peak.min()):.3f}; use standardise"
        )


def _check_guess_distribution(draft: Draft, k: int, what: str) -> None:
    """Guess k against its q, for all distributions that occur at once: rows are grouped by their q."""
    assert draft.probs is not None, "a draft without probs is a point mass and cannot be by_verification"
    kept = draft.proposed[:, k]
    tokens, q = draft.tokens[kept, k], draft.probs[kept, k]
    if not len(tokens):
        return
    size = q.shape[-1]
    # Rows whose q is the same but for rounding have the same key. Were two q to share one, their sum is still right.
    key = (q.to(torch.float64) * torch.arange(1, size + 1, device=q.device).sqrt()).sum(-1).mul(1e5).round()
    group = torch.searchsorted(key.sort().values, key)  # [N]: not consecutive, which costs only empty groups
    groups = len(key)
    counts = torch.bincount(group * size + tokens, minlength=groups * size).reshape(groups, size)
    expected = torch.zeros((groups, size), dtype=torch.float64, device=q.device)
    expected.index_add_(0, group, q.to(torch.float64))
    assert_same_distribution(
        counts, expected / expected.sum(), what=f"{what}: the guesses do not follow the q reported"
    )


def _rows(draft: Draft, order: Tensor) -> Draft:
    return Draft(draft.tokens[order], None if draft.probs is None else draft.probs[order], draft.proposed[order])


def _check_same(one: Draft, other: Draft, what: str) -> None:
    same = one.tokens.shape == other.tokens.shape and torch.equal(one.proposed, other.proposed)
    same = same and torch.equal(one.tokens * one.proposed, other.tokens * other.proposed)
    assert same, (
        f"{what} must give the same draft: a guess is a function of its row's text and `noise` at its position; "
        "use no other source of randomness (torch.rand, a Generator, a counter)"
    )
