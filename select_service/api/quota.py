"""Accounting of a request against the quotas and shares of its key."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from starlette.requests import Request

from select_service.api.process_limits import count_event_ranks, request_holder
from select_service.api.service_context import ServiceContext, request_grant
from select_service.auth.limit_shares import SharedLimit, Tenants
from select_service.base.errors import QuotaExceeded
from select_service.core.admission.waiting_ticket import WaitingTicket
from select_service.core.workers.worker_catalog import RegisteredWorker, WorkerCatalog
from select_service.schemas.common import resolve_tenant
from select_service.schemas.prompts import PromptFields

BookedCallback: TypeAlias = Callable[[str], None]
"""Callback with the id of the new reservation."""


@contextmanager
def count_booking(
    service: ServiceContext, request: Request, body: PromptFields, reservation_id: str | None
) -> Iterator[BookedCallback]:
    """Count the reservation made in this context.  Raises QuotaExceeded.

    Yields the callback that takes the id of the reservation.

    reservation_id: requested id; a reservation that exists already is not counted again
    """
    bookings = service.guard.bookings_of(request_grant(request))
    is_counted = bookings is not None
    if is_counted and reservation_id is not None:
        # A retry returns the existing reservation and books nothing new.
        is_counted = service.ledger.find_active(reservation_id) is None
    if bookings is None or not is_counted:
        yield ignore_booking
        return

    def booked(reservation_id: str) -> None:
        held = service.ledger.reservations.find_reservation(reservation_id)
        if held is not None:
            bookings.count_booking(held.row)

    with bookings.hold_capacity(resolve_tenant(body.tenant_id, body.routing_group)):
        yield booked


def ignore_booking(reservation_id: str) -> None:
    """Ignore a reservation that no quota counts."""


@contextmanager
def count_queued(
    service: ServiceContext, request: Request, ticket: WaitingTicket
) -> Iterator[None]:
    """Count the waiting request in this context.  Raises QuotaExceeded; the ticket is withdrawn."""
    holder, tenants = (
        request_holder(request),
        frozenset((ticket.placement_request.partition.key.tenant_id,)),
    )
    taken: list[tuple[SharedLimit, int]] = []
    try:
        if holder.name is not None:
            for limit, n in zip(service.limits.queue_limits, ticket.usage, strict=True):
                try:
                    limit.take(holder, n, tenants)
                except QuotaExceeded as error:
                    service.gate.withdraw_ticket(ticket, error)
                    raise
                taken.append((limit, n))
        yield
    finally:
        for limit, n in taken:
            limit.give_back(holder, n, tenants)


def check_worker_quota(service: ServiceContext, request: Request, worker: RegisteredWorker) -> None:
    """Raise QuotaExceeded if the caller may not register or change the worker this way.

    Called before each change of a worker; `note_registration` follows for changes that were made.
    """
    holder, guard = request_holder(request), service.guard
    if holder.key is None:
        return
    catalog, worker_id = service.fleet.catalog, worker.worker_id
    ids = guard.usage_of(holder.key).registered_worker_ids(catalog.is_registered)
    if worker_id in ids and _needs_no_more(worker, catalog.get_worker(worker_id)):
        return
    # Without the worker itself: its new record replaces its present usage.
    mine = [catalog.get_worker(each) for each in ids if each != worker_id]
    theirs: list[RegisteredWorker] = []
    if holder.tenants is not None:
        theirs = _workers_of_tenants(catalog, frozenset((worker.key.tenant_id,)), worker_id)
    limits = service.limits
    limits.workers.check_share(holder, 1, len(mine), len(theirs))
    limits.event_ranks.check_share(
        holder, count_event_ranks([worker]), count_event_ranks(mine), count_event_ranks(theirs)
    )
    keys, all_keys = {each.key for each in mine}, {each.key for each in theirs}
    limits.partitions.check_share(holder, 1, len(keys - {worker.key}), len(all_keys - {worker.key}))


def note_registration(service: ServiceContext, request: Request, worker_id: int) -> None:
    """Record that the caller registered a worker."""
    key = request_holder(request).key
    if key is not None:
        service.guard.usage_of(key).note_worker(worker_id)


def _needs_no_more(new: RegisteredWorker, old: RegisteredWorker) -> bool:
    """Return whether the new record uses no more of the limits than the old."""
    return new.key == old.key and count_event_ranks([new]) <= count_event_ranks([old])


def _workers_of_tenants(
    catalog: WorkerCatalog, tenants: Tenants, without: int
) -> list[RegisteredWorker]:
    return [
        worker
        for worker in catalog
        if worker.key.tenant_id in tenants
        and worker.worker_id != without
        and catalog.is_registered(worker.worker_id)
    ]
