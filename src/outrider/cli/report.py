"""``outrider report``: one page, and pictures, from whatever result files there are. No model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from outrider import __version__
from outrider.cli import common
from outrider.cli.common import answers, notes
from outrider.errors import require
from outrider.report import plots
from outrider.report.kinds import KINDS
from outrider.report.values import counted


def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULTS...",
            help=f"Files written by outrider {', '.join(command for kind in KINDS for command in kind.written_by)}.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page: one HTML file that needs nothing else.")] = Path(
        "report.html"
    ),
    figures: Annotated[
        Path | None,
        typer.Option(help="Also write every chart as an SVG and a PNG file into this directory (needs matplotlib)."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
    as_json: common.Json = False,
) -> None:
    """Draw results: one HTML page with charts, tables and the coloured trace, and what each file does not hold.

    The kind of each file is found out from what it holds. Light and dark, a phone's width and paper are provided for.
    """
    from outrider.report.result_file import read_results
    from outrider.report.write import check_directory, reports, write_page, write_pictures

    common.check_writable(out, "--out")
    inputs = {path.resolve() for path in results}
    require(out.resolve() not in inputs, f"--out {out}: this is one of the result files; name another file")
    common.check_apart(out=out, figures=figures)
    if figures is not None:
        check_directory(figures)
        plots.check_available()
    files = read_results(results)
    found = reports(files)
    write_page(found, out, title, __version__)
    written = [out]
    if figures is not None:
        with notes.status("drawing"):
            written += write_pictures(found, figures)
    if as_json:
        whole = {
            "results": [
                {
                    "file": str(each.file.path),
                    "kind": each.file.kind.name,
                    "title": each.chapter.title,
                    "sections": [section.title for section in each.chapter.sections],
                    "charts": [chart.title for chart in each.chapter.charts],
                    "missing": list(each.chapter.missing),
                    "failures": each.chapter.failures,
                }
                for each in found
            ],
            "written": [str(path) for path in written],
        }
        answers.out(json.dumps(whole), highlight=False)
        return
    for each in found:
        failures = f"; {each.chapter.failures}" if each.chapter.failures else ""
        charts = counted(len(each.chapter.charts), "chart")
        answers.print(f"{each.file.path}: {each.file.kind.name}, {charts}{failures}", markup=False)
    more = f", and {counted(len(written) - 1, 'picture')} in {figures}" if figures is not None else ""
    answers.print(f"wrote {out}{more}", markup=False)
