"""The ``outrider`` command, and ``python -m outrider``."""

import os
import sys


def main() -> None:
    """Run the command. A Ctrl-C that comes while it is still being imported ends it quietly, too."""
    # Python has no stream where the caller closed it (`>&-`); what is printed there goes nowhere.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  open to the end of the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    try:
        from outrider.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
