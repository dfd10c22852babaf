"""What operators and sources have made of a service: kept over a restart, and given to a peer."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from select_service.bodies.admission import BusyThresholdView
from select_service.bodies.health import DrainCaller
from select_service.bodies.workers import WorkerRegistration


class KeptDrain(Struct, kw_only=True):
    """What was asked for over HTTP: sources say again what they drop."""

    migrate: bool = True
    """May its reservations go elsewhere?"""
    asked_by: Annotated[list[DrainCaller], Meta(min_length=1)] = field(
        default_factory=lambda: ["operator"]
    )
    """Everybody who wants it; `operator` alone where a file does not say it."""


class KeptWorker(Struct, kw_only=True):
    """A worker that is registered."""

    given: WorkerRegistration
    """As it stands."""
    source: str | None
    """The source to which it belongs; null: it was registered over HTTP."""
    said: WorkerRegistration | None
    """What its source said of it, where that differs: the rest was patched by hand."""
    drain: KeptDrain | None = None
    """How it drains for operators or the planner; null: for neither."""


class DeletedWorker(Struct, kw_only=True):
    """A worker of a source that was deleted by hand, and stays away."""

    source: str
    """The source to which it belongs."""
    said: WorkerRegistration
    """What its source said of it."""


class KeptState(Struct, kw_only=True):
    """GET /state, and the file of `--state-path`."""

    workers: list[KeptWorker]
    """By model, tenant and id."""
    deleted: list[DeletedWorker]
    """Workers of sources that were deleted by hand."""
    thresholds: list[BusyThresholdView]
    """Of models that have busy thresholds of their own."""
    shed: str | None
    """The highest priority tier that is shed; null: none is."""
    format: Literal["select-service state"] = "select-service state"
    """Always the same."""
    version: Literal[1] = 1
    """Always 1."""
