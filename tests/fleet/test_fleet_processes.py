"""A fleet of real processes on fake GPUs: workers and schedulers killed, started late, and told to end.

Nothing is lost then, nothing is in a record twice, and nothing is left of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.results import record
from shared.command import FAST
from shared.places import ROOT

pytest.importorskip("distributed", reason="pip install '.[fleet]'")
TESTS = ROOT / "tests"
SIZES = (16, 24, 32, 40)


class Machine:
    """Processes that see fake GPUs, in an environment and a folder of their own."""

    def __init__(self, folder: Path, gpus: int) -> None:
        self.folder = folder
        self.mark = f"harness-test-{folder.parent.name}-{folder.name}"
        path = os.pathsep.join(map(str, (ROOT, TESTS, TESTS / "fakes" / "processes")))
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("COV")} | {
            "PYTHONPATH": path,
            "HARNESS_FAKE_GPUS": str(gpus),
            "HARNESS_CACHE_DIR": os.environ["HARNESS_CACHE_DIR"],
            "HARNESS_FAKE_FAULTS": str(folder / "faults"),
            "TMPDIR": str(folder / "tmp"),
            "MARK": self.mark,
        }
        (folder / "tmp").mkdir()
        self.begun: list[subprocess.Popen[str]] = []

    def start(self, *words: str, python: tuple[str, ...] = ("-m", "harness")) -> subprocess.Popen[str]:
        with (self.folder / f"output{len(self.begun)}").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, *python, *words],
                env=self.env,
                cwd=self.folder,
                text=True,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.begun.append(process)
        return process

    def bench(self, *words: str) -> subprocess.Popen[str]:
        sizes = f"N=[{','.join(map(str, SIZES))}]"
        return self.start("bench", "naive", "-a", sizes, *FAST, "--json", "r.json", *words)

    def running(self, pattern: str = "") -> list[int]:
        """Return the processes of this machine whose command line matches."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                mine = (
                    entry.name.isdigit() and f"MARK={self.mark}".encode() in (entry / "environ").read_bytes()
                )
                if mine and re.search(
                    pattern, (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                ):
                    found.append(int(entry.name))
        return found

    def rows(self) -> list[tuple[str, str]]:
        content = record.load(self.folder / "r.json")
        return [(r["shape"], r["status"]) for r in content["rows"]]

    def ends(self, process: subprocess.Popen[str], seconds: float = 240) -> tuple[int, str]:
        process.wait(seconds)
        output = (self.folder / f"output{self.begun.index(process)}").read_text()
        assert "Traceback" not in output, output
        return process.returncode, output

    def goes_on(self, process: subprocess.Popen[str]) -> bool:
        assert process.poll() is None, self.ends(process)
        return True

    def killed(self) -> bool:
        """Kill what runs; return True if nothing did."""
        left = self.running()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    def nothing_left(self) -> None:
        until(lambda: not self.running(), 20)
        assert [p.name for p in (self.folder / "tmp").iterdir()] == []


def until(condition: Callable[[], Any], seconds: float = 240) -> Any:  # of a machine that others use, too
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"in vain for {seconds:g} s"
        time.sleep(0.05)
    return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path, 2)
    yield found
    for process in found.begun:
        process.kill()  # a scheduler's title lies where its environment was
    until(found.killed, 30)  # not at once: a nanny starts a worker that is killed again
    for process in found.begun:
        process.wait(30)


def units_of(machine: Machine) -> list[int]:
    return machine.running(r"-m harness bench .*--rows")


RIGHT = [(str(n), "ok") for n in SIZES]


@pytest.mark.slow
def test_a_worker_that_is_killed_in_the_middle(machine: Machine) -> None:
    process = machine.bench("--gpus", "all")
    unit = until(lambda: machine.goes_on(process) and units_of(machine))[0]
    worker = int(Path(f"/proc/{unit}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(worker, signal.SIGKILL)
    code, output = machine.ends(process)
    assert code == 0, output
    assert machine.rows() == RIGHT
    machine.nothing_left()


@pytest.mark.exhaustive
def test_ctrl_c_keeps_what_is_done_and_leaves_nothing(machine: Machine) -> None:
    process = machine.bench("--gpus", "all")
    first = set(until(lambda: len(found := units_of(machine)) >= 2 and found))
    until(lambda: first - set(units_of(machine)) and len(units_of(machine)) >= 2)  # one is done
    process.send_signal(signal.SIGINT)
    code, output = machine.ends(process, 60)
    assert code == 130 and "interrupted" in output, output
    assert 0 < len(machine.rows()) < len(SIZES) and {status for _, status in machine.rows()} == {"ok"}
    machine.nothing_left()


def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Scheduler:
    def __init__(self, machine: Machine, *, tls: bool = False) -> None:
        self.machine, self.tls, self.port = machine, tls, port()
        self.address = f"{'tls' if tls else 'tcp'}://127.0.0.1:{self.port}"

    def start(self) -> subprocess.Popen[str]:
        protocol = ("--protocol", "tls") if self.tls else ()
        words = ("--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard", *protocol)
        found = self.machine.start(*words, python=("-m", "distributed.cli.dask_scheduler"))
        until(self._answers)
        return found

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.mark.exhaustive
def test_a_scheduler_that_is_started_again_and_a_worker_that_comes_late(machine: Machine) -> None:
    scheduler = Scheduler(machine)
    first = scheduler.start()
    process = machine.bench("--scheduler", scheduler.address, "--gpus", "2")
    time.sleep(1)
    worker = machine.start("worker", scheduler.address)  # late
    seen = until(lambda: units_of(machine))
    until(lambda: set(units_of(machine)) - set(seen))  # a unit is done, others are not
    first.kill()
    first.wait()
    scheduler.start()
    code, output = machine.ends(process)
    assert code == 0, output
    assert machine.rows() == RIGHT
    worker.send_signal(signal.SIGINT)
    assert worker.wait(30) == 130


@pytest.mark.exhaustive
def test_tls_as_dask_offers_it(machine: Machine) -> None:
    from distributed.security import Security

    made = Security.temporary()
    for name, text in (
        ("ca", made.tls_ca_file),
        ("key", made.tls_client_key),
        ("cert", made.tls_client_cert),
    ):
        (machine.folder / f"secret-{name}.pem").write_text(str(text))
    plain = dict(machine.env)
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        machine.env[f"DASK_DISTRIBUTED__COMM__TLS__{role}__CERT"] = str(machine.folder / "secret-cert.pem")
        machine.env[f"DASK_DISTRIBUTED__COMM__TLS__{role}__KEY"] = str(machine.folder / "secret-key.pem")
    machine.env["DASK_DISTRIBUTED__COMM__TLS__CA_FILE"] = str(machine.folder / "secret-ca.pem")
    machine.env["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] = "True"
    scheduler = Scheduler(machine, tls=True)
    scheduler.start()
    machine.start("worker", scheduler.address)
    code, output = machine.ends(machine.bench("--scheduler", scheduler.address, "--gpus", "2"))
    assert code == 0, output
    assert machine.rows() == RIGHT
    assert "secret" not in (machine.folder / "r.json").read_text()
    machine.env = plain  # a stranger has no certificate
    code, output = machine.ends(machine.bench("--scheduler", scheduler.address))
    assert code == 1 and "no certificate" in output and "distributed.comm.tls" in output, output
    plain_address = scheduler.address.replace("tls", "tcp")
    code, output = machine.ends(machine.bench("--scheduler", plain_address))
    assert code == 1 and "no scheduler answers" in output, output


@pytest.mark.exhaustive
def test_a_gpu_that_has_failed_is_left_out(machine: Machine) -> None:
    bad = "GPU-a1000000-0000-0000-0000-000000000000"
    (machine.folder / "faults").write_text(f"{bad} cuLaunchKernelEx 700\n")
    code, output = machine.ends(machine.bench("--gpus", "all"))
    assert code == 0, output
    assert machine.rows() == RIGHT
    content = record.load(machine.folder / "r.json")
    assert {r["gpu"] for r in content["rows"]} == {"GPU-a0000000-0000-0000-0000-000000000000"}
    cards = {c["uuid"]: c["left_out"] for c in content["meta"]["fleet"]["cards"]}
    assert "2 units failed here" in cards[bad] and f"{bad[:12]} was left out" in output


@pytest.mark.exhaustive
def test_a_kernel_that_hangs(machine: Machine) -> None:
    """Time out as every process does that gets less time than Python needs to start."""
    code, output = machine.ends(machine.bench("--gpus", "all", "--kernel-timeout", "0.2"))
    assert code == 1 and "it hangs" in output, output
    assert machine.rows() == [(str(n), "error") for n in SIZES]
    machine.nothing_left()


@pytest.mark.exhaustive
def test_tuning_on_two_gpus(machine: Machine) -> None:
    process = machine.start("tune", "tiled", "-a", "N=32", "--gpus", "all", "--json", "r.json")
    code, output = machine.ends(process, 240)
    assert code == 0, output
    assert "TILE" in output and "GPU-a1" in output
    machine.nothing_left()
