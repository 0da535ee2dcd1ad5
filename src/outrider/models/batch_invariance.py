"""Whether a row's bits depend on how many rows run beside it: found out once for a model's kernels, not assumed.

Kernels that sum every element of a product in one order, however many rows there are, need no constant width: plain
decoding runs one token where speculation runs nine, and both see the same bits. Many do not (a single row often has a
kernel of its own), so runs of many widths are compared with one another on the model itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.protocols import LanguageModel, Shape

_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17)
_LONGEST = 33
_LONGER = 1024
"""A second capacity: attention sums over all of it, and long sums may be cut into pieces."""


@torch.no_grad()
def bits_do_not_depend_on_width(model: LanguageModel) -> bool:
    """Logits of one text, run in blocks of many widths, from several places and beside other rows, to the bit."""
    ids = (torch.arange(_LONGEST + 1) * 7 + 3)[None] % model.vocab_size
    shape = Shape(256, _LONGEST, fixed=False)
    expected = _scored(model, shape, ids[:, :1], ids[:, 1:_LONGEST])  # [1, 33, V]
    for start in (1, 6):
        for width in _WIDTHS:
            found = _scored(model, shape, ids[:, :start], ids[:, start : start + width - 1])
            if not torch.equal(found, expected[:, start - 1 : start - 1 + width]):
                return False
    return _same_beside_others(model, shape, ids, expected) and _same_in_a_longer_buffer(model, ids)


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
