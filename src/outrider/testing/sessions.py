"""check_session: whatever was guessed, rolled back, reordered or readmitted, logits are those of a fresh session."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outrider.core.protocols import Session, Shape

Make = Callable[[int, Shape], Session]


def check_session(make: Make, *, encoder_decoder: bool = False, tolerance: float = 1e-4, seed: int = 0) -> None:
    """Check a session class through ``make(rows, shape)``, for instance ``model.start``.

    The reference is the plainest use there is: one row, one token admitted, everything else scored as guesses
    in a single run. ``tolerance`` is relative to the largest logit: another shape may round differently.
    """
    for fixed in (True, False):
        _Walk(make, encoder_decoder, tolerance, seed, fixed).run()


class _Walk:
    """One batch of ragged rows put through everything a session can be asked, beside lists that say the truth."""

    def __init__(self, make: Make, encoder_decoder: bool, tolerance: float, seed: int, fixed: bool) -> None:
        self.make, self.tolerance, self.random = make, tolerance, random.Random(seed)
        self.shape = Shape(capacity=96, width=5, source_capacity=16 if encoder_decoder else 0, chunk=4, fixed=fixed)
        self.session = make(4, self.shape)
        self.vocab_size = self.session.vocab_size
        self.device = self.session.context.device
        self.texts: list[list[int]] = [[] for _ in range(4)]
        self.sources: list[list[int] | None] = [None] * 4
        self.idle: set[int] = set()

    def run(self) -> None:
        for row, length in enumerate((1, 2, 4, 11)):  # alone, within, exactly and across prefill chunks
            self.admit(row, length)
        self.require_sensitive()
        self.score_and_compare(4, "admit: the prompt, prefilled in chunks")
        self.score_and_compare(2, "score twice without commit: the second must not see the first's guesses")
        self.compare_hidden("admit")
        for step, guesses in enumerate((4, 0, 3, 4)):
            self.guess_and_commit(guesses, follows=step % 2 == 0)
            if step < 2:
                self.compare_hidden("commit")
            self.score_and_compare(4, "commit: guesses rejected at different places in each row")
        self.full_acceptance()
        self.commit_unseen()
        self.extend()
        self.rewind()
        self.select()
        self.fork()
        self.release_and_readmit()

    def tokens(self, *shape: int) -> Tensor:
        flat = [self.random.randrange(self.vocab_size) for _ in range(int(torch.tensor(shape).prod()))]
        return torch.tensor(flat, dtype=torch.int64, device=self.device).reshape(shape)

    def admit(self, row: int, length: int) -> None:
        self.texts[row] = self.tokens(length).tolist()
        if self.shape.source_capacity:
            self.sources[row] = self.tokens(self.random.randrange(2, 9)).tolist()
        self.session.admit(row, self.texts[row], self.sources[row])
        self.idle.discard(row)

    def reference(self, row: int, tail: Sequence[int]) -> Tensor:
        """Logits after the row's text and after each token of tail -> [len(tail) + 1, V]."""
        whole = [*self.texts[row], *tail]
        shape = Shape(self.shape.capacity * 2, len(whole), self.shape.source_capacity)
        fresh = self.make(1, shape)
        fresh.admit(0, whole[:1], self.sources[row])
        return fresh.score(torch.tensor([whole[1:]], dtype=torch.int64, device=self.device))[0, -len(tail) - 1 :]

    def require_sensitive(self) -> None:
        """A model whose logits hardly depend on the text would pass any check."""
        text = self.texts[3]
        before = self.reference(3, [])
        self.texts[3] = [*text[:-1], (text[-1] + 1) % self.vocab_size]
        change = float((self.reference(3, []) - before).abs().max() / before.abs().max().clamp(min=1))
        self.texts[3] = text
        if change < 100 * self.tolerance:
            raise ValueError(
                f"another last token changes the logits by {change:.1e} only: nothing would be tested at tolerance "
                f"{self.tolerance:.0e}; give the model larger weights (a larger initializer_range)"
            )

    def compare(self, logits: Tensor, tail: Tensor, what: str) -> None:
        assert logits.shape == (len(self.texts), tail.shape[1] + 1, self.vocab_size), (
            f"score of {tail.shape[1]} guesses must give logits [rows, guesses + 1, vocabulary], "
            f"got {tuple(logits.shape)}"
        )
        for row in set(range(len(self.texts))) - self.idle:
            expected = self.reference(row, tail[row].tolist())
            off = float((logits[row] - expected).abs().max() / expected.abs().max().clamp(min=1))
            assert off <= self.tolerance, (
                f"{what}: row {row} with {len(self.texts[row])} tokens gives other logits than a fresh session "
                f"(relative difference {off:.1e}, tolerance {self.tolerance:.0e}, fixed width {self.shape.fixed})"
            )

    def compare_hidden(self, what: str) -> None:
        """``hidden`` is what gave each row's last token: the same as when the whole text had been a prompt."""
        hidden = self.session.hidden
        if hidden is None:
            return
        for row in set(range(len(self.texts))) - self.idle:
            fresh = self.make(1, replace(self.shape, capacity=2 * self.shape.capacity, chunk=self.shape.capacity))
            fresh.admit(0, self.texts[row], self.sources[row])
            assert fresh.hidden is not None
            off = float((hidden[row] - fresh.hidden[0]).abs().max() / fresh.hidden[0].abs().max().clamp(min=1))
            assert off <= self.tolerance, (
                f"{what}: `hidden` of row {row} with {len(self.texts[row])} tokens is not that of a fresh session "
                f"(relative difference {off:.1e})"
            )

    def score_and_compare(self, guesses: int, what: str) -> Tensor:
        tail = self.tokens(len(self.texts), guesses)
        self.compare(self.session.score(tail), tail, what)
        return tail

    def commit(self, tokens: Tensor, count: Sequence[int], follows: bool) -> None:
        self.session.commit(tokens, torch.tensor(count, device=self.device), follows=follows)
        for row, n in enumerate(count):
            if row not in self.idle:
                self.texts[row] += tokens[row, :n].tolist()
        lengths = self.session.context.lengths.tolist()
        for row, text in enumerate(self.texts):
            assert lengths[row] == len(text), (
                f"commit: row {row} has length {lengths[row]} where {len(text)} tokens are committed"
                + (" (a released row must not grow)" if row in self.idle else "")
            )

    def guess_and_commit(self, guesses: int, follows: bool) -> None:
        """Keep a random part of the guesses, then one other token: what verification does."""
        tail = self.tokens(len(self.texts), guesses)
        self.session.score(tail)
        count = [self.random.randrange(1, guesses + 2) for _ in self.texts]
        emitted = torch.cat([tail, self.tokens(len(self.texts), 1)], 1)
        for row, n in enumerate(count):
            emitted[row, n - 1] = self.random.randrange(self.vocab_size)
        self.commit(emitted, count, follows)

    def full_acceptance(self) -> None:
        """All guesses kept and one more token, several times: the last guess is cached, the new token is not."""
        for _ in range(2):
            tail = self.score_and_compare(4, "full acceptance: the off-by-one after all guesses were kept")
            emitted = torch.cat([tail, self.tokens(len(self.texts), 1)], 1)
            self.commit(emitted, [5] * len(self.texts), follows=True)
        self.compare_hidden("full acceptance")
        self.score_and_compare(4, "full acceptance: the off-by-one after all guesses were kept")

    def commit_unseen(self) -> None:
        """Tokens that were never scored, more than fit into one run, in part contradicting the guesses."""
        self.commit(self.tokens(len(self.texts), 2), [1, 2, 1, 2], follows=True)
        self.commit(self.tokens(len(self.texts), 7), [7, 0, 3, 6], follows=False)
        self.score_and_compare(4, "commit without score: pending tokens must be run before the guesses")
        self.commit(self.tokens(len(self.texts), 7), [1, 7, 2, 5], follows=False)
        self.score_and_compare(0, "commit of tokens that contradict every guess")

    def extend(self) -> None:
        """Guess by guess must give what all guesses at once give; then part of them is committed."""
        tail = self.tokens(len(self.texts), 4)
        parts = [self.session.score(tail[:, :1])]
        parts += [self.session.extend(tail[:, 1:2]), self.session.extend(tail[:, 2:4])]
        self.compare(torch.cat(parts, 1), tail, "extend: going on from the last score")
        self.commit(tail, [4, 0, 2, 3], follows=False)
        self.score_and_compare(3, "commit after extend")

    def rewind(self) -> None:
        """Tokens committed and taken back, to a different place in each row, leave no trace."""
        before = [len(text) for text in self.texts]
        for _ in range(2):
            self.guess_and_commit(3, follows=True)
        kept = [length + extra for length, extra in zip(before, (0, 1, 2, 9), strict=True)]
        self.session.rewind(torch.tensor(kept, device=self.device))
        self.texts = [text[:length] for text, length in zip(self.texts, kept, strict=True)]
        self.commit(self.tokens(len(self.texts), 1), [1, 0, 1, 1], follows=False)
        self.score_and_compare(3, "rewind: what was taken back must not be seen, and what was not must be")
        self.guess_and_commit(2, follows=True)
        self.compare_hidden("commit after rewind")

    def reorder(self, rows: Sequence[int]) -> None:
        self.session.select(torch.tensor(rows, device=self.device))
        self.texts = [list(self.texts[r]) for r in rows]
        self.sources = [self.sources[r] for r in rows]

    def select(self) -> None:
        """Reorder, fork and drop at once, also in the middle of a step; the copies then go separate ways."""
        self.session.score(self.tokens(len(self.texts), 2))
        self.reorder([2, 0, 0])
        self.score_and_compare(4, "select: row i must become the old row rows[i]")
        tail = self.tokens(3, 4)
        self.session.score(tail)
        self.reorder([1, 0, 2])
        self.commit(torch.cat([tail[[1, 0, 2]], self.tokens(3, 1)], 1), [5, 1, 3], follows=True)
        self.compare_hidden("select between score and commit")
        self.score_and_compare(4, "select between score and commit, then forked rows going separate ways")
        tail = self.tokens(3, 4)
        first = self.session.score(tail[:, :2])
        self.reorder([2, 1, 0])
        second = self.session.extend(tail[[2, 1, 0], 2:])
        self.compare(torch.cat([first[[2, 1, 0]], second], 1), tail[[2, 1, 0]], "select between score and extend")

    def fork(self) -> None:
        """A fork has copies of the rows it names and goes its own way; nothing of it shows in the original."""
        original, texts, sources = self.session, self.texts, self.sources
        rows = [1, 0, 1]
        self.session = original.fork(torch.tensor(rows, device=self.device))
        self.texts, self.sources = [list(texts[r]) for r in rows], [sources[r] for r in rows]
        self.guess_and_commit(3, follows=True)
        self.score_and_compare(4, "fork: row i of the copy must be row rows[i]")
        self.session, self.texts, self.sources = original, texts, sources
        self.score_and_compare(4, "fork: what the copy runs and commits must not show in the original")

    def release_and_readmit(self) -> None:
        """A released row keeps its length and disturbs nobody; its slot then serves another prompt."""
        self.session.release(1)
        self.idle.add(1)
        self.guess_and_commit(4, follows=True)
        self.guess_and_commit(2, follows=True)
        self.score_and_compare(4, "release: the rows beside a released one")
        for length in (6, 1):
            self.admit(1, length)
            self.compare_hidden("admit into a used slot")
            self.score_and_compare(4, "admit into a used slot: nothing of the old text may be seen")
