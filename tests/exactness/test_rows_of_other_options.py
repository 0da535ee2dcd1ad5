"""What a row's guesses are drawn from does not depend on the options of the rows beside it, to the bit.

Drafters that treat rows together went by the highest temperature of the batch, by a table as wide as one row's options
asked for, or by the tokens that any row might go on with: a text under maximal coupling then changed with its
neighbours, and a temperature of the draft's own was forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from helpers import DRAFTERS, case, wrapped
from outrider.core import host_sync
from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Drafter, Shape, admit_all
from outrider.core.sampling import Sampling, SamplingByRow
from outrider.drafters import Copying, Mixture, ModelDrafter, Suffix
from outrider.drafters.other_tokenizer import OtherTokenizerDrafter
from outrider.drafters.standardised import Standardised
from outrider.drafters.uniform import Uniform
from outrider.models.session import Admission
from two_tokenizers import of_ninety

TEXTS = ([3, 4, 5, 3, 4, 6, 3, 4], [7, 8, 9, 7, 8, 9, 7], [11, 12, 11, 13, 11, 12, 11, 13, 11, 12], [5, 6, 7, 5, 6])
OPTIONS = (
    Sampling(),
    Sampling(0.4),
    Sampling(1.0, top_p=0.7),
    Sampling(1.0, frequency_penalty=0.5, logit_bias={12: -2.0}),
)
DRAWN: dict[str, Callable[[], Drafter]] = {
    "suffix at any length": lambda: Suffix(shortest=1, floor=0.0),
    "draft options": lambda: Standardised(ModelDrafter(wrapped("llama", seed=1)), temperature=0.5, top_k=9),
    "other tokenizer": lambda: OtherTokenizerDrafter(wrapped("llama", seed=1), of_ninety()),
    "mixture": lambda: Mixture(Copying(), ModelDrafter(wrapped("llama", seed=1)), cost=0.2),
    "mixture of suffix": lambda: Mixture(Suffix(shortest=1), Uniform(), cost=0.05),
}


def drafted(drafter: Drafter, sampling: Sampling) -> Draft:
    """Behind texts in which some tokens came before, and a slot that is empty."""
    rows, gamma, shape = len(TEXTS) + 1, 4, Shape(capacity=64, width=5)
    target = wrapped("llama").start(rows, shape)
    session = drafter.start(rows, shape, target)
    for part in (target, session):
        admit_all(part, [Admission(row, text) for row, text in enumerate(TEXTS)])
    at = torch.tensor([*map(len, TEXTS), 1])[:, None] + torch.arange(gamma + 1)
    # Independent of the target's, as under maximal coupling.
    draft = session.propose(gamma, sampling, Noise(torch.arange(rows) + 7).child("draft"), at)
    return draft.usable(target.vocab_size).dense(target.vocab_size)


def guesses(draft: Draft, row: int) -> tuple[list[int], torch.Tensor]:
    """A row's tokens, and q of each: of points, too."""
    made = int(draft.proposed[row].sum())
    tokens = draft.tokens[row, :made]
    if draft.probs is None:
        return tokens.tolist(), torch.nn.functional.one_hot(tokens, wrapped("llama").vocab_size).float()
    return tokens.tolist(), draft.probs[row, :made].float()


@pytest.mark.parametrize("on_host", [True, False], ids=["host", "device"])
@pytest.mark.parametrize("name", [*(name for name in DRAFTERS if name != "none"), *DRAWN])
def test_a_row_drafts_as_beside_its_like(name: str, on_host: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_sync, "on_cpu", on_host)
    drafter = DRAWN[name]() if name in DRAWN else case("llama").drafter(name)
    mixed = drafted(drafter, SamplingByRow.of([(one, (row,)) for row, one in enumerate(OPTIONS)]))
    made = 0
    for row, options in enumerate(OPTIONS):
        if options.greedy and name == "other tokenizer":  # it writes in its own tokens where all rows are
            continue
        alike = drafted(drafter, options)
        (tokens, q), (own, own_q) = guesses(mixed, row), guesses(alike, row)
        assert tokens == own, (row, options)
        assert torch.equal(q, own_q), (row, options)
        made += len(own)
    assert made > 0, "something was guessed"


@pytest.mark.parametrize("name", DRAWN)
def test_the_options_matter(name: str) -> None:
    """Or the test above could not fail: rows of these options are drawn for differently."""
    drafts = [drafted(DRAWN[name](), options) for options in OPTIONS]
    tables = [torch.cat([guesses(draft, row)[1] for row in range(len(TEXTS))]) for draft in drafts]
    assert any(one.shape != other.shape or not torch.equal(one, other) for one, other in pairwise(tables))
