"""The ``outrider`` command, and ``python -m outrider``."""

import sys

from outrider.runtime.streams import open_closed_streams


def main() -> None:
    """Run the command. A Ctrl-C that comes while it is still being imported ends it quietly, too."""
    open_closed_streams()
    try:
        from outrider.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
