"""Bodies of the examination of a service and its engines."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

Severity = Literal["fault", "warning", "note"]


class Finding(Struct, kw_only=True):
    """Something that is worth knowing."""

    code: str
    """What kind of thing it is; docs/doctor.md has all of them. They stay the same."""
    severity: Severity
    """`fault`: something does not work; `warning`: it works worse than it could, or will stop
    working; `note`: worth knowing."""
    subject: str
    """Of whom, for people: `service`, a worker, a rank, a peer, a source."""
    worker_id: int | UnsetType = UNSET
    """Of a worker; absent where it is of the service."""
    dp_rank: int | UnsetType = UNSET
    """Of one of its ranks; absent where it is of the whole worker."""
    text: str
    """What was found, with numbers."""
    fix: str
    """What to do about it."""


class Machine(Struct, kw_only=True):
    """What the process runs on, and as what."""

    version: str
    """Of the service."""
    python: str
    """Of Python."""
    libraries: dict[str, str]
    """Versions of numba, llvmlite, numpy, pyzmq and libzmq."""
    processor: str
    """For which the kernels are compiled: `this one`, or the name that was asked for."""
    descriptors: int
    """Files that are open."""
    descriptors_max: int
    """Files that may be open."""
    memory_bytes: int
    """Resident memory of the process."""
    memory_bytes_max: int | None
    """That it may have: of its control group, else of the machine; null: not known."""
    loop_late_ms: float
    """By how much turns of the event loop came late during the examination, in the mean."""
    loop_late_ms_max: float
    """The latest of them."""
    cpu_stolen: float | None
    """Part of the CPU time that other machines took meanwhile, 0 to 1; null: not known."""
    cpu_throttled: float | None
    """Part of the periods in which the control group was held back meanwhile; null: not known."""


class DoctorReport(Struct, kw_only=True):
    """GET /doctor."""

    findings: list[Finding]
    """Of the service, then of workers, by id; none: nothing was found."""
    examined: list[int]
    """Ids of the workers that were examined."""
    next: int | None
    """What `after` has to be for further workers; null: these were the last."""
    seconds: float
    """How long it took."""
    machine: Machine | UnsetType = UNSET
    """What the process runs on; absent on further pages."""
