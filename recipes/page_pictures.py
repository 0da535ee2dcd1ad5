"""Pictures of the server's page for docs/page.md: a real server, a real model, a real browser.

python recipes/page_pictures.py smollm2-135m --out docs/assets

It starts ``outrider serve`` on a free port, types a prompt into the page, waits until both runs have ended and takes a
picture of the page in light colours, and of its width on a phone in dark ones. Needs Chromium and the package
playwright. Speeds in the pictures are those of this machine, with the browser beside the server.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

PROMPT = "Write a Python function that counts the words in a text, and explain it line by line."
PICTURES = {
    "page-light": {"viewport": {"width": 1000, "height": 1500}, "color_scheme": "light"},
    "page-phone": {"viewport": {"width": 540, "height": 1110}, "color_scheme": "dark"},
}
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def served(target: str) -> Iterator[str]:
    """The address of a server that answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "outrider", "serve", target, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(address, server)
            yield address
        finally:
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()


def _wait(address: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 600
    while time.monotonic() < until:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode} before it answered")
        with suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.5)
    raise SystemExit("the server did not answer within ten minutes")


def picture(browser: Browser, address: str, name: str, tokens: int, out: Path) -> None:
    context = browser.new_context(**PICTURES[name])  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(300_000)
    page.goto(address)
    page.get_by_label("Max tokens").fill(str(tokens))
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Prompt", exact=True).fill(PROMPT)
    page.get_by_role("button", name="Generate").click()
    verdict = page.get_by_text("the two texts are identical, token by token.")
    verdict.wait_for()
    if name == "page-phone":  # where the form fills the first screen
        verdict.evaluate("found => found.scrollIntoView()")
    page.screenshot(path=out / f"{name}.png")
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("target", help="a model directory, hub id or short name, as for `outrider serve`")
    parser.add_argument("--out", type=Path, default=Path("docs/assets"), help="where the pictures go")
    parser.add_argument("--tokens", type=int, default=96)
    asked = parser.parse_args()
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise SystemExit(f"no Chromium here: none of {', '.join(PROGRAMS)} is installed")
    asked.out.mkdir(parents=True, exist_ok=True)
    with served(asked.target) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for name in PICTURES:
            picture(browser, address, name, asked.tokens, asked.out)
            sys.stdout.write(f"{asked.out / name}.png\n")
        browser.close()


if __name__ == "__main__":
    main()
