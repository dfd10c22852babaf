"""What a request with a key counts against the quotas and shares of that key."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from starlette.requests import Request

from select_service.access.shares import SharedLimit, Tenants
from select_service.api.limits import event_ranks, holder_of
from select_service.api.service import Service, grant_of
from select_service.bodies.common import tenant_of
from select_service.bodies.prompts import PromptFields
from select_service.core.admission.waiting import Ticket
from select_service.core.admission.waiting_list import size_of
from select_service.core.workers.catalog import Catalog, Worker
from select_service.errors import QuotaExceeded

Booked: TypeAlias = Callable[[str], None]
"""Is told the id of the reservation that was made."""


@contextmanager
def booking(
    service: Service, request: Request, body: PromptFields, reservation_id: str | None
) -> Iterator[Booked]:
    """Inside, the request makes a reservation, and says which.  Raises QuotaExceeded.

    reservation_id: that is asked for; where it stands already nothing is made
    """
    bookings = service.guard.bookings_of(grant_of(request))
    is_counted = bookings is not None
    if is_counted and reservation_id is not None:
        is_counted = service.selector.ledger.standing(reservation_id) is None
    if bookings is None or not is_counted:
        yield _uncounted
        return

    def booked(reservation_id: str) -> None:
        held = service.selector.held.find(reservation_id)
        if held is not None:
            bookings.booked(held.row)

    with bookings.booking(tenant_of(body.tenant_id, body.routing_group)):
        yield booked


def _uncounted(reservation_id: str) -> None:
    """Nobody counts."""


@contextmanager
def queued(service: Service, request: Request, ticket: Ticket) -> Iterator[None]:
    """Inside, the request waits.  Raises QuotaExceeded, and the ticket is withdrawn."""
    holder, tenants = holder_of(request), frozenset((ticket.job.partition.key.tenant_id,))
    taken: list[tuple[SharedLimit, int]] = []
    try:
        if holder.name is not None:
            for limit, n in zip(service.limits.queue, size_of(ticket), strict=True):
                try:
                    limit.take(holder, n, tenants)
                except QuotaExceeded as error:
                    service.selector.gate.withdraw(ticket, error)
                    raise
                taken.append((limit, n))
        yield
    finally:
        for limit, n in taken:
            limit.give_back(holder, n, tenants)


def refuse_worker(service: Service, request: Request, worker: Worker) -> None:
    """Raises QuotaExceeded when the caller may not register this worker, or have it so.

    Asked before each change of a worker; `register_use` is called for those that are made.
    """
    holder, guard = holder_of(request), service.guard
    if holder.key is None:
        return
    catalog, worker_id = service.selector.fleet.catalog, worker.worker_id
    ids = guard.use_of(holder.key).workers(catalog.is_registered)
    if worker_id in ids and _takes_no_more(worker, catalog.get(worker_id)):
        return
    mine = [catalog.get(each) for each in ids if each != worker_id]
    theirs: list[Worker] = []
    if holder.tenants is not None:
        theirs = _of_tenants(catalog, frozenset((worker.key.tenant_id,)), worker_id)
    limits = service.limits
    limits.workers.refuse_beyond_share(holder, 1, len(mine), len(theirs))
    limits.event_ranks.refuse_beyond_share(
        holder, event_ranks([worker]), event_ranks(mine), event_ranks(theirs)
    )
    keys, all_keys = {each.key for each in mine}, {each.key for each in theirs}
    limits.partitions.refuse_beyond_share(
        holder, 1, len(keys - {worker.key}), len(all_keys - {worker.key})
    )


def register_use(service: Service, request: Request, worker_id: int) -> None:
    """The caller has registered a worker."""
    key = holder_of(request).key
    if key is not None:
        service.guard.use_of(key).registered(worker_id)


def _takes_no_more(new: Worker, old: Worker) -> bool:
    return new.key == old.key and event_ranks([new]) <= event_ranks([old])


def _of_tenants(catalog: Catalog, tenants: Tenants, without: int) -> list[Worker]:
    return [
        worker
        for worker in catalog
        if worker.key.tenant_id in tenants
        and worker.worker_id != without
        and catalog.is_registered(worker.worker_id)
    ]
