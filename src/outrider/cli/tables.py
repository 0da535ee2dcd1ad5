"""Tables that can be read in 80 columns and in a file: no frames, no column cut off."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


def plain_table(columns: Sequence[str], title: str | None = None) -> Table:
    """The first column is text, the others are numbers."""
    table = Table(title=title, title_justify="left", title_style="", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right", no_wrap=True)
    return table


def show_table(console: Console, table: Table) -> None:
    """As wide as it needs to be: a terminal wraps what a narrower table would have replaced by an ellipsis."""
    table.width = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    console.print(table, crop=False, overflow="ignore", no_wrap=True)
