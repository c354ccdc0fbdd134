"""Workers of Dask distributed, one for each GPU: started here, or those of a scheduler somewhere else.

A worker's name ends with its GPU's UUID, to which CUDA_VISIBLE_DEVICES is set, and it has one thread and the
resource ``GPU=1``. A worker that dies is started again by its nanny. Whoever can talk to a scheduler can run
any code on its workers, so those started here take TLS connections only, with a certificate that is made for
them and never written to a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError, MissingDependency, UsageError

if TYPE_CHECKING:
    from distributed import Client

    from harness.driver import Device

RESOURCE = "GPU"
SLURM = "slurm"
_CONNECTING = 20  # seconds in which a scheduler has to answer
_PAGES = "127.0.0.1:0"  # where Dask's own pages are served, which nobody else has to see
_CERTIFICATES = "distributed.comm.tls in Dask's configuration names the certificates"
_AGAIN = 1.0  # seconds between attempts of a worker to reach a scheduler
_INSTALL = "pip install 'cuda-harness[fleet]'"


def imported() -> Any:
    """Return the module ``distributed``. Raises MissingDependency if it is not installed."""
    try:
        import distributed
    except ImportError as e:
        raise MissingDependency(f"work on several GPUs needs {e.name or e}", hint=_INSTALL) from None
    return distributed


@contextlib.contextmanager
def local(gpus: Sequence[Device]) -> Iterator[Client]:
    """Start a scheduler and a worker for each of these GPUs of this machine; yield a client.

    They end with the block. Raises MissingDependency if Dask or what it needs for TLS is not installed.
    """
    distributed = imported()
    import dask

    try:
        security = distributed.Security.temporary()
    except ImportError as e:
        raise MissingDependency(f"workers of one's own need TLS: {e}", hint=_INSTALL) from None
    with quiet(), contextlib.ExitStack() as owned:
        own = tempfile.TemporaryDirectory(prefix="harness-fleet-", ignore_cleanup_errors=True)
        folder = owned.enter_context(own)
        owned.enter_context(dask.config.set(temporary_directory=folder))
        common = {"host": "127.0.0.1", "security": security}
        cluster = distributed.SpecCluster(
            scheduler={"cls": distributed.Scheduler, "options": {**common, **_dashboard()}},
            workers={
                gpu.uuid: {
                    "cls": distributed.Nanny,
                    "options": {**worker_options(gpu.uuid), **common, "local_directory": folder},
                }
                for gpu in gpus
            },
            security=security,
            silence_logs=logging.CRITICAL,
        )
        with cluster, distributed.Client(cluster, set_as_default=False) as client:
            yield client


def worker_options(uuid: str) -> dict[str, Any]:
    """Return the arguments of the nanny of a worker for the GPU with this UUID."""
    return {
        "nthreads": 1,
        "resources": {RESOURCE: 1},
        "memory_limit": 0,  # what a unit takes is its own process's
        "dashboard_address": _PAGES,
        "silence_logs": logging.CRITICAL,
        "env": {"CUDA_VISIBLE_DEVICES": uuid},
    }


def _dashboard() -> dict[str, Any]:
    """Return a scheduler's arguments for its pages, which are for this machine only; some need bokeh."""
    return {"dashboard": importlib.util.find_spec("bokeh") is not None, "dashboard_address": _PAGES}


def dashboard(client: Client) -> str:
    """Return the address of the scheduler's dashboard; empty if it has none."""
    if importlib.util.find_spec("bokeh") is None:
        return ""
    try:
        return str(client.dashboard_link or "")
    except (KeyError, ValueError):  # the scheduler has none
        return ""


@contextlib.contextmanager
def connected(address: str, count: int = 1) -> Iterator[Client]:
    """Yield a client of the scheduler at `address`, such as ``tls://host:8786``, or of ``slurm``.

    Certificates for ``tls://`` are those of Dask's own configuration (``distributed.comm.tls``). ``slurm``
    asks dask-jobqueue for `count` workers as its configuration says (``jobqueue.slurm``). Raises UsageError
    for an address that is none, HarnessError if nobody answers there.
    """
    distributed = imported()
    if address == SLURM:
        with _slurm(distributed, count) as client:
            yield client
        return
    _check(address)
    with quiet():
        client = connect(distributed, address)
        try:
            yield client
        finally:
            with contextlib.suppress(Exception):  # a scheduler that has gone answers no goodbye
                client.close(timeout=2)


def _check(address: str) -> None:
    """Raise UsageError for what is no address, HarnessError where there is no certificate to show there."""
    if not address.startswith(("tcp://", "tls://")) or not address.rpartition(":")[2].isdigit():
        hint = f"tcp://host:8786, tls://host:8786, or {SLURM} for --scheduler"
        raise UsageError(f"no scheduler is called {address!r}", hint=hint)
    tls = imported().Security()
    if address.startswith("tls://") and not (tls.tls_ca_file and tls.tls_client_cert):
        raise HarnessError(f"no certificate to show at {address}", hint=_CERTIFICATES)


def connect(distributed: Any, address: str, seconds: float = _CONNECTING) -> Client:
    """Return a client of the scheduler at `address`. Raises HarnessError if it does not answer in time."""
    try:
        client: Client = distributed.Client(address, timeout=seconds, set_as_default=False)
    except Exception as e:  # who answers may be no scheduler at all
        why = str(e).splitlines()[0] if str(e) else type(e).__name__
        hint = "is it running? dask scheduler starts one"
        if address.startswith("tls://"):
            hint += f", and {_CERTIFICATES}"
        raise HarnessError(f"no scheduler answers at {address}: {why}", hint=hint) from None
    return client


@contextlib.contextmanager
def _slurm(distributed: Any, count: int) -> Iterator[Client]:
    """Start `count` workers as SLURM jobs, as dask-jobqueue's configuration says, and yield a client."""
    try:
        import dask
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise MissingDependency(
            "--scheduler slurm needs dask-jobqueue", hint="pip install dask-jobqueue"
        ) from None
    extra = dask.config.get("jobqueue.slurm.worker-extra-args", None) or []
    shared = dask.config.get("jobqueue.slurm.shared-temp-directory", None) or "~"
    with quiet(), contextlib.ExitStack() as owned:
        try:
            cluster = owned.enter_context(
                SLURMCluster(
                    cores=1,
                    processes=1,
                    worker_extra_args=[*extra, "--resources", f"{RESOURCE}=1"],
                    security=distributed.Security.temporary(),
                    shared_temp_directory=shared,  # where jobs find their certificate, readable to this user
                    scheduler_options={"dashboard_address": _PAGES},
                    silence_logs=logging.CRITICAL,
                )
            )
            cluster.scale(jobs=count)
        except (ValueError, RuntimeError, OSError) as e:
            hint = "~/.config/dask/jobqueue.yaml says how jobs are submitted: https://jobqueue.dask.org"
            raise HarnessError(f"dask-jobqueue: {e}", hint=hint) from None
        yield owned.enter_context(distributed.Client(cluster, set_as_default=False))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what Dask logs to itself: what matters of it becomes an error of harness's own."""
    names = ("distributed", "tornado", "asyncio", "bokeh")
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def lend(address: str, gpus: Sequence[Device], patience: float, said: Callable[[str], None]) -> None:
    """Work for the scheduler at `address` on these GPUs, until it sends the workers away.

    If it cannot be reached, or goes without a word, it is looked for again for `patience` seconds. Raises
    HarnessError when that is in vain. What a unit has started ends with its worker.
    """
    distributed = imported()
    _check(address)
    last = time.monotonic()
    with quiet():
        while True:
            try:
                worked = asyncio.run(_work(distributed, address, gpus, said))
            except (OSError, TimeoutError, ValueError, RuntimeError) as e:
                worked, why = False, str(e).splitlines()[0] if str(e) else type(e).__name__
            else:
                why = "it has gone"
            if worked:
                last = time.monotonic()
            if time.monotonic() - last > patience:
                raise HarnessError(
                    f"no scheduler at {address} for {patience:g} s: {why}",
                    hint="dask scheduler starts one; --patience waits longer",
                )
            time.sleep(_AGAIN)


async def _work(distributed: Any, address: str, gpus: Sequence[Device], said: Callable[[str], None]) -> bool:
    """Start the workers and wait for their end; return True if they have worked."""
    nannies = []
    async with contextlib.AsyncExitStack() as owned:
        for gpu in gpus:
            name = f"{platform.node()}-{gpu.uuid}"
            options = worker_options(gpu.uuid)
            nanny = distributed.Nanny(address, name=name, death_timeout=10, reconnect=False, **options)
            nannies.append(await owned.enter_async_context(nanny))
        said(f"{len(nannies)} GPUs work for {address}")
        await asyncio.gather(*(nanny.finished() for nanny in nannies))
    return True
