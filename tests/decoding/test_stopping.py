"""When a row ends: at a token, a string, a rule or a length, also in the middle of an accepted draft."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
import torch

from helpers import run
from outrider.core.protocols import Drafter
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import ModelDrafter, Nothing
from outrider.errors import BadOption, CriterionError
from outrider.models.toy import ToyModel
from outrider.trace import Trace, summarise

TARGET = ToyModel(26, order=2, seed=4, sharpness=3.0)
SELF = ModelDrafter(TARGET)  # everything is accepted, so every end falls inside a draft
PROMPT = (3, 1)


def letters(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + t) for t in tokens)


def generate(stopping: Stopping, drafter: Drafter = SELF, gamma: int = 5) -> tuple[list[int], Trace]:
    texts, trace = run(TARGET, drafter, [Request(PROMPT, stopping, seed=9)], gamma, Sampling(1.0))
    return texts[0], trace


PLAIN, _ = generate(Stopping(30), Nothing(), 0)


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 12, 13])
def test_length(length: int) -> None:
    """Catches tokens beyond the limit when a draft runs across it."""
    texts, trace = generate(Stopping(length))
    assert texts == PLAIN[:length]
    assert summarise(trace).tokens == length


@pytest.mark.parametrize("place", range(2, 14, 3))
def test_eos_inside_a_draft(place: int) -> None:
    """Catches an end-of-sequence token that was accepted and then run over."""
    eos = PLAIN[place]
    first = PLAIN.index(eos)
    for drafter, gamma in ((SELF, 5), (Nothing(), 0)):
        texts, _ = generate(Stopping(30, eos=frozenset([eos])), drafter, gamma)
        assert texts == PLAIN[: first + 1]


@pytest.mark.parametrize("gamma", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_stop_string_across_draft_boundaries(gamma: int, size: int) -> None:
    """Catches a stop string that begins in one run and ends in the next: the text is searched, not the tokens."""
    text = letters(PLAIN)
    for start in range(2, 12):
        stop = text[start : start + size]
        rules = Stopping(30, stop=(stop, "ZZ"), decode=letters)
        decoder = Decoder(TARGET, SELF, gumbel_coupling, Sampling(1.0), gamma)
        *_, last = decoder.stream([Request(PROMPT, rules, seed=9)], Trace())
        place = text.index(stop)
        assert last.row.finish_reason == "stop"
        assert last.row.text(letters) == text[:place]
        assert last.row.tokens == PLAIN[: place + size]


def test_the_earliest_of_several_stop_strings_cuts() -> None:
    """Catches a cut at the first string listed instead of the first one in the text."""
    text = letters(PLAIN)
    rules = Stopping(30, stop=(text[6:8], text[5:8]), decode=letters)
    row = rules.start(PROMPT)
    row.push(PLAIN)
    assert row.text(letters) == text[:5]


def test_what_is_printed_is_never_taken_back() -> None:
    """Catches a stream that shows the beginning of a stop string, or half a character."""
    text = letters(PLAIN)
    rules = Stopping(30, stop=(text[7:11],), decode=letters)
    row, shown = rules.start(PROMPT), ""
    for token in PLAIN:
        row.push([token])
        printable = row.printable(letters)
        assert printable.startswith(shown)
        assert text[: text.index(text[7:11])].startswith(printable)
        shown = printable
        if row.finish_reason:
            break
    assert shown == text[: text.index(text[7:11])]
    half = Stopping(30).start(PROMPT)
    half.push([1])
    assert half.printable(lambda tokens: "caf\ufffd") == "caf"


def test_criteria_see_prompt_and_text_token_by_token() -> None:
    """Catches transformers criteria asked once per run instead of once per token, or without the prompt."""
    seen: list[int] = []

    def until_ten(ids: torch.Tensor, scores: object) -> torch.Tensor:
        assert ids[0, : len(PROMPT)].tolist() == list(PROMPT)
        seen.append(ids.shape[1])
        return torch.tensor([ids.shape[1] >= 10])

    texts, _ = generate(Stopping(30, criteria=(until_ten,)))
    assert texts == PLAIN[: 10 - len(PROMPT)]
    assert seen == list(range(3, 11))


@pytest.mark.parametrize(
    ("found", "shown"), [(None, "None"), ("x", "'x'"), (5, "5"), (torch.tensor([True, False]), r"torch.bool \[2\]")]
)
def test_criteria_that_do_not_say_whether_to_end(found: object, shown: str) -> None:
    """A forgotten ``return`` was an error of torch's, and an answer for two rows was never an end."""

    def undecided(ids: torch.Tensor, scores: object) -> object:
        return found

    with pytest.raises(BadOption, match=f"stopping_criteria undecided returned {shown}; it must return"):
        generate(Stopping(30, criteria=(undecided,)))


def test_a_criterion_that_fails_is_named_and_ends_its_own_text_only() -> None:
    """A KeyError from inside a criterion was all that was left of a call: no name, no text, and no other row."""

    def impatient(ids: torch.Tensor, scores: object) -> bool:
        if ids.shape[1] == 8:
            raise KeyError("mine")
        return False

    says = r"stopping_criteria impatient failed on input_ids \[1, 8\] and scores None: KeyError: 'mine'; it must take"
    decoder = Decoder(TARGET, SELF, gumbel_coupling, Sampling(1.0), 5)
    bad, good = (Request(PROMPT, rules, seed=9) for rules in (Stopping(30, criteria=(impatient,)), Stopping(30)))
    rows = {event.index: event.row for event in decoder.stream([bad, good], Trace())}
    assert rows[0].finish_reason == "error" and re.search(says, str(rows[0].error))
    assert rows[0].tokens == PLAIN[: 8 - len(PROMPT)] and rows[1].tokens == PLAIN
    events = decoder.stream([bad], Trace())
    heard: list[int] = []
    with pytest.raises(CriterionError, match=says):
        for event in events:
            heard += event.tokens
    assert heard == PLAIN[: 8 - len(PROMPT)], "who reads a stream has the text so far"


def test_reasons() -> None:
    """Catches a reason that is not the one that ended the row."""

    def reason(rules: Stopping) -> str | None:
        row = rules.start(PROMPT)
        row.push(PLAIN)
        return row.finish_reason

    assert reason(Stopping(5)) == "length"
    assert reason(Stopping(30, eos=frozenset([PLAIN[3]]))) == "eos"
    assert reason(Stopping(30, stop=(letters(PLAIN[3:5]),), decode=letters)) == "stop"
    assert reason(Stopping(30, criteria=(lambda ids, _: True,))) == "criteria"
    assert reason(Stopping(31)) is None
