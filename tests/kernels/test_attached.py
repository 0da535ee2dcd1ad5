"""Records attached to modules of a loaded model."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from outrider.kernels.attached import attach, attached, detach, expect


@dataclass
class Note:
    weight: torch.Tensor


class Other:
    """Another kind of record."""


def test_records_are_found_by_their_type_and_are_no_parameters() -> None:
    module, note = nn.Linear(2, 2), Note(torch.ones(2))
    names = set(module.state_dict())
    assert attached(module, Note) is None
    attach(module, note)
    attach(module, Other())
    assert attached(module, Note) is expect(module, Note) is note
    assert set(module.state_dict()) == names and len(list(module.parameters())) == 2
    detach(module, Note)
    assert attached(module, Note) is None and attached(module, Other) is not None
    with pytest.raises(KeyError):
        expect(module, Note)


def test_a_copied_module_has_records_of_its_own() -> None:
    """Joined weights went along with a deep copy as attributes; a table of modules on the side would lose them."""
    module = nn.Linear(2, 2)
    attach(module, Note(torch.ones(2)))
    copied = deepcopy(module)
    expect(copied, Note).weight.zero_()
    assert expect(module, Note).weight.sum() == 2


def test_a_module_is_as_it_was_once_everything_is_taken_away() -> None:
    """A lent model is given back unchanged, its ``__dict__`` included."""
    module = nn.Linear(2, 2)
    before = set(vars(module))
    attach(module, Other())
    detach(module, Other)
    assert set(vars(module)) == before
