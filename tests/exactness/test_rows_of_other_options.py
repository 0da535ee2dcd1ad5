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
from outrider.core.context import Context
from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Drafter, Shape, Verifier, admit_all
from outrider.core.sampling import Sampling, SamplingByRow
from outrider.core.verification.choose import choose
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.row_rules import joint_rule
from outrider.decoding.step_runner import Rule
from outrider.drafters import Copying, Mixture, ModelDrafter, Suffix
from outrider.drafters.known_tokens import GuessPlace, KnownTokens
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


COUPLINGS = ("maximal", "gumbel", "maximal", "block")
"""Of the rows: those of one coupling have their noise from one place."""


def drafted(drafter: Drafter, sampling: Sampling, verifier: Verifier | None = None) -> Draft:
    """Behind texts in which some tokens came before, and a slot that is empty."""
    rows, gamma, shape = len(TEXTS) + 1, 4, Shape(capacity=64, width=5)
    target = wrapped("llama").start(rows, shape)
    session = drafter.start(rows, shape, target)
    for part in (target, session):
        admit_all(part, [Admission(row, text) for row, text in enumerate(TEXTS)])
    at = torch.tensor([*map(len, TEXTS), 1])[:, None] + torch.arange(gamma + 1)
    noise = Noise(torch.arange(rows) + 7)
    noise = (verifier or maximal_coupling).noise_for_draft(noise, at)
    draft = session.propose(gamma, sampling, noise, at)
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


@pytest.mark.parametrize("name", [*(name for name in DRAFTERS if name not in ("none", "table")), *DRAWN])
def test_rows_of_other_couplings_beside(name: str) -> None:
    """A drafter that asked for the noise of a few rows, none of them of some coupling, raised, and was left out."""
    drafter = DRAWN[name]() if name in DRAWN else case("llama").drafter(name)
    rules = {
        row: Rule(choose(coupling, options.greedy), options)
        for row, (coupling, options) in enumerate(zip(COUPLINGS, OPTIONS, strict=True))
    }
    joint = joint_rule(rules)
    mixed = drafted(drafter, joint.sampling, joint.verifier)
    for row, rule in rules.items():
        if rule.sampling.greedy and name == "other tokenizer":
            continue
        (tokens, q), (own, own_q) = guesses(mixed, row), guesses(drafted(drafter, rule.sampling, rule.verifier), row)
        assert tokens == own and torch.equal(q, own_q), (row, rule)


@pytest.mark.parametrize("name", DRAWN)
def test_the_options_matter(name: str) -> None:
    """Or the test above could not fail: rows of these options are drawn for differently."""
    drafts = [drafted(DRAWN[name](), options) for options in OPTIONS]
    tables = [torch.cat([guesses(draft, row)[1] for row in range(len(TEXTS))]) for draft in drafts]
    assert any(one.shape != other.shape or not torch.equal(one, other) for one, other in pairwise(tables))


def test_options_of_double_logits_share_a_batch() -> None:
    """A draft in float64 was left out where one row of several asked for tokens: its q was in float32."""
    known, generator = KnownTokens.of(torch.tensor([1, 4, 6]), 8), torch.Generator().manual_seed(0)
    logits = torch.randn((2, 3), generator=generator, dtype=torch.float64)
    place = GuessPlace(Context(2, 8, logits.device), torch.zeros((2, 0), dtype=torch.int64), torch.ones((2, 1)).long())
    plain, biased = Sampling(1.0), Sampling(1.0, logit_bias={4: 1.0})
    noise = Noise(torch.arange(2))
    tokens, q = known.draw(logits, SamplingByRow.of([(plain, (0,)), (biased, (1,))]), noise, place)
    assert q is not None and q.dtype == torch.float64
    for row, options in enumerate((plain, biased)):
        alone, own = known.draw(logits, options, noise, place)
        assert own is not None and int(alone[row]) == int(tokens[row])
        assert torch.equal(q[row] if options is biased else q[row, known.tokens], own[row])


def test_processors_stay_with_their_rows() -> None:
    """Of a group whose last row was not to be asked, a drafter that goes row by row asked about another, or none."""

    def forbidding(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores - 1

    mine = Sampling(1.0, processors=(forbidding,))
    options = SamplingByRow.of([(Sampling(), (0,)), (mine, (1, 2))]).only(torch.tensor([True, True, False]))
    scores = torch.zeros((1, 3))
    asked = [[float(one(scores, scores)[0, 0]) for one in options.of_row(row).processors] for row in range(3)]
    assert asked == [[], [-1.0], [0.0]]
