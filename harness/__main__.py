"""Start the command line: ``python -m harness``, and the script ``harness``."""

from __future__ import annotations

import sys

from harness.support import signals


def main() -> None:
    """Run a command, and exit with its code."""
    try:
        with signals.interrupting():
            from harness.cli import main as command

            command()
    except KeyboardInterrupt:  # while modules were being imported; later the command line tells of it
        sys.exit(signals.exit_code())


if __name__ == "__main__":
    main()
