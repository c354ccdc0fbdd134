"""The command line. Each verb is a module, imported when it is used; only this package prints."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import warnings
from typing import Any, TextIO

import click

from harness.errors import HarnessError
from harness.support import terminal

VERBS = (
    "bench",
    "build",
    "check",
    "choose",
    "compare",
    "doctor",
    "explain",
    "judge",
    "list",
    "profile",
    "replay",
    "report",
    "sass",
    "selftest",
    "tune",
    "verify",
)


class Verbs(click.Group):
    """The group of all verbs: imports a verb's module when it is called, and turns errors into messages and
    exit codes.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import and return a verb's command; None for an unknown name."""
        if name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"harness.cli.verbs.{name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; print errors to stderr and exit with their codes."""
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except HarnessError as e:
                click.echo(terminal.fill(str(e), start="error: "), err=True)
                ctx.exit(e.exit_code)
            except BrokenPipeError:  # the reader, such as `head`, has closed the pipe: nothing has failed
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                ctx.exit(141)  # 128 + SIGPIPE, as other tools exit
            except OSError as e:
                if e.errno not in (errno.ENOSPC, errno.EIO):
                    raise
                click.echo(f"error: cannot write the output: {e.strerror}", err=True)
                ctx.exit(1)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cuda-harness", prog_name="harness")
def main() -> None:
    """Compile, inspect, verify and time CUDA kernels through the driver API.

    A KERNEL is a shipped one by name (03_tiled or tiled), a glob ('0[1-3]*'), or the path of a .cu or .ptx
    file of your own. Without one, a command takes the whole ladder.
    """


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning, in place of `warnings.showwarning`."""
    print(terminal.fill(str(message), start="warning: "), file=file or sys.stderr)
