"""``harness worker``: lend this machine's GPUs to a scheduler of Dask, for ``--scheduler`` elsewhere."""

from __future__ import annotations

import click

from harness.cli import options
from harness.cli.children import fleet


@click.command(name="worker")
@click.argument("address", metavar="ADDRESS")
@click.option(
    "--gpus", default=fleet.ALL, show_default=True, metavar="all|0,1|N", help="Which GPUs, or how many."
)
@click.option(
    "--patience",
    default=60.0,
    show_default=True,
    type=options.Seconds(min=0),
    metavar="TIME",
    help="How long a scheduler is looked for that does not answer, or has gone.",
)
def command(address: str, gpus: str, patience: float) -> None:
    """Work for the Dask scheduler at ADDRESS (tcp://host:8786) with this machine's GPUs, until Ctrl-C.

    Each GPU gets a process of its own. Whoever can reach the scheduler can run any code here: on a network
    that is not yours alone use tls://, with certificates as Dask's configuration names them.
    """
    from harness.fleet import cluster

    cluster.lend(address, fleet.selected(gpus), patience, lambda text: click.echo(text, err=True))
