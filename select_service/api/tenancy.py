"""A key that is bound to tenants keeps within them: what is asked of every request with such a key.

A tenant that is named and not the key's is refused, 403.  An id of somebody else is answered as one
that there is not, 404.  Lists leave out what is somebody else's, which their handlers see to.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import UNSET, Struct
from starlette.requests import Request

from select_service.access.guard import Grant
from select_service.api import parameters
from select_service.api.service import Service, grant_of
from select_service.bodies.common import tenant_of
from select_service.bodies.workers import WorkerRecord, WorkerRegistration
from select_service.errors import Conflict, Forbidden, NotFound
from select_service.http.endpoint import Route
from select_service.spelling import shown


class _OfTenant(Protocol):
    @property
    def tenant_id(self) -> str: ...


T = TypeVar("T", bound=_OfTenant)


def keep_within(service: Service, grant: Grant, route: Route, arguments: Sequence[Any]) -> None:
    """Of a key that is bound.  arguments: of the handler.  Raises Forbidden, NotFound, Conflict."""
    if route.in_path is parameters.WORKER_ID:
        check_worker(service, grant, arguments[0])
    elif route.in_path is parameters.RESERVATION_ID:
        check_reservation(service, grant, arguments[0])
    for argument in arguments:
        if isinstance(argument, Struct):
            _check_body(service, grant, argument)
        elif isinstance(argument, Mapping):
            _, tenant_id = parameters.scope_filter(argument)
            if tenant_id is not None:
                check_tenant(grant, tenant_id)


def check_tenant(grant: Grant, tenant_id: str) -> None:
    """Raises Forbidden."""
    if not grant.sees(tenant_id):
        raise Forbidden(f"the key `{grant.name}` is not for the tenant `{shown(tenant_id)}`")


def check_worker(service: Service, grant: Grant, worker_id: int) -> None:
    """Raises NotFound for a worker of somebody else."""
    worker = service.selector.fleet.catalog.find(worker_id)
    if worker is not None and not grant.sees(worker.key.tenant_id):
        raise NotFound(f"worker {worker_id} not found")


def check_reservation(service: Service, grant: Grant, reservation_id: str) -> None:
    """Raises NotFound for a reservation of somebody else."""
    booking = service.selector.held.find(reservation_id)
    if booking is not None and not grant.sees(booking.key.tenant_id):
        raise NotFound(f"reservation {reservation_id} not found")


def check_registration(service: Service, grant: Grant, worker_id: int) -> None:
    """Raises Conflict where the id is that of somebody else's worker: ids are of all tenants."""
    try:
        check_worker(service, grant, worker_id)
    except NotFound:
        raise Conflict(f"the worker id {worker_id} is in use; take another") from None


def seen(request: Request, rows: Iterable[T | None]) -> Iterator[T | None]:
    """The rows that the caller may see; None for the others, too."""
    grant = grant_of(request)
    return (row if row is not None and grant.sees(row.tenant_id) else None for row in rows)


def without_hints(grant: Grant, record: WorkerRecord) -> WorkerRecord:
    """Of a key that is bound: hints may speak of workers of other tenants."""
    if grant.tenants is not None:
        record.hints = UNSET
    return record


def _check_body(service: Service, grant: Grant, body: Struct) -> None:
    """Raises Forbidden, Conflict."""
    given = getattr(body, "tenant_id", None), getattr(body, "routing_group", None)
    if given != (None, None):
        check_tenant(grant, tenant_of(*(None if name is UNSET else name for name in given)))
    if isinstance(body, WorkerRegistration):
        check_registration(service, grant, body.worker_id)
