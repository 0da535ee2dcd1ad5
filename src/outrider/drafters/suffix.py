"""Guesses by counting what followed the longest match: in the row, in earlier outputs, in texts of the user's own.

Of several matches of one length the row's own count, then those of earlier outputs, then those of the texts. What
followed at all places of the match, with counts, is q; guesses are drawn from it one after another, each among the
places that agree with the guesses before it, for as long as the chance of the whole path is worth a guess.

Why the text keeps the target's distribution. A guess is a function of the row's text, of texts of the user's own, and
of the draft's noise; where earlier outputs are searched, of those, too. That is done only where the text is the
target's whatever the guesses are: at temperature 0 and with Gumbel coupling. Under maximal coupling q must be
independent of the noise that accepts and corrects at the positions to come, and an output may have met that very noise
(the same prompt and seed, asked for again), or be there because another one that did ended sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from outrider.core.noise import Noise, counter_of
from outrider.core.numpy_ops import whole
from outrider.core.prices import Prices
from outrider.core.protocols import Admission, Draft, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.core.traits import DrafterTraits
from outrider.drafters.known_tokens import GuessPlace, KnownTokens
from outrider.drafters.lookup import Followers, RowGuesses, draft_of
from outrider.drafters.matching import LATEST, Match, SearchingSession, Tokens, longest_matches, searchable
from outrider.drafters.output_memory import OutputMemory
from outrider.drafters.suffix_index import LONGEST, SuffixIndex
from outrider.drafters.weighing import kind_of, priors_at
from outrider.errors import require


@dataclass(frozen=True, eq=False)
class Suffix:
    """``index``: texts of the user's own; ``memory``: earlier outputs; without them the row itself is searched.

    A match must be at least ``shortest`` tokens long. Without prices from a policy a draft ends where the chance that
    all its guesses are kept falls below ``floor``.
    """

    index: SuffixIndex | None = None
    memory: OutputMemory | None = None
    shortest: int = 2
    floor: float = 0.1
    name: str = "suffix"
    traits: ClassVar[DrafterTraits] = DrafterTraits(cost=0.01, stops_itself=True, cheap_to_ask=True)

    def __post_init__(self) -> None:
        good = isinstance(self.shortest, int) and 1 <= self.shortest <= LONGEST
        require(good, f"shortest must be a whole number from 1 to {LONGEST}, got {self.shortest!r}")
        require(0 <= self.floor <= 1, f"floor must be a chance between 0 and 1, got {self.floor}")

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _SuffixSession(self, rows, shape, target)


class _Path:
    """A draft in the making: where it stands in its match, and how likely all of it is kept."""

    def __init__(self, match: Match | None, floors: Sequence[float], priors: Sequence[float], vocab_size: int) -> None:
        self.match, self.floors, self.priors, self.vocab_size = match, floors, priors, vocab_size
        self.made, self.chance = 0, 1.0

    def ahead(self) -> tuple[Tokens, Tokens] | None:
        """What may come next, ascending, and how often it did; None where another guess is not worth making.

        Whether one is depends on the guesses before it and on what may come, never on the one that is drawn.
        """
        if self.match is None or self.made >= len(self.floors):
            return None
        tokens, weights = self.match.next()
        if tokens[0] < 0 or tokens[-1] >= self.vocab_size:
            known = (tokens >= 0) & (tokens < self.vocab_size)
            tokens, weights = tokens[known], weights[known]
        if not len(tokens):
            return None
        # One place alone is right as often as matches of its length are; many that agree are surer than that.
        doubt = (1 + LATEST) * (1 / self.priors[kind_of(self.match.length)] - 1)
        self.chance *= float(weights.max()) / (float(weights.sum()) + doubt)
        return (tokens, weights) if self.chance >= self.floors[self.made] else None

    def follow(self, token: int) -> None:
        assert self.match is not None
        self.match, self.made = self.match.behind(token), self.made + 1


class _SuffixSession(SearchingSession):
    prices: Prices | None = None  # what guesses take here and time is worth, where a policy tells
    caps: Tensor | None = None  # [B]: guesses a row may have; None: as many as are asked for

    def __init__(self, drafter: Suffix, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        self.drafter = drafter
        self.owners: list[str | None] = [None] * rows  # whose earlier outputs may be searched; None: nobody's

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        super().admit_all(admissions)
        for new in admissions:
            self.owners[new.row] = new.owner

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.owners = [self.owners[row] for row in rows.tolist()]  # a list of its own: a fork shares the other
        self.caps = None

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        if gamma == 0:
            return Draft.empty(self.context.rows, self.context.device)
        options = [sampling.of_row(row) for row in range(self.context.rows)]
        paths = self._paths(gamma, options, earlier=noise.is_the_targets)
        self.matched = torch.tensor([path.match.length if path.match else 0 for path in paths], device=at.device)
        if sampling.greedy and not sampling.adjusts:
            return self._likeliest(paths, gamma)
        return self._drawn(paths, options, noise, at)

    def _paths(self, gamma: int, options: Sequence[Sampling], earlier: bool) -> list[_Path]:
        """A path for every row, at its beginning; ``earlier``: outputs may be searched."""
        active, lengths = self.context.active.tolist(), self.context.lengths.tolist()
        caps = [gamma] * len(active) if self.caps is None else self.caps.clamp(max=gamma).tolist()
        texts, sources = self.context.tokens.cpu().numpy(), self.sources.cpu().numpy()
        paths = []
        for row, most in enumerate(caps):
            wanted = active[row] and most > 0
            match = (
                self._match(texts[row, : lengths[row]], sources[row], self.owners[row] if earlier else None)
                if wanted
                else None
            )
            priors = priors_at(options[row].temperature)
            paths.append(_Path(match, self._floors(row, most), priors, self.vocab_size))
        return paths

    def _match(self, text: Tokens, source: Tokens, owner: str | None) -> Match | None:
        """The longest, long enough; of equally long ones the nearest to the row."""
        suffix = text[: -LONGEST - 1 : -1]
        searched = searchable(text, source)
        length, places = longest_matches(searched, suffix)
        best = Match(length, ((searched, places),), own=True)
        tokens = suffix.tolist()
        if self.drafter.memory is not None and owner is not None:
            earlier = self.drafter.memory.matches(owner, tokens)
            best = earlier if earlier is not None and earlier.length > best.length else best
        if self.drafter.index is not None:
            best = max(best, self.drafter.index.matches(tokens), key=lambda match: match.length)  # the first of equals
        return best if best.length >= self.drafter.shortest else None

    def _floors(self, row: int, most: int) -> list[float]:
        """The least chance of all guesses up to 1, 2, ... at which that guess is worth making."""
        if self.prices is None or self.drafter.floor == 0:
            return [self.drafter.floor] * most
        # Prices are for drafters that do not know how likely the coming guess is, and take alpha for it.
        return [floor * self.prices.alphas[row] for floor in self.prices.floors(row, most)]

    def _likeliest(self, paths: list[_Path], gamma: int) -> Draft:
        """At temperature 0: points, and no table of anything."""
        tokens = np.zeros((len(paths), gamma), dtype=np.int64)
        for row, path in enumerate(paths):
            while (known := path.ahead()) is not None:
                tokens[row, path.made] = token = int(known[0][known[1].argmax()])
                path.follow(token)
        made = whole(np.array([path.made for path in paths]))
        widest, device = int(made.max()), self.context.device
        if widest == 0:
            return Draft.empty(len(paths), device)
        return Draft(whole(tokens[:, :widest]).to(device), None, (torch.arange(widest) < made[:, None]).to(device))

    def _drawn(self, paths: Sequence[_Path], options: Sequence[Sampling], noise: Noise, at: Tensor) -> Draft:
        """Row by row, over the tokens that it may go on with, or over all where its options ask for tokens: no bit of q
        may depend on what other rows may go on with, or on their options."""
        draw = _Draw(self, noise, at)
        rows = []
        for row, path in enumerate(paths):
            made = RowGuesses([], [])
            while (known := path.ahead()) is not None:
                token, about, q = draw.one(row, Followers(*known), options[row], made.tokens)
                made.tokens.append(token)
                made.tables.append((about, q))
                if not q.max() > 0:  # options forbid all that may follow
                    break
                path.follow(token)
            rows.append(made)
        return draft_of(rows, self.vocab_size).on(self.context.device)


Drawn = tuple[int, Tokens | None, Tokens]
"""A guess, the tokens that its q is about (None: all of the vocabulary), and q."""


class _Draw:
    """Draws the guesses of a draft, one row at a time."""

    def __init__(self, session: _SuffixSession, noise: Noise, at: Tensor) -> None:
        self.session, self.noise, self.at = session, noise, at
        self.winner = noise.winner_on_host("token", at)

    def one(self, row: int, followers: Followers, options: Sampling, guesses: Sequence[int]) -> Drawn:
        assert followers.tokens is not None
        if options.adjusts or options.filters:
            return self._by_torch(row, followers, options, guesses)
        if options.greedy:
            return followers.likeliest, np.array([followers.likeliest]), np.ones(1, np.float32)
        q = followers.q(options.temperature)
        place = self.winner(row, len(guesses), q, counter_of(whole(followers.tokens)).numpy())
        return int(followers.tokens[place]), followers.tokens, q

    def _by_torch(self, row: int, followers: Followers, options: Sampling, guesses: Sequence[int]) -> Drawn:
        """The same with filters and options that ask for tokens."""
        assert followers.tokens is not None
        context, at, one = self.session.context, self.at[row : row + 1, len(guesses), None], self.at.new_tensor([row])
        if options.adjusts:
            context = context.of_rows(one)
        known = KnownTokens.of(whole(followers.tokens).to(at.device), self.session.vocab_size)
        logits = torch.from_numpy(np.log(followers.counts))[None].to(at.device)
        place = GuessPlace(context, at.new_tensor([list(guesses)]), at)
        token, q = known.draw(logits, options, self.noise.of_rows(one), place)
        if q is None:  # at temperature 0
            return int(token), token.cpu().numpy(), np.ones(1, np.float32)
        about = followers.tokens if q.shape[1] == len(followers.tokens) else None
        return int(token), about, q[0].cpu().numpy()
