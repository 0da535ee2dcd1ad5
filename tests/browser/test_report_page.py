"""The report in a real browser: charts at any width, both themes, on paper, and nothing from anywhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_page_access import CONTRASTS, PHONE
from typer.testing import CliRunner

import result_files
from outrider.cli.main import app

DESKTOP = {"viewport": {"width": 1280, "height": 900}}
SIZES = {"desktop": DESKTOP, "phone": PHONE}

OVERLAPS = """() => {
  const found = [];
  for (const svg of document.querySelectorAll("svg.chart")) {
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].filter((t) => t.textContent.trim());
    for (const t of texts) {
      const box = t.getBoundingClientRect();
      if (box.left < frame.left - 2 || box.right > frame.right + 2 || box.bottom > frame.bottom + 2)
        found.push(["outside", t.textContent, svg.querySelector("title").textContent]);
    }
    const names = texts.filter((t) => /^(tick|name|axis-name)$/.test(t.getAttribute("class")));
    for (let i = 0; i < names.length; i++) for (let j = i + 1; j < names.length; j++) {
      const [a, b] = [names[i].getBoundingClientRect(), names[j].getBoundingClientRect()];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 4) found.push(["over another", names[i].textContent, names[j].textContent]);
    }
  }
  return found;
}"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of every kind of result."""
    folder = tmp_path_factory.mktemp("report")
    out = folder / "report.html"
    paths = result_files.write_all(folder / "results")
    result = CliRunner().invoke(app, ["report", *map(str, paths.values()), "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_charts_can_be_read(size: str, theme: str, report: Path, opened: Any) -> None:
    """Catches a page that is wider than the window, texts that leave a chart or lie on each other, and faint ones."""
    page = opened(report.as_uri(), color_scheme=theme, **SIZES[size])
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    charts = page.locator("figure svg.chart")
    assert charts.count() > 30
    heights = charts.evaluate_all("all => all.map((e) => e.getBoundingClientRect().height)")
    assert min(heights) > 90, "a chart has no height"
    assert page.evaluate(OVERLAPS) == []
    assert [what for contrast, what in page.evaluate(CONTRASTS) if contrast < 4.5] == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 26)"
    assert dark == (theme == "dark")


def test_everything_is_on_the_page(report: Path, opened: Any) -> None:
    """Catches charts without a name or a table beside them, and a page that asks for anything."""
    asked = []
    page = opened("about:blank", **DESKTOP)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    assert asked == [report.as_uri()]
    for figure in page.locator("figure").all():
        assert figure.locator("table tbody tr").count() > 0
        name = figure.locator("svg").get_attribute("aria-labelledby").split()
        assert [figure.locator(f"[id='{part}']").count() for part in name] == [1, 1]
    assert page.locator(".runs li").count() == 24 + 1  # of the trace, and of the papers' Figure 1
    assert page.locator(".runs .rejected").count() > 0 and page.locator(".runs .bonus").count() > 0
    page.get_by_role("link", name="Trace of 24 target runs").click()
    assert page.evaluate("location.hash") == "#file-11"


def test_on_paper(report: Path, opened: Any) -> None:
    """Catches dark colours on paper, and charts cut off at its edge."""
    page = opened(report.as_uri(), color_scheme="dark", viewport={"width": 720, "height": 1000})
    page.emulate_media(media="print", color_scheme="dark")
    colour = page.evaluate("getComputedStyle(document.querySelector('h2')).color")
    assert colour == "rgb(28, 30, 33)", "white on white"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.pdf(format="A4")[:5] == b"%PDF-"
