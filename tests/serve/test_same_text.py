"""A request's text is its own: alone, among others of any options, with speculation and without."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from outrider.llm import LLM
from serving import Served

BODIES: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "speculation": {"gamma": 4}},
    {"temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.7},
    {"temperature": 0.8},
    {"temperature": 0.8, "speculation": {"enabled": False}},
    {"temperature": 1.0, "top_p": 0.8, "speculation": {"gamma": 3}},
    {"temperature": 1.2, "top_k": 5, "speculation": {"gamma": 2}},
    {"temperature": 1.0, "min_p": 0.1, "presence_penalty": 1.5},
    {"temperature": 1.0, "logit_bias": {"70": 5, "71": -100}, "speculation": {"gamma": 4}},
    {"temperature": 0.5, "stop": ["e", "z"]},
    {"temperature": 1.0, "prediction": {"content": "the cat sat on the mat"}},
    {"temperature": 0, "prediction": {"content": "dovdddqirxov"}},
    {"temperature": 1.0, "ignore_eos": True, "speculation": {"gamma": 4}},
    {"temperature": 0.8, "logprobs": 3, "speculation": {"gamma": 4}},
    {"temperature": 0.9, "speculation": {"draft": "none"}},
    {"temperature": 1.7, "speculation": {"gamma": 1}},
]


def asked(number: int) -> dict[str, Any]:
    return {"prompt": f"the cat {number}", "seed": number, "max_tokens": 16, **BODIES[number]}


def test_sixteen_requests_together_have_the_text_of_each_alone(served: Served) -> None:
    """Requests of different options share target runs; a server's text must not depend on who else asks."""
    alone = [served.text(**asked(number)) for number in range(len(BODIES))]
    with ThreadPoolExecutor(len(BODIES)) as pool:
        together = list(pool.map(lambda number: served.text(**asked(number)), range(len(BODIES))))
    assert together == alone
    assert served.idle()


def test_the_text_is_that_of_generate(served: Served, llm: LLM) -> None:
    """The same options in Python give the text of the server, and speculation leaves it as it is."""
    for number in (2, 3, 5, 7):
        body = asked(number)
        options = {name: body[name] for name in body if name not in ("prompt", "max_tokens", "speculation")}
        output = llm.generate(body["prompt"], max_new_tokens=16, coupling="gumbel", gamma=0, **options)
        assert served.text(**body) == output.text
        assert served.text(**{**body, "speculation": {"enabled": False}}) == output.text


def test_choices_differ_and_the_first_is_that_of_one(served: Served) -> None:
    _, answer, _ = served.send("/v1/completions", {**asked(3), "n": 3})
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts[0] == served.text(**asked(3)) and len(set(texts)) == 3
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] <= 48 and answer["usage"]["prompt_tokens"] == len("the cat 3") - 2


def test_rows_of_other_couplings_share_a_batch(served: Served) -> None:
    """Requests without a seed may ask for the papers' rule; those beside them keep their text."""
    alone = [served.text(**asked(number)) for number in (0, 3, 5)]

    def other(coupling: str) -> str:
        return served.text("a dog", max_tokens=20, speculation={"coupling": coupling, "gamma": 4}, ignore_eos=True)

    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(other, coupling) for coupling in ("maximal", "block", "maximal", "block")]
        texts = list(pool.map(lambda number: served.text(**asked(number)), (0, 3, 5)))
    assert texts == alone and all(other.result() for other in others)


def test_a_prediction_takes_fewer_runs_and_leaves_the_text(served: Served) -> None:
    """Predicted outputs: the expected text becomes the draft, also behind a place where the answer differs from it."""
    body = {"prompt": "the cat", "temperature": 0, "max_tokens": 60, "ignore_eos": True}
    text = served.text(**body)
    changed = text[:20] + "QQQ" + text[23:]
    for prediction in (text, changed):
        _, plain, _ = served.send("/v1/completions", {**body, "speculation": {"enabled": False}})
        _, answer, _ = served.send("/v1/completions", {**body, "prediction": {"content": prediction}})
        assert answer["choices"][0]["text"] == plain["choices"][0]["text"] == text
        runs = [each["metrics"]["speculative_decoding"]["num_steps"] for each in (plain, answer)]
        assert runs[0] == 60 and runs[1] * 3 <= runs[0]
