"""Every registered class passes the public checks: drafters, verifiers, sessions."""

from __future__ import annotations

import pytest

import tiny
from helpers import case, wrapped
from outrider.core.protocols import Drafter
from outrider.core.verification.choose import VERIFIERS
from outrider.drafters import (
    Cascade,
    Copying,
    Fallback,
    Mixture,
    ModelDrafter,
    Ngram,
    NgramTable,
    Nothing,
    Uniform,
    built_in,
)
from outrider.models.toy import ToyModel
from outrider.testing import check_drafter, check_session, check_verifier


def drafters() -> dict[str, Drafter]:
    """The built-in ones and every other way to put them together, for the 12 tokens of the default target."""
    text = [1, 2, 3, 4, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 0, 1]
    model, small = ModelDrafter(ToyModel(12, seed=9)), ModelDrafter(ToyModel(12, seed=8), "small")
    return {
        **built_in(),
        "copy-1": Copying(shortest=1, longest=2),
        "bigram table": Ngram(NgramTable.fit([text], 12, order=2)),
        "unigram table": Ngram(NgramTable.fit([text], 12, order=1)),
        "smaller table": Ngram(NgramTable.fit([text[:4]], 6, order=3)),
        "online bigram": Ngram(order=2),
        "model": ModelDrafter(ToyModel(12, seed=9)),
        "smaller vocabulary": ModelDrafter(_clipped(9)),
        "larger vocabulary": ModelDrafter(ToyModel(15, seed=9)),
        "table, then model": Fallback(Ngram(NgramTable.fit([text], 12)), ModelDrafter(ToyModel(12, seed=9))),
        "copy, then copy": Fallback(Copying(), Copying(shortest=1)),
        "copy, then uniform": Fallback(Copying(), Uniform()),
        "nothing, then n-gram": Fallback(Nothing(), Ngram()),
        "n-gram, then nothing": Fallback(Ngram(), Nothing()),
        "cascade on copying": Cascade(Copying(shortest=1), model, guesses=2),
        "cascade on nothing": Cascade(Nothing(), model),
        "cascade of three": Cascade(Cascade(Uniform(), small, guesses=2), model, guesses=3),
        "cascade, asked once": Cascade(small, model, once=True),
        "cascade, smaller middle": Cascade(Uniform(), ModelDrafter(_clipped(9)), guesses=2),
        "copy, then cascade": Fallback(Copying(), Cascade(small, model)),
        "copy or model": Mixture(Copying(), ModelDrafter(ToyModel(12, seed=9))),
        "table or nothing": Mixture(Ngram(NgramTable.fit([text], 12)), Nothing()),
        "model that stops": ModelDrafter(ToyModel(12, seed=9), floor=0.3),
    }


def _clipped(size: int) -> ToyModel:
    """A model that knows fewer tokens than the target and reads the others as token 0."""
    model = ToyModel(size, seed=9)
    states = model.states
    model.states = lambda tokens: states(tokens * (tokens < size))  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("name", drafters())
def test_drafters(name: str) -> None:
    """Catches a q reported that was not drawn from, hidden randomness, and a drafter that changes the text."""
    check_drafter(drafters()[name])


@pytest.mark.parametrize(("family", "name"), [("llama", "auto"), ("llama", "other"), ("t5", "copy"), ("t5", "other")])
def test_drafters_beside_transformers_models(family: str, name: str) -> None:
    """Catches draft sessions that fall out of step with a real model's, sources included."""
    wanted = case(family)
    source = (1, 2, 3, 4, 9, 8, 7) if wanted.model.encoder_decoder else None
    check_drafter(wanted.drafter(name), wanted.model, source=source)


@pytest.mark.parametrize("name", VERIFIERS)
def test_verifiers(name: str) -> None:
    """Catches a biased rule: distribution of token pairs with six drafters, total variation 0.05, failure rate 1e-9."""
    check_verifier(VERIFIERS[name])


@pytest.mark.parametrize("order", [1, 3])
def test_toy_sessions(order: int) -> None:
    """Catches a reference that is itself wrong."""
    check_session(ToyModel(12, order=order).start)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_transformers_sessions(family: str) -> None:
    """Catches rollback that is not a fresh session: stale keys, shifted positions, rows mixed up by select."""
    model = wrapped(family)
    check_session(model.start, encoder_decoder=model.encoder_decoder)
