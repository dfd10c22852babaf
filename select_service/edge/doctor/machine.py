"""EDGE: the process and its host, as the system tells of them.  Linux; elsewhere less is known."""

import os
import platform
import resource
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import zmq

from indexer import kernel_cache, kernel_sources
from indexer.sockets.descriptors import in_use
from select_service.bodies.doctor import Machine
from select_service.core.doctor.judging_service import THIS_ONE

LIBRARIES = ("numba", "llvmlite", "numpy", "pyzmq", "httptools", "uvloop")
_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
_STEAL = 8
"""Its place in the line `cpu` of /proc/stat, behind the word."""


class CpuReading(NamedTuple):
    """Running sums.  None: not known."""

    total: int | None
    stolen: int | None
    periods: int | None
    throttled: int | None


class Late(NamedTuple):
    """How late turns of the event loop were, in milliseconds."""

    mean_ms: float
    max_ms: float


def cpu_reading() -> CpuReading:
    """Blocks, for a millisecond or so."""
    words = _text(Path("/proc/stat")).partition("\n")[0].split()[1:]
    ticks = [int(word) for word in words if word.isdigit()]
    known = len(ticks) >= _STEAL
    group = _numbers(_CGROUP / "cpu.stat") or _numbers(_CGROUP / "cpu" / "cpu.stat")
    return CpuReading(
        sum(ticks[:_STEAL]) if known else None,
        ticks[_STEAL - 1] if known else None,
        group.get("nr_periods"),
        group.get("nr_throttled"),
    )


def machine(own_version: str, late: Late, before: CpuReading, after: CpuReading) -> Machine:
    """Blocks, for some milliseconds."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Machine(
        version=own_version,
        python=platform.python_version(),
        libraries=_libraries(),
        processor=_processor(),
        descriptors=in_use(),
        descriptors_max=soft,
        memory_bytes=_resident(),
        memory_bytes_max=_memory_max(),
        loop_late_ms=round(late.mean_ms, 3),
        loop_late_ms_max=round(late.max_ms, 3),
        cpu_stolen=_part(before.stolen, after.stolen, before.total, after.total),
        cpu_throttled=_part(before.throttled, after.throttled, before.periods, after.periods),
    )


def _processor() -> str:
    if kernel_cache.is_baseline():
        return dict(kernel_sources.baseline() or ())["CPU_NAME"]
    return os.environ.get("NUMBA_CPU_NAME") or THIS_ONE


def _part(
    was: int | None, now: int | None, all_was: int | None, all_now: int | None
) -> float | None:
    if was is None or now is None or all_was is None or all_now is None or all_now <= all_was:
        return None
    return round(max(0, now - was) / (all_now - all_was), 4)


def _libraries() -> dict[str, str]:
    found = {"libzmq": zmq.zmq_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _resident() -> int:
    words = _text(Path("/proc/self/statm")).split()
    if len(words) < 2:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(words[1]) * resource.getpagesize()


def _memory_max() -> int | None:
    """Of the control group, where it has a limit, else of the machine."""
    group = (_CGROUP / "memory.max", _CGROUP / "memory" / "memory.limit_in_bytes")
    limits = [int(text) for path in group if (text := _text(path).strip()).isdigit()]
    of_machine = _numbers(Path("/proc/meminfo")).get("MemTotal:")
    if of_machine is not None:
        limits.append(of_machine * 1024)
    known = [limit for limit in limits if 0 < limit < _UNLIMITED]
    return min(known, default=None)


def _numbers(path: Path) -> dict[str, int]:
    """Lines of a word and a number."""
    lines = (line.split() for line in _text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _text(path: Path) -> str:
    """Empty where there is nothing to be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
