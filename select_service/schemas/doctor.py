"""Bodies of GET /doctor, the examination of a service and its engines."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

Severity = Literal["fault", "warning", "note"]


class Finding(Struct, kw_only=True):
    """Finding of the examination."""

    code: str
    """Stable code of the finding; docs/reference/doctor-codes.md lists all codes."""
    severity: Severity
    """`fault`: a function does not work; `warning`: works worse than possible, or will stop
    working; `note`: information.
    """
    subject: str
    """Subject of the finding, for people: `service`, a worker, a rank, a peer, a source."""
    worker_id: int | UnsetType = UNSET
    """Id of the worker concerned; absent for findings about the service."""
    dp_rank: int | UnsetType = UNSET
    """Data-parallel rank concerned; absent for findings about a whole worker."""
    text: str
    """Description with numbers."""
    fix: str
    """Suggested remedy."""


class Machine(Struct, kw_only=True):
    """Environment of the process: versions, machine and limits."""

    version: str
    """Version of the service."""
    python: str
    """Version of Python."""
    libraries: dict[str, str]
    """Versions of numba, llvmlite, numpy, pyzmq and libzmq."""
    processor: str
    """Target processor of the compiled kernels: `this one`, or the configured name."""
    descriptors: int
    """Open file descriptors."""
    descriptors_max: int
    """Limit of open file descriptors."""
    memory_bytes: int
    """Resident memory of the process, bytes."""
    memory_bytes_max: int | None
    """Memory limit of the control group, or else of the machine, bytes; null: unknown."""
    loop_late_ms: float
    """Mean lateness of event loop iterations during the examination, milliseconds."""
    loop_late_ms_max: float
    """Largest lateness of an event loop iteration, milliseconds."""
    cpu_stolen: float | None
    """Fraction of CPU time taken by other machines during the examination, 0 to 1; null:
    unknown.
    """
    cpu_throttled: float | None
    """Fraction of periods in which the control group was throttled; null: unknown."""


class DoctorReport(Struct, kw_only=True):
    """Response of GET /doctor."""

    findings: list[Finding]
    """Findings about the service, then about workers by id; empty: no problem found."""
    examined: list[int]
    """Ids of the workers that were examined."""
    next: int | None
    """Value of `after` for further workers; null on the last page."""
    seconds: float
    """Duration of the examination, seconds."""
    machine: Machine | UnsetType = UNSET
    """Environment of the process; only on the first page."""
