"""What suffix memory proposes: by hand, against a reference that looks everywhere, and as a distribution."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.abilities import Abilities
from outrider.core.noise import Noise, Silence
from outrider.core.prices import Ladder, Prices
from outrider.core.protocols import Admission, Draft, Shape, admit_all
from outrider.core.sampling import Sampling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import Cascade, Copying, Fallback, Mixture, ModelDrafter, OutputMemory, Suffix, SuffixIndex
from outrider.drafters.weighing import PRIORS
from outrider.errors import BadOption
from outrider.models.toy import ToyModel
from outrider.testing import assert_same_distribution, check_drafter, counts_of, exact_distribution
from outrider.trace import Trace

VOCAB = 12
MODEL = ToyModel(VOCAB, seed=3, sharpness=2.0)
TEXTS = ((1, 2, 3, 4, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 0, 1), (3, 4, 1, 2, 9, 9))


def proposed(
    drafter: Suffix, texts: Sequence[Sequence[int]], gamma: int = 4, sampling: Sampling = Sampling(), **new: object
) -> Draft:  # fmt: skip
    """One draft for rows with these texts."""
    shape = Shape(capacity=64, width=gamma + 1)
    target = MODEL.start(len(texts), shape)
    session = drafter.start(len(texts), shape, target)
    admit_all(session, [Admission(row, text, **new) for row, text in enumerate(texts)])  # type: ignore[arg-type]
    for row, text in enumerate(texts):
        target.admit(row, text)
    seeds = torch.arange(len(texts))
    noise = Silence(seeds) if sampling.greedy else Noise(seeds).child("draft")
    return session.propose(gamma, sampling, noise, target.context.positions(gamma + 1))


def guesses(draft: Draft, row: int = 0) -> list[int]:
    return draft.tokens[row][draft.proposed[row]].tolist()


def reference(text: Sequence[int], gamma: int, shortest: int) -> list[int]:
    """At temperature 0 without a floor: what followed most often, half a count more for the latest. Guesses count."""
    for length in range(min(len(text), 32), shortest - 1, -1):
        path = list(text[-length:])
        for made in range(gamma):
            whole = [*text, *path[length:]]
            follows = [whole[at] for at in range(len(path), len(whole)) if whole[at - len(path) : at] == path]
            if not follows:
                break
            weights = {token: follows.count(token) + 0.5 * (token == follows[-1]) for token in sorted(follows)}
            path.append(max(weights, key=lambda token: weights[token]))
            if made + 1 == gamma:
                return path[length:]
        if len(path) > length:
            return path[length:]
    return []


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 3))
def test_the_likeliest_by_looking_everywhere(text: list[int], gamma: int, shortest: int) -> None:
    assert guesses(proposed(Suffix(shortest=shortest, floor=0), [text], gamma)) == reference(text, gamma, shortest)


def test_counts_decide_and_the_latest_among_equals() -> None:
    """Copying takes the latest: here two of three places say otherwise."""
    assert guesses(proposed(Suffix(floor=0), [[9, 1, 2, 3, 8, 1, 2, 3, 7, 1, 2, 4, 6, 1, 2]]), 0)[0] == 3
    assert guesses(proposed(Suffix(floor=0), [[9, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2]]))[0] == 4


def test_the_longest_match_decides_whoever_has_it() -> None:
    """Of equally long ones the row's own, then earlier outputs, then texts."""
    index, memory = SuffixIndex.of([[7, 1, 2, 5, 5], [8, 8, 1, 2, 5]]), OutputMemory()
    memory.add("me", [7, 1, 2], [6, 6])
    drafter = Suffix(index, memory, floor=0)
    texts = [[1, 2, 4, 4, 1, 2], [7, 1, 2, 4, 4, 7, 1, 2], [4, 7, 1, 2], [8, 8, 1, 2]]
    alone = proposed(drafter, texts)
    assert [guesses(alone, row)[0] for row in range(4)] == [4, 4, 5, 5]
    owned = proposed(drafter, texts, owner="me")
    assert [guesses(owned, row)[0] for row in range(4)] == [4, 4, 6, 5]
    other = proposed(drafter, texts, owner="somebody else")
    assert [guesses(other, row)[0] for row in range(4)] == [4, 4, 5, 5]


def test_q_is_the_counts() -> None:
    text = [9, 1, 2, 3, 8, 1, 2, 3, 7, 1, 2, 4, 6, 1, 2]
    draft = proposed(Suffix(floor=0), [text], 1, Sampling(1.0)).dense(VOCAB)
    assert draft.probs is not None
    assert draft.probs[0, 0, [3, 4]].tolist() == pytest.approx([2 / 3.5, 1.5 / 3.5])


def test_a_draft_ends_where_all_of_it_is_no_longer_likely() -> None:
    """A match of two tokens in one place: 0.4, then 0.4 * 0.55 ... by the length that the match has reached."""
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    short, middle, *_ = PRIORS[0.0]
    for floor, expected in ((0.0, 5), (short * middle**2 - 0.01, 3), (short - 0.01, 1), (short + 0.01, 0)):
        assert len(guesses(proposed(Suffix(floor=floor), [text], 5))) == expected
    sure = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] * 2 + [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(guesses(proposed(Suffix(floor=0.5), [sure], 5))) == 5


def test_prices_end_a_draft() -> None:
    """A policy's prices stand in for the floor: dear runs, no guesses."""
    shape, text = Shape(capacity=64, width=6), [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    target = MODEL.start(1, shape)
    session = Suffix().start(1, shape, target)
    for one in (target, session):
        one.admit(0, text)
    made = []
    for more in (0.0, 0.5, 2.0):
        ladder = Ladder(tuple(1 + more * k for k in range(6)), (0.0,) * 6)
        Abilities(session).price(Prices(ladder, [1.0], [0.5]))
        draft = session.propose(5, Sampling(), Silence(torch.zeros(1, dtype=torch.int64)), target.context.positions(6))
        made.append(draft.tokens.shape[1])
    assert made[0] == 5 and made[0] > made[1] > made[2] == 0


def test_caps_and_matches_are_known_to_wrappers() -> None:
    drafter, shape = Suffix(floor=0), Shape(capacity=64, width=6)
    target = MODEL.start(2, shape)
    session = drafter.start(2, shape, target)
    for row in range(2):
        target.admit(row, [1, 2, 3, 4, 1, 2, 3])
        session.admit(row, [1, 2, 3, 4, 1, 2, 3])
    abilities = Abilities(session)
    abilities.cap(torch.tensor([0, 2]))
    draft = session.propose(4, Sampling(), Silence(torch.zeros(2, dtype=torch.int64)), target.context.positions(5))
    assert draft.proposed.sum(1).tolist() == [0, 2]
    assert abilities.matched is not None and abilities.matched.tolist() == [0, 3]


def test_tokens_that_the_target_does_not_have_are_not_guessed() -> None:
    index = SuffixIndex.of([[1, 2, VOCAB + 3], [1, 2, 4]])
    assert guesses(proposed(Suffix(index, floor=0), [[5, 1, 2]])) == [4]
    assert guesses(proposed(Suffix(SuffixIndex.of([[1, 2, VOCAB]]), floor=0), [[5, 1, 2]])) == []


@pytest.mark.parametrize(
    "wrong", [{"shortest": 0}, {"shortest": 99}, {"shortest": 2.5}, {"floor": -0.1}, {"floor": 2.0}]
)
def test_options_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(BadOption, match=f"{next(iter(wrong))} must be .*(between|whole number).*, got "):
        Suffix(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["row", "texts", "floor", "memory", "wrapped", "first of two", "below a model"])
def test_contract(name: str) -> None:
    """The public checks of any drafter: q drawn from, layout, forks, prefixes, same text."""
    memory, model = OutputMemory(), ModelDrafter(ToyModel(VOCAB, seed=9))
    memory.add("me", TEXTS[0][:3], TEXTS[0][3:])
    texts = Suffix(SuffixIndex.of(TEXTS), floor=0)
    check_drafter(
        {
            "row": Suffix(shortest=1, floor=0),
            "texts": texts,
            "floor": Suffix(SuffixIndex.of(TEXTS), floor=0.3),
            "memory": Suffix(memory=memory),
            "wrapped": Fallback(texts, model),
            "first of two": Mixture(texts, model),
            "below a model": Cascade(texts, model, guesses=2),
        }[name]
    )


TOY = ToyModel(5, order=2, seed=11, sharpness=1.0)
PROMPT = (1, 2, 0, 1, 2)


def asked_again() -> torch.Tensor:
    """Texts of prompts that were asked before with the same seeds, and remembered."""
    count, sampling, memory = 4_000, Sampling(1.0), OutputMemory(1 << 20)
    requests = [Request(PROMPT, Stopping(2), seed, owner=str(seed)) for seed in range(count)]

    def texts(drafter: Suffix | Copying) -> dict[int, list[int]]:
        decoder = Decoder(TOY, drafter, maximal_coupling, sampling, 2, width=3, slots=1_000)
        return {event.index: event.row.tokens for event in decoder.stream(requests, Trace())}

    for seed, tokens in texts(Copying()).items():
        memory.add(str(seed), PROMPT, tokens)
    again = texts(Suffix(memory=memory, floor=0))
    return counts_of(torch.tensor([again[seed] for seed in range(count)]), 5)


def test_outputs_are_not_searched_where_guesses_decide_the_text() -> None:
    """The same prompt with the same seed: its earlier text was verified with the noise that is to verify it now."""
    assert_same_distribution(asked_again(), exact_distribution(TOY, Sampling(1.0), PROMPT, 2), detects=0.12)


def test_it_would_be_seen_if_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: texts of the same noise bias the distribution."""
    monkeypatch.setattr(Noise, "is_the_targets", property(lambda self: True))
    with pytest.raises(AssertionError, match="not the expected distribution"):
        assert_same_distribution(asked_again(), exact_distribution(TOY, Sampling(1.0), PROMPT, 2), detects=0.12)


def test_nor_with_a_greedy_draft_of_a_sampled_text() -> None:
    """The draft's own temperature says nothing of the coupling."""
    memory = OutputMemory()
    memory.add("me", [7, 1, 2], [6, 6])
    shape, text = Shape(capacity=64, width=3), [4, 7, 1, 2]
    target = MODEL.start(1, shape)
    session = Suffix(memory=memory, floor=0).start(1, shape, target)
    admit_all(session, [Admission(0, text, owner="me")])
    target.admit(0, text)
    seeds, at = torch.arange(1), target.context.positions(3)
    assert session.propose(2, Sampling(), Noise(seeds).child("draft"), at).proposed.sum() == 0
    assert session.propose(2, Sampling(), Silence(seeds), at).tokens[0, 0] == 6


def test_rows_find_what_others_wrote_without_being_changed_by_it() -> None:
    """Greedy: rows that join late guess from rows that ended, and the texts are those of rows without any drafter."""
    memory = OutputMemory()
    requests = [Request((1, 2, 3), Stopping(20), seed, owner="me") for seed in range(6)]

    def run(drafter: Suffix | Copying, gamma: int) -> tuple[list[list[int]], int]:
        trace, rows = Trace(), {}
        decoder = Decoder(MODEL, drafter, maximal_coupling, Sampling(), gamma, width=5, slots=2)
        for event in decoder.stream(requests, trace):
            rows[event.index] = event.row.tokens
            if event.row.finish_reason is not None:
                memory.add("me", event.row.prompt, event.row.tokens)
        return [rows[index] for index in range(6)], trace.runs

    plain, _ = run(Copying(), 0)
    memory = OutputMemory()
    alone, runs_alone = run(Suffix(floor=0), 4)
    memory = OutputMemory()
    texts, runs = run(Suffix(memory=memory, floor=0), 4)
    assert texts == alone == plain
    assert runs < runs_alone, "rows that were asked before are found"
