"""Which tokens two tokenizers have in common: what a draft with another tokenizer than the target's can guess."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.errors import TokenizerMismatch
from outrider.models.hub.token_bytes import SAMPLE, TokenBytes, complete, token_bytes

LEAST = 0.05
"""The share of the smaller vocabulary that must be common: with less, guesses are single letters."""

_REMEDY = "choose a draft of the same family, or draft='copy'"


@dataclass(frozen=True)
class SharedTokens:
    """Two tokenizers and the tokens that write the same in both, each once."""

    target: TokenBytes
    draft: TokenBytes
    target_ids: tuple[int, ...]  # ascending
    draft_ids: tuple[int, ...]  # of the same tokens, in the same order
    special: Mapping[int, int]  # special tokens that mean the same: the target's id -> the draft's

    @staticmethod
    def of(target: TokenBytes, draft: TokenBytes) -> SharedTokens:
        """Text by its bytes; special tokens by their names, and the end of a sequence whatever it is called."""
        pairs = {token: draft.ids[piece] for piece, token in target.ids.items() if piece in draft.ids}
        names = {name: token for token, name in draft.special.items()}
        special = {token: names[name] for token, name in target.special.items() if name in names}
        ours, theirs = target.end, draft.end
        named = ours in target.special and theirs in draft.special and theirs not in special.values()
        if named and ours is not None and theirs is not None:
            special.setdefault(ours, theirs)
        pairs |= special
        return SharedTokens(target, draft, tuple(sorted(pairs)), tuple(pairs[t] for t in sorted(pairs)), special)

    def for_target(self, tokens: Sequence[int]) -> list[int]:
        """What the draft's tokens write behind a text, in the target's tokens; a special token is the last."""
        text, last = b"", list[int]()
        for token in tokens:
            if token not in self.draft.pieces:
                last = [ours for ours, theirs in self.special.items() if theirs == token][:1]
                break
            text += self.draft.pieces[token]
        whole = complete(text)
        return self.target.encode_behind(text[:whole]) + (last if whole == len(text) else [])

    @property
    def share(self) -> float:
        """Of the smaller vocabulary."""
        smaller = min(len(side.pieces) + len(side.special) for side in (self.target, self.draft))
        return len(self.target_ids) / max(1, smaller)


def shared_tokens(target: tuple[str, Any], draft: tuple[str, Any]) -> SharedTokens:
    """Of two models, each with its name and its tokenizer; one line that names both where that leads nowhere."""
    (ours, _), (theirs, _) = target, draft
    both = f"draft {theirs!r} has another tokenizer than target {ours!r}"
    try:
        found = SharedTokens.of(_checked(*target), _checked(*draft))
    except TokenizerMismatch as error:
        raise TokenizerMismatch(f"{both}, and {error}; {_REMEDY}") from None
    if found.share < LEAST:
        sizes = f"{len(found.draft.pieces)} and {len(found.target.pieces)}"
        raise TokenizerMismatch(
            f"{both}, and only {len(found.target_ids)} tokens of vocabularies of {sizes} are common; {_REMEDY}"
        )
    return found


def _checked(name: str, tokenizer: Any) -> TokenBytes:
    found = token_bytes(tokenizer, name)
    if not found.keeps(SAMPLE):
        raise TokenizerMismatch(f"the tokenizer of {name!r} does not give a text back as it was")
    return found
