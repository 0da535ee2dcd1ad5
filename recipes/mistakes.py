"""A mistake on a recipe's command line is one line that names the option, the value and the remedy; no traceback."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from outrider.errors import OutriderError, require


def guarded(main: Callable[[], None]) -> None:
    """Run a recipe. What Outrider refuses, as an unknown model, ends it with exit code 2, as in every command."""
    try:
        main()
    except OutriderError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        sys.exit(2)


def check_least(chosen: argparse.Namespace, **least: int) -> None:
    """Refuse options (their names with underscores) below the least value that means something; None was not given."""
    for name, value in least.items():
        given = getattr(chosen, name)
        rule = f"--{name.replace('_', '-')} must be at least {value}"
        require(given is None or given >= value, f"{rule}, got {given}; choose {value} or more")
