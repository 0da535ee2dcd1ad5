"""The page on the real server with a tiny model: the contract between the two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import outrider
from library import save_llama
from serving import Served, serving

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{{ 'assistant: ' }}"
SERVED_KEY = "not-a-secret"


@pytest.fixture(scope="module")
def served(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A target with a model that drafts for it: some guesses are kept and some are not."""
    models = tmp_path_factory.mktemp("page")
    target, draft = save_llama(models / "target", chat_template=TEMPLATE), save_llama(models / "draft", seed=1)
    with serving(outrider.load(str(target), str(draft), "cpu", "float32"), keys=(SERVED_KEY,)) as server:
        yield server


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_the_real_server(temperature: str, served: Served, opened: Any) -> None:
    """Catches a field that one side sends and the other does not know, and texts that differ with speculation on."""
    page = opened(served.address, expects="Failed to load resource")
    page.get_by_label("Key, if the server").fill(SERVED_KEY)
    page.get_by_label("Max tokens").fill("40")
    page.get_by_label("Temperature").fill(temperature)
    page.get_by_label("Gamma").select_option("4")  # the planner would ask the clock
    page.get_by_label("Prompt", exact=True).fill("the fox and the hen")
    page.get_by_role("button", name="Generate").click()
    page.get_by_text("the two texts are identical, token by token.").wait_for()
    page.get_by_text("tiny, drafted for by").wait_for()
    asked = {"messages": [{"role": "user", "content": "the fox and the hen"}], "max_tokens": 40, "seed": 0}
    asked |= {"temperature": float(temperature)}
    status, answer, _ = served.send("/v1/chat/completions", asked, {"Authorization": f"Bearer {SERVED_KEY}"})
    assert status == 200, answer
    shown = page.locator("#speculative-text").text_content()
    assert shown == page.locator("#plain-text").text_content() == answer["choices"][0]["message"]["content"]
    steps = page.locator("#trace li")
    assert steps.count() > 1 and page.locator("#trace .accepted, #trace .corrected").count() > 0
    assert page.locator("#tile-why").text_content() and served.idle()
    page.get_by_role("tab", name="Theory").click()
    page.get_by_text("times as fast as plain decoding, by the theory").first.wait_for()


def test_the_real_refusals(served: Served, opened: Any) -> None:
    """Catches reasons that the server gives and the page does not show."""
    page = opened(served.address, expects="Failed to load resource")
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("alert").filter(has_text="asks for an API key").wait_for()
    page.get_by_label("Key, if the server").fill(SERVED_KEY)
    page.get_by_label("Max tokens").fill("100000")
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("alert").filter(has_text="The server refused this request (400)").wait_for()
    assert "max_tokens" in page.get_by_role("alert").text_content()


def test_cancel_frees_the_slot(served: Served, opened: Any) -> None:
    """Catches a server that goes on writing for a page that was closed."""
    page = opened(served.address, expects="Failed to load resource")
    page.get_by_label("Key, if the server").fill(SERVED_KEY)
    page.get_by_label("Max tokens").fill("100")
    page.get_by_role("button", name="Generate").click()
    page.close()
    assert served.idle()
