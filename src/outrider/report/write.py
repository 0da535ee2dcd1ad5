"""From result files to a page and pictures on disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import BadOption, OutriderError, require
from outrider.report import chart_plots, html, svg
from outrider.report.charts import Chapter, Chart
from outrider.report.result_file import ResultFile


@dataclass(frozen=True)
class FileReport:
    """A result file with what is shown of it, and the names of its pictures."""

    file: ResultFile
    chapter: Chapter
    pictures: tuple[tuple[str, Chart], ...]


def reports(files: Sequence[ResultFile]) -> list[FileReport]:
    """Everything is worked out, so that a bad file is found before anything is written."""
    found, taken = [], set[str]()
    for file in files:
        chapter = _chapter(file)
        stem = _free(_slug(file.path.stem), taken)
        names = set[str]()
        pictures = tuple((_free(f"{stem}-{_slug(chart.name)}", names), chart) for chart in chapter.charts)
        found.append(FileReport(file, chapter, pictures))
    return found


def _chapter(file: ResultFile) -> Chapter:
    """What is shown of a file, drawn once: values that no program of ours writes are found in one place."""
    try:
        chapter = file.chapter()
        html.page([(file.path, file.kind.name, chapter)], "", "")
    except OutriderError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise BadOption(
            f"{file.path}: a value in it is not as Outrider writes it ({what[:100]}); write the file again"
        ) from error
    return chapter


def write_page(found: Sequence[FileReport], out: Path, title: str | None, version: str) -> None:
    """Whole or not at all."""
    chosen = title or "Outrider report"
    text = html.page([(each.file.path, each.file.kind.name, each.chapter) for each in found], chosen, version)
    part = out.with_name(f".{out.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(out)


def check_directory(directory: Path) -> None:
    """Refuse what no directory can be made of, before anything is written."""
    place = next(path for path in (directory.resolve(), *directory.resolve().parents) if path.exists())
    require(place.is_dir(), f"--figures {directory}: {place} is a file; name a directory for the pictures")


def write_pictures(found: Sequence[FileReport], directory: Path) -> list[Path]:
    """An SVG and a PNG file for every chart."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, chart in (picture for each in found for picture in each.pictures):
        path = directory / f"{name}.svg"
        path.write_text(svg.standalone(chart), encoding="utf-8")
        chart_plots.save_png(chart, directory / f"{name}.png")
        written += [path, directory / f"{name}.png"]
    return written


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "result"


def _free(name: str, taken: set[str]) -> str:
    """The name, with a number behind it if it is taken."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    taken.add(free)
    return free
