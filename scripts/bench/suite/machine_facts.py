"""Description of the machine, its versions, and other load during a measurement."""

import os
import platform
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from scripts.bench.services_under_test import ROOT, SERVER_CPU

TICKS = os.sysconf("SC_CLK_TCK")
LIBRARIES = ("numba", "numpy", "uvloop", "uvicorn", "msgspec", "pyzmq")
LOOP_TURNS = 1_000_000
MESSAGES = 20_000
TRIES = 5


class Ticks(NamedTuple):
    """Ticks of all CPUs together, those given to others by the hypervisor, and busy ticks of one
    CPU.
    """

    all: int
    stolen: int
    busy: int


def read_ticks(stat: str, cpu: int) -> Ticks:
    """Parse /proc/stat: user nice system idle iowait irq softirq steal guest ..."""
    lines = dict(line.split(" ", 1) for line in stat.splitlines() if line.startswith("cpu"))
    every = [int(word) for word in lines["cpu"].split()]
    one = [int(word) for word in lines[f"cpu{cpu}"].split()]
    # Without guest times, which are already part of user times.
    return Ticks(sum(every[:8]), every[7], sum(one[:3]))


class Disturbance(NamedTuple):
    """Disturbance of a measurement.

    load: load average of the last minute at the end;  steal_percent: share of all CPU time;
    others_percent: share of other processes on the server's CPU; None without such a CPU
    """

    load: float
    steal_percent: float
    others_percent: float | None


class DisturbanceWatch:
    """Observation of a measurement from begin to end."""

    def __init__(self) -> None:
        self._ticks = _ticks()
        self._begun = time.perf_counter()

    def noise(self, server_cpu_s: float | None) -> Disturbance:
        """Return the disturbance.  server_cpu_s: CPU time of the server; None without own CPU"""
        wall, now = time.perf_counter() - self._begun, _ticks()
        return noise_between(self._ticks, now, wall, server_cpu_s)


def noise_between(
    before: Ticks, after: Ticks, wall_s: float, server_cpu_s: float | None
) -> Disturbance:
    steal = (after.stolen - before.stolen) / max(1, after.all - before.all)
    others = None
    if server_cpu_s is not None:
        busy_s = (after.busy - before.busy) / TICKS
        # Ticks are coarse, so the difference may be slightly negative.
        others = 100 * max(0.0, busy_s - server_cpu_s) / wall_s
    return Disturbance(os.getloadavg()[0], 100 * steal, others)


def _ticks() -> Ticks:
    return read_ticks(Path("/proc/stat").read_text(), SERVER_CPU)


class MachineFacts(NamedTuple):
    """Speed of the machine.

    python_loop_ms: a million turns of an empty loop;  message_us: a byte through a pair of sockets,
    one way, without waiting. Both show the cost of Python and of the kernel.
    """

    cpu: str
    cpus: int
    memory_gb: float
    kernel: str
    python: str
    python_loop_ms: float
    message_us: float
    commit: str
    libraries: dict[str, str]


def this_machine() -> MachineFacts:
    return MachineFacts(
        cpu=_named_value(Path("/proc/cpuinfo").read_text(), "model name"),
        cpus=os.cpu_count() or 1,
        memory_gb=round(
            int(_named_value(Path("/proc/meminfo").read_text(), "MemTotal").split()[0]) / 2**20, 1
        ),
        kernel=platform.release(),
        python=platform.python_version(),
        python_loop_ms=round(1e3 * min(_loop_s() for _ in range(TRIES)), 1),
        message_us=round(1e6 * min(_message_s() for _ in range(TRIES)), 2),
        commit=commit(),
        libraries={name: version(name) for name in LIBRARIES},
    )


def _named_value(text: str, name: str) -> str:
    """Return the value of the first line `name : value`."""
    for line in text.splitlines():
        found, _, value = line.partition(":")
        if found.strip() == name:
            return value.strip()
    return "0 (not said)"


def _loop_s() -> float:
    begun = time.thread_time()
    for _ in range(LOOP_TURNS):
        pass
    return time.thread_time() - begun


def _message_s() -> float:
    here, there = socket.socketpair()
    with here, there:
        begun = time.thread_time()
        for _ in range(MESSAGES):
            here.send(b"x")
            there.recv(1)
        return (time.thread_time() - begun) / MESSAGES


def commit(name: str = "HEAD") -> str:
    """Return the short commit, with a plus after local changes."""
    found = _git("rev-parse", "--short", name)
    changed = name == "HEAD" and _git("status", "--porcelain", "--", "indexer", "select_service")
    return f"{found or 'unknown'}{'+' if changed else ''}"


def _git(*arguments: str) -> str:
    command = ("git", "-C", str(ROOT), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def installed_version(python: str, package: str) -> str:
    """Return the version of a package in the environment of another Python."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    command = (python, "-c", code)
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=sys.prefix)
    return done.stdout.strip()
