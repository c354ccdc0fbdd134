"""Start the command line: ``python -m harness``, and the script ``harness``."""

from __future__ import annotations

import atexit
import os
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
    except Exception:
        if not signals.received():
            raise
        sys.exit(signals.exit_code())  # what the signal interrupted has made another exception of it
    except SystemExit as end:
        daemons = sys.modules.get("harness.support.daemons")
        if daemons is None or not daemons.abandoned():
            raise
        # A compiler is at work, which nothing can stop: Python's own end would take its memory from under it.
        atexit._run_exitfuncs()  # which removes the temporary folders of the threads at work
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)


if __name__ == "__main__":
    main()
