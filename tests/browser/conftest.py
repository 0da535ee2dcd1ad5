"""A real Chromium for the tests of the page, and a check that no page complains."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from expected_skips import CHROMIUM
from page_server import StandIn, stand_in

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One browser for all tests."""
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip(f"no Chromium here: none of {', '.join(CHROMIUM)} is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def server() -> Iterator[StandIn]:
    with stand_in() as running:
        yield running


@pytest.fixture
def opened(chromium: Any) -> Iterator[Open]:
    """Opens an address in a new window. At the end nothing may have been said on its console, nor been blocked."""
    contexts, said = [], []

    def opening(address: str, expects: str = "", **settings: Any) -> Any:
        """``expects``: what the console may say, such as the status of a request that is meant to fail."""
        context = chromium.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)

        def heard(text: str) -> None:
            if not expects or expects not in text:
                said.append(text)

        page.on("console", lambda message: heard(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: heard(str(error)))
        page.goto(address)
        return page

    yield opening
    for context in contexts:
        context.close()
    assert said == []
