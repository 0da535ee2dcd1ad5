"""N-gram drafters by hand: counts, back-off, files, and what the online one learns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Shape
from outrider.core.sampling import Sampling
from outrider.drafters import Ngram, NgramTable
from outrider.errors import BadOption, ModelCorrupt, ModelNotFound
from outrider.models.toy import ToyModel

SIZE = 8
CORPUS = [[1, 2, 3, 1, 2, 4, 1, 2, 3], [5, 6]]


def propose(drafter: Ngram, *texts: Sequence[int], gamma: int = 1, size: int = SIZE) -> Draft:
    shape = Shape(capacity=32, width=5)
    session = drafter.start(len(texts), shape, ToyModel(size).start(len(texts), shape))
    for row, text in enumerate(texts):
        session.admit(row, text)
    at = torch.tensor([len(t) for t in texts])[:, None] + torch.arange(gamma + 1)
    return session.propose(gamma, Sampling(1.0), Noise(torch.arange(len(texts))), at).dense(size)


def distribution(drafter: Ngram, text: Sequence[int], size: int = SIZE) -> dict[int, float]:
    """Probabilities of the next token, those above zero."""
    draft = propose(drafter, text, size=size)
    if not bool(draft.proposed[0].any()):
        return {}
    assert draft.probs is not None
    return {i: round(float(q), 6) for i, q in enumerate(draft.probs[0, 0]) if q > 0}


def frequencies(texts: Sequence[Sequence[int]], text: Sequence[int], order: int) -> dict[int, float]:
    """The definition, slowly: followers of the longest suffix ever seen with a follower."""
    for size in range(min(order - 1, len(text)), -1, -1):
        suffix = list(text[len(text) - size :])
        followers = [t[i + size] for t in texts for i in range(len(t) - size) if list(t[i : i + size]) == suffix]
        if followers:
            return {x: round(followers.count(x) / len(followers), 6) for x in sorted(set(followers))}
    return {}


TOKENS = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=12)


@given(st.lists(TOKENS, min_size=1, max_size=4), TOKENS, st.integers(1, 4))
def test_table_is_the_definition(corpus: list[list[int]], text: list[int], order: int) -> None:
    """Catches wrong counts, contexts across two texts, or a back-off that skips an order."""
    table = Ngram(NgramTable.fit(corpus, SIZE, order=order))
    assert distribution(table, text) == pytest.approx(frequencies(corpus, text, order), abs=1e-5)


@given(TOKENS, st.integers(1, 5))
def test_online_is_the_definition_on_its_own_text(text: list[int], order: int) -> None:
    """Catches an online drafter that takes the last token's missing follower as evidence, or backs off too far."""
    rest = text[1:]  # order 1: what followed anything at all
    expected = {x: rest.count(x) / len(rest) for x in set(rest)} if order == 1 else {}
    if text[-1] in text[:-1] and order > 1:  # some suffix occurred before
        expected = frequencies([text], text, order)
    assert distribution(Ngram(order=order), text) == pytest.approx(expected, abs=1e-5)


def test_guesses_follow_guesses() -> None:
    """Catches a table asked about the committed text only: the second guess stands behind the first."""
    draft = propose(Ngram(NgramTable.fit([[1, 2, 3, 4, 5]], SIZE, order=2)), [1], gamma=4)
    assert draft.tokens.tolist() == [[2, 3, 4, 5]]


def test_rows_that_know_nothing_propose_nothing() -> None:
    """Catches a made-up distribution where there is no evidence: the row must not draft."""
    draft = propose(Ngram(), [3], [1, 2, 1], gamma=2)
    assert draft.proposed.tolist() == [[False, False], [True, True]]


def test_a_small_table_for_a_larger_vocabulary() -> None:
    """Catches a table of fewer tokens than the target (padding rows) that breaks or drafts them."""
    table = NgramTable.fit(CORPUS, SIZE)
    assert distribution(Ngram(table), [1, 2], size=SIZE + 4) == pytest.approx({3: 2 / 3, 4: 1 / 3}, abs=1e-5)
    with pytest.raises(BadOption, match="8 tokens, the target only 5"):
        propose(Ngram(table), [1], size=5)


def test_save_and_load(tmp_path: Path) -> None:
    """Catches a table that comes back different."""
    table = NgramTable.fit(CORPUS, SIZE, order=3)
    table.save(tmp_path / "table")
    loaded = NgramTable.load(tmp_path / "table")
    assert loaded.order == 3
    for text in ([1], [1, 2], [4], [0]):
        assert distribution(Ngram(loaded), text) == distribution(Ngram(table), text)


def test_files_that_are_no_table(tmp_path: Path) -> None:
    """Catches a stack trace where one line with a remedy is due."""
    with pytest.raises(ModelNotFound, match="no n-gram table at"):
        NgramTable.load(tmp_path / "missing")
    (tmp_path / "broken").write_bytes(b"\x00" * 40)
    with pytest.raises(ModelCorrupt, match="is not an n-gram table"):
        NgramTable.load(tmp_path / "broken")
    table = NgramTable.fit(CORPUS, SIZE)
    table.save(tmp_path / "cut")
    (tmp_path / "cut").write_bytes((tmp_path / "cut").read_bytes()[:-20])
    with pytest.raises(ModelCorrupt, match="fit it again"):
        NgramTable.load(tmp_path / "cut")


@pytest.mark.parametrize(
    ("texts", "order", "says"),
    [
        ([], 2, "needs some text"),
        ([[1]], 0, "order must be between"),
        ([[1, 9]], 2, "token ids must be between 0 and 7"),
    ],
)
def test_bad_corpora(texts: list[list[int]], order: int, says: str) -> None:
    """Catches a table fitted from nothing, or from another vocabulary."""
    with pytest.raises(BadOption, match=says):
        NgramTable.fit(texts, SIZE, order=order)


def test_order_of_the_online_drafter() -> None:
    """Catches an order that is accepted and ignored."""
    with pytest.raises(BadOption, match="order must be between 1 and 16"):
        Ngram(order=0)
    assert Ngram(NgramTable.fit(CORPUS, SIZE, order=2)).name == "2-gram"


def test_nothing_known_is_nothing_drawn() -> None:
    """Where no row has seen its last token before, a distribution over the vocabulary was made and drawn from."""
    assert propose(Ngram(), [1, 2, 3], [4, 5], gamma=3).tokens.shape == (2, 0)
    assert propose(Ngram(), [1, 2, 3], [4, 4], gamma=3).proposed.any(1).tolist() == [False, True]
