"""Whether a row's bits depend on how many rows run beside it: found out once for a model's kernels, not assumed.

Kernels that sum every element of a product in one order, however many rows there are, need no constant width: plain
decoding runs one token where speculation runs nine, and both see the same bits. Many do not (a single row often has a
kernel of its own), so runs of many widths are compared with one another on the model itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.protocols import Admission, LanguageModel, Session, Shape, admit_all

_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17)
_LONGEST = 33
_LONGER = 1024
"""A second capacity: attention sums over all of it, and long sums may be cut into pieces."""

_LONG = 300
"""Tokens of a prompt that is prefilled in several ways."""


@torch.no_grad()
def bits_do_not_depend_on_width(model: LanguageModel) -> bool:
    """Logits of one text, run in blocks of many widths, from several places and beside other rows, to the bit."""
    ids = _text(model, _LONGEST + 1)
    shape = Shape(256, _LONGEST, fixed=False)
    expected = _scored(model, shape, ids[:, :1], ids[:, 1:_LONGEST])  # [1, 33, V]
    for start in (1, 6):
        for width in _WIDTHS:
            found = _scored(model, shape, ids[:, :start], ids[:, start : start + width - 1])
            if not torch.equal(found, expected[:, start - 1 : start - 1 + width]):
                return False
    return _same_beside_others(model, shape, ids, expected) and _same_in_a_longer_buffer(model, ids)


@torch.no_grad()
def bits_do_not_depend_on_capacity(model: LanguageModel) -> bool:
    """Logits of one text in a small and in a large KV cache."""
    ids = _text(model, 14)
    short, long = (_scored(model, Shape(room, 9, fixed=False), ids[:, :6], ids[:, 6:]) for room in (256, _LONGER))
    return torch.equal(short, long)


@torch.no_grad()
def bits_do_not_depend_on_prefill(model: LanguageModel, rows: int = 17, longest: int = _LONG) -> bool:
    """Logits behind long prompts: prefilled alone, beside prompts of other lengths, and run as if they were guessed."""
    longest = longest if model.max_length is None else min(longest, model.max_length - 10)
    ids = _text(model, longest + 1)
    shape = Shape(512, 9, fixed=False)
    expected = _scored(model, Shape(512, longest + 1, fixed=False), ids[:, :1], ids[:, 1:])[0]  # of all positions
    alone = _scored(model, shape, ids[:, :longest], ids[:, longest:])[0]
    session = model.start(rows, shape)
    lengths = [max(1, longest - 7 * row) for row in range(rows)]
    admit_all(session, [Admission(row, ids[0, :count].tolist()) for row, count in enumerate(lengths)])
    beside = session.score(torch.stack([ids[0, count : count + 1] for count in lengths]))
    same = (torch.equal(beside[row], expected[count - 1 : count + 1]) for row, count in enumerate(lengths))
    return torch.equal(alone, expected[-2:]) and all(same)


@torch.no_grad()
def bits_do_not_depend_on_rows(model: LanguageModel, rows: int) -> bool:
    """Logits of many rows at different places of one text, at several widths, against that text alone."""
    ids = _text(model, _LONGEST + 1)
    shape = Shape(256, _LONGEST, fixed=False)
    expected = _scored(model, shape, ids[:, :1], ids[:, 1:_LONGEST])[0]  # [33, V]
    starts = [1 + row % 24 for row in range(rows)]
    for width in (1, 2, 5, 9):
        session = model.start(rows, shape)
        admit_all(session, [Admission(row, ids[0, :start].tolist()) for row, start in enumerate(starts)])
        found = session.score(torch.stack([ids[0, start : start + width - 1] for start in starts]))
        if not all(torch.equal(found[row], expected[s - 1 : s - 1 + width]) for row, s in enumerate(starts)):
            return False
    return True


def holds(model: LanguageModel) -> bool:
    """All of it: a token's bits depend on the tokens of its own row and on nothing else."""
    checks = bits_do_not_depend_on_width, bits_do_not_depend_on_capacity, bits_do_not_depend_on_prefill
    return all(check(model) for check in checks)


@torch.no_grad()
def holds_beside_sources(model: LanguageModel, rows: int) -> bool:
    """The same of an encoder-decoder model: one text behind one source, alone, in a larger KV cache and beside others,
    some of them longer."""
    ids = _text(model, 160)[0]

    def started(count: int, room: int) -> Session:
        session = model.start(count, Shape(room, 17, fixed=False, source_capacity=64))
        texts = [(ids[: 6 + 31 * (row % 5)].tolist(), ids[: 9 + row % 8].tolist()) for row in range(count)]
        admit_all(session, [Admission(row, text, source) for row, (text, source) in enumerate(texts)])
        return session

    expected = started(1, 256).score(ids[None, 6:22])  # [1, 17, V]
    for count, room, widths in ((1, 256, (1, 2, 3, 5, 9)), (3, 1024, (1, 4)), (rows, 256, (1, 9))):
        session = started(count, room)
        for width in widths:
            found = session.score(ids[None, 6 : 5 + width].expand(count, -1))
            if not torch.equal(found[:1], expected[:, :width]):
                return False
    return True


def _text(model: LanguageModel, length: int) -> Tensor:
    """[1, length]"""
    return (torch.arange(length, device=model.device) * 7 + 3)[None] % model.vocab_size


def _same_beside_others(model: LanguageModel, shape: Shape, ids: Tensor, expected: Tensor) -> bool:
    starts, width = (2, 5, 9), 4
    session = model.start(len(starts), shape)
    for row, start in enumerate(starts):
        session.admit(row, ids[0, :start].tolist())
    found = session.score(torch.stack([ids[0, start : start + width - 1] for start in starts]))
    return all(torch.equal(found[row], expected[0, start - 1 : start - 1 + width]) for row, start in enumerate(starts))


def _same_in_a_longer_buffer(model: LanguageModel, ids: Tensor) -> bool:
    """Not that the capacity changes nothing (it may), but that in this one, too, the width does not."""
    shape = Shape(_LONGER, 9, fixed=False)
    expected = _scored(model, shape, ids[:, :6], ids[:, 6:14])
    narrower = [_scored(model, shape, ids[:, :6], ids[:, 6 : 5 + width]) for width in (1, 2, 5)]
    return all(torch.equal(found, expected[:, : found.shape[1]]) for found in narrower)


def _scored(model: LanguageModel, shape: Shape, prompt: Tensor, tail: Tensor) -> Tensor:
    session = model.start(1, shape)
    session.admit(0, prompt[0].tolist())
    return session.score(tail)
