"""Facts about the process and its host, read from Linux; fewer facts on other systems."""

import os
import platform
import resource
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import zmq

from indexer.jit import kernel_cache, kernel_sources
from indexer.sockets.file_descriptors import count_open_descriptors
from select_service.core.doctor.service_findings import THIS_PROCESSOR
from select_service.schemas.doctor import Machine

LIBRARIES = ("numba", "llvmlite", "numpy", "pyzmq", "httptools", "uvloop")
_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
_STEAL = 8
"""Index of the steal time in the `cpu` line of /proc/stat, after the label."""


class CpuReading(NamedTuple):
    """Cumulative CPU counters; None means unknown."""

    total: int | None
    stolen: int | None
    periods: int | None
    throttled: int | None


class LoopDelay(NamedTuple):
    """Delay of event loop iterations, in milliseconds."""

    mean_ms: float
    max_ms: float


def read_cpu_counters() -> CpuReading:
    """Read the CPU counters.  Blocks for about a millisecond."""
    words = _read_text(Path("/proc/stat")).partition("\n")[0].split()[1:]
    ticks = [int(word) for word in words if word.isdigit()]
    # The first eight values are disjoint; later ones (guest) are included in them.
    known = len(ticks) >= _STEAL
    group = _read_numbers(_CGROUP / "cpu.stat") or _read_numbers(_CGROUP / "cpu" / "cpu.stat")
    return CpuReading(
        sum(ticks[:_STEAL]) if known else None,
        ticks[_STEAL - 1] if known else None,
        group.get("nr_periods"),
        group.get("nr_throttled"),
    )


def collect_machine_facts(
    own_version: str, late: LoopDelay, before: CpuReading, after: CpuReading
) -> Machine:
    """Return the facts about the machine.  Blocks for some milliseconds."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Machine(
        version=own_version,
        python=platform.python_version(),
        libraries=_library_versions(),
        processor=_kernel_processor(),
        descriptors=count_open_descriptors(),
        descriptors_max=soft,
        memory_bytes=_resident_bytes(),
        memory_bytes_max=_memory_max(),
        loop_late_ms=round(late.mean_ms, 3),
        loop_late_ms_max=round(late.max_ms, 3),
        cpu_stolen=_increase_ratio(before.stolen, after.stolen, before.total, after.total),
        cpu_throttled=_increase_ratio(
            before.throttled, after.throttled, before.periods, after.periods
        ),
    )


def _kernel_processor() -> str:
    if kernel_cache.is_from_wheel():
        return dict(kernel_sources.baseline_settings() or ())["CPU_NAME"]
    return os.environ.get("NUMBA_CPU_NAME") or THIS_PROCESSOR


def _increase_ratio(
    was: int | None, now: int | None, all_was: int | None, all_now: int | None
) -> float | None:
    if was is None or now is None or all_was is None or all_now is None or all_now <= all_was:
        return None
    return round(max(0, now - was) / (all_now - all_was), 4)


def _library_versions() -> dict[str, str]:
    found = {"libzmq": zmq.zmq_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _resident_bytes() -> int:
    words = _read_text(Path("/proc/self/statm")).split()
    if len(words) < 2:
        # Without /proc, the peak is the best known approximation.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(words[1]) * resource.getpagesize()


def _memory_max() -> int | None:
    """Return the memory limit of the control group if there is one, else the memory of the
    machine.
    """
    group = (_CGROUP / "memory.max", _CGROUP / "memory" / "memory.limit_in_bytes")
    # cgroup v2 says `max` without a limit, v1 a number near 2**63: both are filtered.
    limits = [int(text) for path in group if (text := _read_text(path).strip()).isdigit()]
    of_machine = _read_numbers(Path("/proc/meminfo")).get("MemTotal:")
    if of_machine is not None:
        limits.append(of_machine * 1024)
    known = [limit for limit in limits if 0 < limit < _UNLIMITED]
    return min(known, default=None)


def _read_numbers(path: Path) -> dict[str, int]:
    """Return the "name number" lines of a file as a dict."""
    lines = (line.split() for line in _read_text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _read_text(path: Path) -> str:
    """Return the content of a file; empty if unreadable."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
