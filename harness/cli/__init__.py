"""The command line. Each verb is a module, imported when it is used; only this package prints."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import click

from harness.cli import guide, streams
from harness.errors import HarnessError, UsageError
from harness.support import signals, terminal

VERBS = (
    "bench",
    "build",
    "cache",
    "check",
    "choose",
    "compare",
    "doctor",
    "explain",
    "history",
    "judge",
    "list",
    "new",
    "profile",
    "replay",
    "report",
    "run",
    "sass",
    "selftest",
    "tune",
    "verify",
    "worker",
)


class Verbs(click.Group):
    """The group of all verbs: imports a verb's module when it is called, and turns errors into messages and
    exit codes.
    """

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the words before the verb; where nobody reads what ``--help`` prints, end as elsewhere."""
        try:
            return super().make_context(*args, **extra)
        except BrokenPipeError as e:
            raise click.exceptions.Exit(streams.lost(e) or 1) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import and return a verb's command; None for an unknown name."""
        if name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"harness.cli.verbs.{name}").command
        if command.epilog is None and name in guide.EXAMPLES:
            command.epilog = f"Example: {guide.EXAMPLES[name]}"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb that `args` begin with. Raises UsageError for an unknown one, with the nearest."""
        close = difflib.get_close_matches(args[0], VERBS, n=1)
        if args[0] not in VERBS and close:
            raise UsageError(f"no command {args[0]!r}", hint=f"did you mean {close[0]}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs into the help, grouped by what they are for."""
        width = max(map(len, VERBS))
        for heading, names in guide.sections(VERBS):
            commands = ((name, self.get_command(ctx, name)) for name in names)
            rows = [(name.ljust(width), c.get_short_help_str(60)) for name, c in commands if c is not None]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        """Run a command line and exit with its code; on a signal that asks to end, with 128 + its number.

        Without `standalone_mode` it is as click's.
        """
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **extra)
        with streams.plain(), signals.interrupting():
            sys.exit(self._code(args, extra))

    def _code(self, args: Sequence[str] | None, extra: Mapping[str, Any]) -> int:
        """Run a command line and return its exit code; what went wrong is told on stderr."""
        try:
            _working_directory()
            code = super().main(args, standalone_mode=False, **extra)
            if sys.stdout is not None:
                sys.stdout.flush()  # now, where a full disk can still be told of
        except click.ClickException as e:
            e.show()
            return e.exit_code
        except HarnessError as e:
            _say(str(e))
            return e.exit_code
        except click.Abort:
            _say("interrupted")
            return signals.exit_code()
        except MemoryError:
            _say("not enough memory")
            return 1
        except RuntimeError as e:
            if "start new thread" not in str(e):  # Python has no type of its own for it
                raise
            _say("cannot start a thread: the limit of processes (ulimit -u), or of memory, is reached")
            return 1
        except OSError as e:
            if e.filename is None and (known := streams.lost(e)) is not None:
                return known
            _say(f"{e.filename or 'the system'}: {e.strerror or e}")
            return 1
        return code if isinstance(code, int) else 0

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, with warnings and what the library logs as one line each."""
        with warnings.catch_warnings(), _Notes():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except BrokenPipeError as e:  # which click would call a failure
                return streams.lost(e)


def _say(text: str) -> None:
    """Print an error on stderr."""
    click.echo(terminal.fill(text, start="error: "), err=True)


class _Notes(logging.Handler):
    """Print what the library logs (INFO and above) on stderr, while it is entered."""

    _logger = logging.getLogger("harness")

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        click.echo(terminal.fill(record.getMessage(), start="note: "), err=True)

    def __enter__(self) -> None:
        self._before = self._logger.level
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)

    def __exit__(self, *error: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._before)


def _working_directory() -> None:
    """Raise UsageError if the working directory has been deleted: no relative path means anything."""
    try:
        Path.cwd()
    except OSError as e:
        raise UsageError(f"no working directory: {e.strerror}", hint="cd to one that exists") from None


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cuda-harness", prog_name="harness")
@click.option(
    "--untrusted", is_flag=True, help="Refuse kernels whose problem is Python of their own, which would run."
)
def main(untrusted: bool) -> None:
    """Compile, inspect, verify and time CUDA kernels through the driver API.

    A KERNEL is a shipped one by name (03_tiled or tiled), a glob ('0[1-3]*'), or the path of a .cu or .ptx
    file of your own. Without one, a command takes the whole ladder.
    """
    if untrusted:
        os.environ["HARNESS_UNTRUSTED"] = "1"  # children inherit it


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
