"""Changes by operators and sources: persisted over restarts, and sent to peers on request."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from select_service.schemas.admission import BusyThresholdView
from select_service.schemas.health import DrainCaller
from select_service.schemas.workers import WorkerRegistration


class PersistedDrain(Struct, kw_only=True):
    """Drain requested over HTTP.  Drains by sources are not persisted: sources repeat them."""

    migrate: bool = True
    """Whether the reservations may move to other ranks."""
    asked_by: Annotated[list[DrainCaller], Meta(min_length=1)] = field(
        default_factory=lambda: ["operator"]
    )
    """Callers of the drain; only `operator` when missing in a file."""


class PersistedWorker(Struct, kw_only=True):
    """Registered worker."""

    given: WorkerRegistration
    """Current record of the worker."""
    source: str | None
    """Source that owns the worker; null: registered over HTTP."""
    said: WorkerRegistration | None
    """Record from the source, if different: the other fields were patched by hand."""
    drain: PersistedDrain | None = None
    """Drain by operators or the planner; null: no such drain."""


class DeletedWorker(Struct, kw_only=True):
    """Worker of a source that was deleted by hand and stays deleted."""

    source: str
    """Source that owned the worker."""
    said: WorkerRegistration
    """Record from the source."""


class PersistedState(Struct, kw_only=True):
    """Response of GET /state, and content of the file of `--state-path`."""

    workers: list[PersistedWorker]
    """Workers by model, tenant and id."""
    deleted: list[DeletedWorker]
    """Workers of sources that were deleted by hand."""
    thresholds: list[BusyThresholdView]
    """Busy thresholds of models that override the default."""
    shed: str | None
    """Highest priority tier that is shed; null: none is."""
    format: Literal["select-service state"] = "select-service state"
    """Name of the format, constant."""
    version: Literal[1] = 1
    """Version of the format, always 1."""
