"""A draft model whose tokenizer is not the target's: it guesses the tokens that both have.

q is the draft's distribution over the tokens that both vocabularies have, renormalised, so a guess is drawn from the q
that is reported and the text keeps its distribution whatever the two tokenizers are. The draft reads the text as its
own tokenizer encodes it. At temperature 0 it writes in its own tokens, and what it wrote is encoded for the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from outrider.core.noise import Noise
from outrider.core.numpy_ops import largest
from outrider.core.protocols import (
    Admission,
    Draft,
    DraftSession,
    Guessing,
    LanguageModel,
    Session,
    Shape,
    Source,
    admit_all,
)
from outrider.core.sampling import Sampling
from outrider.core.traits import DrafterTraits
from outrider.drafters.base import ContextSession
from outrider.drafters.draft_text import DraftText, common_prefix
from outrider.drafters.known_tokens import GuessPlace, KnownTokens
from outrider.models.hub.shared_tokens import SharedTokens

WIDTH = 4
"""Tokens of a draft's first run: the text encoded anew differs from what was run by a few tokens."""

PIECE = 16
"""Tokens that the draft's session is told at once."""

LONGER = 2
"""Room for the draft's encoding of a text, in tokens of the target's; rows that need more are not drafted for."""


class OtherTokenizerDrafter:
    """Drafts by running a model with a tokenizer of its own."""

    traits = DrafterTraits(cost=0.15, gamma=4)  # each guess costs a run of the model

    def __init__(self, model: LanguageModel, shared: SharedTokens, name: str = "model") -> None:
        self.model, self.shared = model, shared
        self.name = f"{name}, other tokenizer"

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _OtherTokenizerSession(self, rows, shape, target)


@dataclass
class _DraftRow:
    """A row's text for the draft, and what the draft's session holds of it."""

    text: DraftText
    told: list[int] | None = None  # None: the row is not in the draft's session
    settled: int = 0  # of ``told``: tokens that no longer change
    silent: bool = False  # the draft's session does not hold the row's text

    def copy(self) -> Self:
        return replace(self, text=self.text.copy(), told=None if self.told is None else list(self.told))


class _Columns:
    """The shared tokens as columns of a draft's logits and of q."""

    def __init__(self, shared: SharedTokens, target_size: int, draft_size: int, device: torch.device) -> None:
        pairs = zip(shared.target_ids, shared.draft_ids, strict=True)
        inside = [(ours, theirs) for ours, theirs in pairs if ours < target_size and theirs < draft_size]
        ours = torch.tensor([ours for ours, _ in inside], dtype=torch.int64, device=device)  # [N] ascending
        self.known = KnownTokens.of(ours, target_size)
        self.draft_tokens = torch.tensor([theirs for _, theirs in inside], dtype=torch.int64, device=device)  # [N]
        self.shared = torch.zeros(draft_size, dtype=torch.bool, device=device)  # whether a token of the draft's is
        self.shared[self.draft_tokens] = True

    @property
    def any(self) -> bool:
        return len(self.draft_tokens) > 0


class _OtherTokenizerSession(ContextSession):
    """``context`` holds the target's tokens, ``session`` the draft's encoding of the same texts."""

    def __init__(self, drafter: OtherTokenizerDrafter, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        limit, width = drafter.model.max_length, shape.width
        room = LONGER * shape.capacity + PIECE + WIDTH + width
        if limit is not None:
            room = min(room, limit + PIECE + WIDTH + width)
        room = -(-room // shape.chunk) * shape.chunk  # prefill writes whole chunks
        self.longest = min(room - PIECE - WIDTH - width, room if limit is None else limit - max(width, WIDTH))
        self.session = drafter.model.start(rows, replace(shape, capacity=room, width=WIDTH))
        self.shared = drafter.shared
        self.columns = _Columns(self.shared, target.vocab_size, self.session.vocab_size, target.device)
        self.texts: dict[int, _DraftRow] = {}  # by row
        self._behind = False  # texts hold tokens that the draft's session was not told
        self._scored = False  # the draft has run guesses since it was told something

    @property
    def model_sessions(self) -> tuple[Session, ...]:
        return (self.session,)

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        self.admit_all([Admission(row, prompt, source)])

    def admit_all(self, admissions: Sequence[Admission]) -> None:
        self.context.admit_all([new.row for new in admissions], [new.prompt for new in admissions])
        for new in admissions:
            self.session.release(new.row)
            self.texts[new.row] = _DraftRow(DraftText(self.shared, new.prompt))
        self._tell()

    def release(self, row: int) -> None:
        super().release(row)
        self.session.release(row)
        self.texts.pop(row, None)

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        super().commit(tokens, count)
        lists, counts = tokens.tolist(), count.tolist()
        for row, each in self.texts.items():
            each.text.append(lists[row][: counts[row]])
        self._behind = True
        if self._scored:  # while guesses that turned out right are still where they were run
            self._tell()

    def rewind(self, lengths: Tensor) -> None:
        super().rewind(lengths)
        for length, (_, each) in zip(lengths[list(self.texts)].tolist(), self.texts.items(), strict=True):
            if len(each.text.tokens) > length:
                each.text, each.settled = DraftText(self.shared, each.text.tokens[:length]), 0
                self._behind = True

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.session.select(rows)
        self._select_texts(rows)

    def fork(self, rows: Tensor) -> Self:
        other = copy(self)
        other.context = self.context.of_rows(rows)
        other.session = self.session.fork(rows)
        other._select_texts(rows)
        return other

    def _select_texts(self, rows: Tensor) -> None:
        before = self.texts
        self.texts = {new: before[old].copy() for new, old in enumerate(rows.tolist()) if old in before}

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        rows = self.context.rows
        if gamma == 0:
            return Draft.empty(rows, self.context.device)
        if self._behind:
            self._tell()
        going = torch.zeros(rows, dtype=torch.bool)
        going[[row for row, each in self.texts.items() if not each.silent]] = True
        if not bool(going.any()) or not self.columns.any:
            return Draft.empty(rows, self.context.device)
        self._scored = True
        if sampling.greedy and not sampling.adjusts:
            return self._written_guesses(gamma, going.tolist())
        return self._shared_guesses(gamma, sampling, noise, at, going.to(self.context.device))

    def _written_guesses(self, gamma: int, going: Sequence[bool]) -> Draft:
        """Temperature 0: the draft writes in tokens of its own, and its text is encoded for the target."""
        written = self._write(gamma).tolist()
        tokens = torch.zeros((len(going), gamma), dtype=torch.int64)
        count = torch.zeros(len(going), dtype=torch.int64)
        for row in (row for row, goes in enumerate(going) if goes):
            guesses = self.shared.for_target(written[row])[:gamma]
            tokens[row, : len(guesses)] = torch.tensor(guesses, dtype=torch.int64)
            count[row] = len(guesses)
        proposed = torch.arange(gamma) < count[:, None]
        return Draft(tokens.to(self.context.device), None, proposed.to(self.context.device))

    def _write(self, count: int) -> Tensor:
        """The draft's likeliest tokens [B, count] behind what it was told."""
        session = self.session
        guessed = session.guess(count, session.vocab_size) if isinstance(session, Guessing) else None
        if guessed is not None:
            return guessed
        tokens = [largest(session.score(torch.zeros_like(self.context.tokens[:, :0])))[:, -1:]]
        for _ in range(count - 1):
            tokens.append(largest(session.extend(tokens[-1]))[:, -1:])
        return torch.cat(tokens, 1)

    def _shared_guesses(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor, going: Tensor) -> Draft:
        """Guess after guess among the shared tokens. A row ends where the draft's own choice is none of them."""
        tokens = at[:, :0]
        probs: list[Tensor | None] = []
        proposed = []
        logits = self.session.score(tokens)[:, -1]  # [B, the draft's vocabulary]
        for k in range(gamma):
            going = going & self.columns.shared[largest(logits)]
            x, token, q = self._draw(logits, sampling, noise, tokens, at[:, k : k + 1])
            tokens = torch.cat([tokens, token], 1)
            probs.append(q)
            proposed.append(going)
            going = going & (self.columns.known.tokens[x] == token)[:, 0]  # options may lift a token the draft has not
            sampling = sampling if q is None else sampling.behind(q)
            if k + 1 == gamma or (going.device.type == "cpu" and not bool(going.any())):
                break
            logits = self.session.extend(self.columns.draft_tokens[x])[:, -1]
        known = [q for q in probs if q is not None]
        whole = bool(known) and known[0].shape[-1] == self.vocab_size
        return Draft(
            tokens,
            torch.stack(known, 1) if known else None,
            torch.stack(proposed, 1),
            support=None if whole or not known else self.columns.known.tokens,
        )

    def _draw(
        self, logits: Tensor, sampling: Sampling, noise: Noise, guesses: Tensor, at: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Columns [B, 1], the tokens drawn [B, 1], and the q they were drawn from, as ``KnownTokens.draw`` gives it."""
        known = self.columns.known
        shared = logits.index_select(-1, self.columns.draft_tokens)  # [B, N]
        token, q = known.draw(shared, sampling, noise, GuessPlace(self.context, guesses, at))
        x = torch.searchsorted(known.tokens, token[:, None]).clamp(max=len(known.tokens) - 1)
        return x, token[:, None], q

    def _tell(self) -> None:
        """Bring the draft's session to the texts: what changed at the end of an encoding is taken back."""
        self._behind = False
        new, longer, changed = list[Admission](), dict[int, list[int]](), dict[int, list[int]]()
        kept = [self.session.context.capacity] * self.session.context.rows
        for row, each in self.texts.items():
            ids = each.text.ids()
            each.silent = ids is None or len(ids) > self.longest
            if ids is None or each.silent:
                continue  # it stays in the draft's session as it was
            same = 0 if each.told is None else common_prefix(ids, each.told, min(each.settled, len(ids)))
            if same == 0:
                new.append(Admission(row, ids))
            elif each.told is not None and same < len(each.told):
                kept[row], changed[row] = same, ids[same:]
            else:
                longer[row] = ids[same:]
            each.told, each.settled = ids, each.text.settled
        self._append(longer)  # first: here guesses that were right are still known
        if changed:
            self.session.rewind(torch.tensor(kept, device=self.session.device))
            self._append(changed)
        if new:
            admit_all(self.session, new)

    def _append(self, tails: Mapping[int, Sequence[int]]) -> None:
        most = max((len(tail) for tail in tails.values()), default=0)
        if not self._scored and most == 0:
            return
        context, self._scored = self.session.context, False
        for start in range(0, max(most, 1), PIECE):
            width = max(1, min(PIECE, most - start))
            tokens = torch.zeros((context.rows, width), dtype=torch.int64)
            count = torch.zeros(context.rows, dtype=torch.int64)
            for row, tail in tails.items():
                part = tail[start : start + width]
                tokens[row, : len(part)] = torch.tensor(part, dtype=torch.int64)
                count[row] = len(part)
            self.session.commit(tokens.to(context.device), count.to(context.device), follows=False)
