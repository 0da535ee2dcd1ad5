"""The page for everyone: keys alone, screen readers, phones, both themes; and nothing from anywhere else."""

from __future__ import annotations

import re
from typing import Any

import pytest

from page_server import PAGE, StandIn

PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}

CONTRASTS = """() => {
  const parsed = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r / 255) + .7152 * linear(g / 255) + .0722 * linear(b / 255);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = parsed(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || e.matches("input, textarea");
    if (!own || !e.checkVisibility() || e.disabled) continue;
    const style = getComputedStyle(e), colour = e.namespaceURI.endsWith("svg") ? style.fill : style.color;
    const [a, b] = [light(parsed(colour)), light(ground(e))].sort((x, y) => y - x);
    found.push([(a + .05) / (b + .05), e.tagName + "." + e.getAttribute("class") + " " + e.textContent.slice(0, 30)]);
  }
  return found;
}"""


def finished(page: Any) -> None:
    page.get_by_text("the two texts are identical").wait_for()


def test_keys_alone(server: StandIn, opened: Any) -> None:
    """Catches a control that the Tab key misses, an order that jumps, a focus that is lost, and a missing shortcut."""
    page = opened(server.address)
    order = []
    for _ in range(12):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert order == [
        "skip", "tab-generate", "prompt", "kind", "max-tokens", "temperature", "seed", "gamma", "compare",
        "key-summary", "start", order[-1],
    ]  # fmt: skip
    page.locator("#prompt").focus()
    page.keyboard.press("Control+Enter")
    finished(page)
    server.mode = "hold"
    page.locator("#start").focus()
    page.keyboard.press("Enter")
    page.get_by_text("lazy").first.wait_for()
    assert page.evaluate("document.activeElement.id") == "cancel", "the focus was on a button that is disabled now"
    page.keyboard.press("Escape")
    page.get_by_text("Cancelled.").wait_for()
    assert page.evaluate("document.activeElement.id") == "start"
    page.locator("#tab-generate").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_text("by the theory").first.wait_for()
    assert page.evaluate("document.activeElement.id") == "tab-theory"
    page.keyboard.press("Home")
    assert page.locator("#generate").is_visible() and not page.locator("#theory").is_visible()


def test_what_a_screen_reader_says(server: StandIn, opened: Any) -> None:
    """Catches a control without a name, and a region that reads every token out as it comes."""
    page = opened(server.address)
    page.evaluate(
        """() => {
          window.spoken = [];
          for (const live of document.querySelectorAll("[role=status], [role=alert], [aria-live]"))
            new MutationObserver(() => spoken.push(live.textContent)).observe(live, {childList: true, subtree: true});
        }"""
    )
    page.locator("#start").click()
    finished(page)
    spoken = page.evaluate("spoken.filter((text) => text.trim())")
    assert len(spoken) == 4 and any(text.startswith("Finished: 16 tokens in 7 target runs") for text in spoken)
    page.locator("summary").first.click()
    controls = page.locator("#generate").locator("input, select, textarea, button, [tabindex='0']")
    named = "e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim()"
    unnamed = controls.evaluate_all(f"all => all.filter(e => !({named})).map(e => e.id)")
    assert unnamed == []
    line = page.locator("#trace li").nth(1).text_content()
    assert line.startswith("12 accepted: ") and "; rejected:  dog; corrected:  fox" in line
    page.get_by_role("tab", name="Theory", selected=False).click()
    assert page.get_by_role("tabpanel", name="Theory").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(scheme: str, server: StandIn, opened: Any) -> None:
    """WCAG AA: 4.5 for every piece of text, in both themes and on both tabs."""
    page = opened(server.address, color_scheme=scheme)
    grounds = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", grounds))) < 384) == (scheme == "dark")
    page.locator("#start").click()
    finished(page)
    found = page.evaluate(CONTRASTS)
    page.get_by_role("tab", name="Theory").click()
    page.get_by_text("by the theory").first.wait_for()
    found += page.evaluate(CONTRASTS)
    assert len(found) > 80 and [one for one in found if one[0] < 4.5] == []


def test_on_a_phone(server: StandIn, opened: Any) -> None:
    """Catches a page that scrolls sideways, and things to touch that are too small."""
    page = opened(server.address, color_scheme="dark", **PHONE)
    page.locator("#start").tap()
    finished(page)
    sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(sideways) == 0
    ours, plain = page.locator("#speculative-text").bounding_box(), page.locator("#plain-text").bounding_box()
    assert plain["y"] > ours["y"] + ours["height"], "one below the other"
    small = page.locator("button:visible, select:visible, input[type=number]:visible").evaluate_all(
        "all => all.filter(e => e.getBoundingClientRect().height < 40).map(e => e.id)"
    )
    assert small == []
    page.get_by_role("tab", name="Theory").tap()
    page.get_by_text("by the theory").first.wait_for()
    assert page.evaluate(sideways) == 0 and page.locator("#chart svg").bounding_box()["width"] <= 360


def test_nothing_inline_and_nothing_from_elsewhere(server: StandIn, opened: Any) -> None:
    """Catches what a strict policy would block, a policy that blocks nothing, and a file of another server."""
    page = opened(server.address, expects="violates the following Content Security Policy")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate("window.blocked = []; addEventListener('securitypolicyviolation', e => blocked.push(e.blockedURI))")
    page.reload()
    page.evaluate("window.blocked = []; addEventListener('securitypolicyviolation', e => blocked.push(e.blockedURI))")
    page.locator("#start").click()
    finished(page)
    page.get_by_role("tab", name="Theory").click()
    page.get_by_text("by the theory").first.wait_for()
    assert page.evaluate("blocked") == [] and all(url.startswith(server.address) for url in asked)
    inserted = "document.head.append(Object.assign(document.createElement('script'), {textContent: 'window.hit = 1'}))"
    page.evaluate(inserted)
    page.wait_for_function("blocked.includes('inline')")
    assert page.evaluate("window.hit") is None
    for file in PAGE.iterdir():
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|innerHTML|\bstyle=|\son\w+=|<script>|<style", text), file.name
        assert len(text.splitlines()) <= 300, file.name


def test_a_hostile_text_is_text(server: StandIn, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that writes HTML must not become part of the page."""
    steps, texts = [([], 0, "<img src=x onerror=alert(1)>")], ["<img src=x onerror=alert(1)>"]
    monkeypatch.setattr("page_server.STEPS", steps)
    monkeypatch.setattr("page_server.TEXTS", texts)
    page = opened(server.address)
    page.locator("#start").click()
    finished(page)
    assert page.locator("#speculative-text").text_content() == texts[0] and page.locator("main img").count() == 0
