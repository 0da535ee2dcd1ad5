"""The page in a real Chromium: typing, streaming, comparing, cancelling, errors, and the theory's curves."""

from __future__ import annotations

from typing import Any

import pytest

from page_server import TEXTS, StandIn

TEXT = "".join(TEXTS)


def origins(page: Any, box: str) -> list[tuple[str, str]]:
    spans = page.locator(f"#{box} .token")
    return [
        tuple(pair) for pair in spans.evaluate_all("all => all.map(s => [s.className.split(' ')[1], s.textContent])")
    ]


def generate(page: Any, prompt: str = "a prompt") -> None:
    page.get_by_label("Prompt", exact=True).fill(prompt)
    page.get_by_role("button", name="Generate").click()


def test_two_runs_are_compared(server: StandIn, opened: Any) -> None:
    """Catches tokens in the wrong colour, and a comparison of anything but the same prompt with speculation off."""
    page = opened(server.address)
    page.get_by_text("a-model, drafted for by a-draft · numba, float32 · 1 of 4 slots in use").wait_for()
    page.get_by_label("Temperature").fill("0.7")
    page.get_by_label("Seed").fill("5")
    generate(page, "say it\nin two lines")
    page.get_by_text("the two texts are identical, token by token.").wait_for()
    ours, plain = server.bodies
    assert ours["messages"] == [{"role": "user", "content": "say it\nin two lines"}]
    assert ours["speculation"] == {"enabled": True, "trace": True} and ours["seed"] == 5 and ours["stream"] is True
    assert plain == {**ours, "speculation": {"enabled": False, "trace": True}} and ours["temperature"] == 0.7
    assert page.locator("#speculative-text").text_content() == page.locator("#plain-text").text_content() == TEXT
    seen = origins(page, "speculative-text")
    assert seen[:4] == [("plain", "The"), ("accepted", " quick"), ("accepted", " brown"), ("corrected", " fox")]
    assert ("bonus", " the") in seen and ("plain", "é") in seen
    assert {origin for origin, _ in origins(page, "plain-text")} == {"plain"}
    assert page.locator("#tile-acceptance").text_content() == "82 %"  # 9 kept of 11 that were judged
    assert page.locator("#tile-per-run").text_content() == "2.29"
    assert page.locator("#status").text_content().startswith("Finished: 16 tokens in 7 target runs, 82 %")


def test_the_trace_is_figure_1(server: StandIn, opened: Any) -> None:
    """One line per target run: guesses kept, the rejected one struck out, the correction; what gamma was, and why."""
    page = opened(server.address)
    page.get_by_label("Then run the same prompt plainly").uncheck()
    generate(page)
    page.get_by_text("Finished: ").wait_for()
    assert len(server.bodies) == 1 and not page.locator("#plain-panel").is_visible()
    lines = page.locator("#trace li")
    assert lines.count() == 7
    marks = lines.nth(3).locator(".token").evaluate_all("all => all.map(s => [s.tagName, s.className, s.textContent])")
    assert marks == [
        ["SPAN", "token accepted", " lazy"], ["DEL", "token rejected", " cat"], ["DEL", "token unread", "⏎"],
        ["DEL", "token unread", "!"], ["INS", "token corrected", " dog"],
    ]  # fmt: skip
    assert lines.nth(3).locator(".cost").text_content() == "γ 4 20 ms"
    assert lines.nth(0).locator(".cost").text_content() == "γ 2 (0 made) 20 ms"
    assert "the fourth would cost more" in page.locator("#tile-why").text_content()
    assert page.locator("#tile-gamma").text_content() == "2"
    decoration = "s => getComputedStyle(s).textDecorationLine + getComputedStyle(s).textDecorationStyle"
    kinds = [
        lines.nth(3).locator(f".{kind}").first.evaluate(decoration) for kind in ("accepted", "rejected", "corrected")
    ]
    assert len(set(kinds)) == 3, "colour must not be the only sign"


def test_tokens_arrive_one_by_one_and_cancel_stops(server: StandIn, opened: Any) -> None:
    """Catches a page that waits for the whole answer, and a Cancel that leaves the server working."""
    server.mode = "hold"
    page = opened(server.address)
    generate(page)
    page.get_by_text("lazy").first.wait_for()
    assert page.locator("#speculative-text").text_content() == "".join(TEXTS[:4])
    assert page.get_by_role("button", name="Generate").is_disabled()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("Cancelled. What had come is kept").wait_for()
    assert server.gone.wait(10), "the request was not closed"
    assert page.locator("#speculative-text").text_content() == "".join(TEXTS[:4]) and len(server.bodies) == 1
    server.mode = "answer"
    generate(page)
    page.get_by_text("the two texts are identical").wait_for()


@pytest.mark.parametrize(
    ("mode", "says", "retry"),
    [
        ("full", "all slots and the queue are taken (429). Try again in 7 s.", True),
        ("refuse", "The server refused this request (400): the reason for 400", False),
        ("break", "The server ended the answer before it was complete.", True),
        ("fail", "The server failed while it answered: the logits are not numbers", True),
        ("noise", "The server sent a line that is not JSON.", True),
    ],
)
def test_errors_are_told(mode: str, says: str, retry: bool, server: StandIn, opened: Any) -> None:
    """Catches a page that stays busy, or says nothing, after an error; trying again must work."""
    server.mode = mode
    page = opened(server.address, expects="Failed to load resource")
    generate(page)
    assert page.get_by_role("alert").filter(has_text=says).text_content()
    assert page.get_by_role("button", name="Generate").is_enabled()
    button = page.get_by_role("button", name="Try again")
    assert button.is_visible() == retry
    server.mode = "answer"
    (button if retry else page.get_by_role("button", name="Generate")).click()
    page.get_by_text("the two texts are identical").wait_for()
    assert not page.get_by_role("alert").is_visible()


def test_a_server_that_is_down(server: StandIn, opened: Any) -> None:
    page = opened(server.address, expects="Failed to load resource")
    page.get_by_text("a-model").wait_for()
    server.close()
    generate(page)
    assert page.get_by_role("alert").filter(has_text="The server cannot be reached.").text_content()
    page.locator("#server").get_by_text("The server cannot be reached.").wait_for()
    page.get_by_role("tab", name="Theory").click()
    page.locator("#here").get_by_text("The server cannot be reached.").wait_for()


def test_an_api_key_is_asked_for(server: StandIn, opened: Any) -> None:
    server.mode = "key"
    page = opened(server.address, expects="Failed to load resource")
    generate(page)
    assert page.get_by_role("alert").filter(has_text="asks for an API key").text_content()
    assert page.evaluate("document.activeElement.id") == "key"
    page.keyboard.type("let-me-in")
    page.keyboard.press("Enter")
    page.get_by_text("the two texts are identical").wait_for()
    assert page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})") == "{}", "a key is kept nowhere"


def test_a_text_to_continue(server: StandIn, opened: Any) -> None:
    page = opened(server.address)
    page.get_by_label("Prompt is").select_option("a text to continue")
    page.get_by_label("Gamma").select_option("3")
    generate(page, "Once")
    page.get_by_text("the two texts are identical").wait_for()
    assert [body["speculation"].get("gamma") for body in server.bodies] == [3, None]
    assert server.bodies[0]["prompt"] == "Once" and page.locator("#speculative-text").text_content() == TEXT


def test_tokens_and_text_are_aligned(server: StandIn, opened: Any) -> None:
    """Text comes behind its tokens: characters of several tokens, spaces that a token alone loses, tokens not shown."""
    page = opened(server.address)
    split = """async (chunks) => {
      const { Aligner } = await import("/run.js");
      const aligner = new Aligner();
      return chunks.map(([text, ...tokens]) => aligner.split(text, tokens.map(([text, origin]) => ({ text, origin }))))
        .map((parts) => parts.map(({ text, origin }) => [origin, text]));
    }"""
    waits = [["", ["\ufffd", "a"]], ["é", ["\ufffd", "b"]], ["é!", ["\ufffd", "a"], ["\ufffd", "c"], ["!", "b"]]]
    assert page.evaluate(split, waits) == [[], [["b", "é"]], [["c", "é"], ["b", "!"]]]
    lost = [["The cat", ["The", "a"], ["cat", "b"]], [" sat", ["sat", "c"]]]
    assert page.evaluate(split, lost) == [[["a", "The"], ["b", " cat"]], [["c", " sat"]]]
    special = [["<b>", ["<s>", "a"], ["<b>", "b"], ["</s>", "c"]], ["", ["x", "a"]], ["yz"]]
    assert page.evaluate(split, special) == [[["b", "<b>"]], [], [["a", "yz"]]]


def test_the_theory(server: StandIn, opened: Any) -> None:
    """Catches curves that are not the numbers given, and a server that stands nowhere on them."""
    page = opened(server.address)
    page.get_by_role("tab", name="Theory").click()
    page.get_by_text("2.20 times as fast as plain decoding, by the theory").first.wait_for()
    assert not page.locator("#generate").is_visible()
    assert page.locator("#chart .curve").count() == 5 and page.locator("#chart .here").count() == 1
    points = page.locator("#chart .curve").last.get_attribute("points").split()
    heights = [float(point.split(",")[1]) for point in points]
    assert len(points) == 9 and heights == sorted(set(heights), reverse=True), (
        "at alpha 0.9 more guesses are faster here"
    )
    assert page.get_by_role("img").get_attribute("aria-labelledby") == "chart-title"
    page.get_by_text("The curves as a table").click()
    assert page.get_by_role("row").nth(2).get_by_role("cell").first.text_content() == "1.43"  # 1.5 / 1.05
