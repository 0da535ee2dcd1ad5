"""Predicted outputs: guesses from a text that the caller expects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers import case, wrapped
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.decoding.loop import Decoder, Event, Request
from outrider.drafters import Copying, ModelDrafter, Nothing
from outrider.drafters.predicted import Predicted
from outrider.trace import Trace

CAPACITY = 120


def served(other: object, requests: list[Request], gamma: int = 4) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Texts and target runs of requests that run together."""
    decoder = Decoder(wrapped("llama"), Predicted(other), gumbel_coupling, Sampling(), gamma, slots=len(requests))  # type: ignore[arg-type]
    queue = decoder.queue(CAPACITY)
    for request in requests:
        queue.submit(request)
    queue.close()
    events: list[Event] = list(decoder.serve(queue, Trace(), CAPACITY, slots=len(requests)))
    texts = {event.index: list(event.row.tokens) for event in events}
    return texts, {index: sum(event.index == index for event in events) for index in texts}


def long(request: Request) -> Request:
    return replace(request, stopping=replace(request.stopping, max_new_tokens=40, eos=frozenset(), stop=()))


@pytest.mark.parametrize("other", [Nothing(), Copying(), ModelDrafter(wrapped("llama"))], ids=["none", "copy", "model"])
def test_a_prediction_is_followed_left_and_taken_up_again(other: object) -> None:
    """Rows with a right, a partly right and a wrong prediction beside one without: each keeps its text."""
    request = long(case("llama").requests[0])
    plain, runs = served(Nothing(), [request], 0)
    text = plain[0]
    assert runs[0] == 40
    wrong = [(token + 1) % 50 for token in text]
    edited = [*text[:12], 1, 2, 3, *text[15:]]  # three tokens differ
    shorter = [*text[:10], *text[16:]]  # six are missing
    predictions = [tuple(text), tuple(edited), tuple(shorter), tuple(wrong), ()]
    texts, runs = served(other, [replace(request, prediction=one) for one in predictions])
    assert all(texts[index] == text for index in texts)
    assert runs[0] == 8  # five tokens a run
    if isinstance(other, Nothing):
        assert runs[1] <= 16 and runs[2] <= 20 and runs[4] == 40


def test_tokens_outside_the_vocabulary_are_no_guesses() -> None:
    request = long(case("llama").requests[0])
    text = served(Nothing(), [request], 0)[0][0]
    texts, _ = served(Nothing(), [replace(request, prediction=(10**6, *text))])
    assert texts[0] == text
