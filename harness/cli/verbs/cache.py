"""``harness cache``: where compiled kernels are kept, how much they take, and how to remove them."""

from __future__ import annotations

import time

import click

from harness.cli import options
from harness.errors import HarnessError
from harness.support import terminal

_DAY = 86400  # seconds
_MOST = 1e9  # GiB: more than any disk has


@click.command(name="cache")
@click.option("--clean", is_flag=True, help="Remove every entry.")
@click.option(
    "--to",
    "most",
    type=options.Finite(min=0),
    metavar="GIB",
    help="Remove what was not used for the longest time, until the rest takes no more than this.",
)
def command(clean: bool, most: float | None) -> None:
    """Show the cache of compiled kernels: its folder, entries, size and limit.

    The limit is 4 GiB; HARNESS_CACHE_GIB sets another, HARNESS_CACHE_DIR another folder. Past the limit, what
    was not used for the longest time is removed. Only entries are removed, nothing else in the folder:
    results of a tuning that was interrupted stay.
    """
    from harness.support import cache

    store = options.open_cache()  # warns where it cannot be used, and why
    if store.root is None:
        raise HarnessError("there is no cache", hint="set HARNESS_CACHE_DIR to a directory of your own")
    if clean or most is not None:
        before = len(store.entries())
        removed = store.trim(0 if clean or most is None else int(min(most, _MOST) * 2**30))
        click.echo(f"removed {before - len(store.entries())} entries, {_size(removed)}")
    found = store.entries()
    total = sum(e.size for e in found)
    click.echo(terminal.fill(str(store.root)))
    click.echo(f"{len(found)} entries, {_size(total)} of at most {_size(cache.limit())}")
    if found:
        days = [
            max(0.0, time.time() - e.used) / _DAY for e in (found[-1], found[0])
        ]  # a clock may be set back
        click.echo(f"last used {days[0]:.1f} days ago, the oldest entry {days[1]:.1f}")


def _size(count: int) -> str:
    """Return a number of bytes as text, in MB or GiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 1e6:.1f} MB"
