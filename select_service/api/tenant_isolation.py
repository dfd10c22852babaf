"""Isolation of keys bound to tenants: checks on every request with such a key.

A request that names another tenant gets 403.  An id of another tenant gets 404, like an id that
does not exist.  Lists omit rows of other tenants; their handlers filter.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import UNSET, Struct
from starlette.requests import Request

from select_service.api import request_parameters
from select_service.api.service_context import ServiceContext, request_grant
from select_service.auth.guard import Grant
from select_service.base.errors import Conflict, Forbidden, NotFound
from select_service.base.suggestions import printable_name
from select_service.http.endpoint import RouteSpec
from select_service.schemas.common import resolve_tenant
from select_service.schemas.workers import WorkerRecord, WorkerRegistration


class _OfTenant(Protocol):
    @property
    def tenant_id(self) -> str: ...


T = TypeVar("T", bound=_OfTenant)


def check_request(
    service: ServiceContext, grant: Grant, route: RouteSpec, arguments: Sequence[Any]
) -> None:
    """Check a request with a bound key.  Raises Forbidden, NotFound, Conflict.

    arguments: arguments of the handler
    """
    if route.in_path is request_parameters.WORKER_ID:
        check_worker(service, grant, arguments[0])
    elif route.in_path is request_parameters.RESERVATION_ID:
        check_reservation(service, grant, arguments[0])
    for argument in arguments:
        if isinstance(argument, Struct):
            _check_body(service, grant, argument)
        elif isinstance(argument, Mapping):
            _, tenant_id = request_parameters.scope_filter(argument)
            if tenant_id is not None:
                check_tenant(grant, tenant_id)


def check_tenant(grant: Grant, tenant_id: str) -> None:
    """Raise Forbidden unless the key covers the tenant."""
    if not grant.can_see_tenant(tenant_id):
        raise Forbidden(
            f"the key `{grant.name}` is not valid for the tenant `{printable_name(tenant_id)}`"
        )


def check_worker(service: ServiceContext, grant: Grant, worker_id: int) -> None:
    """Raise NotFound for a worker of another tenant."""
    worker = service.fleet.catalog.find_worker(worker_id)
    if worker is not None and not grant.can_see_tenant(worker.key.tenant_id):
        raise NotFound(f"worker {worker_id} not found")


def check_reservation(service: ServiceContext, grant: Grant, reservation_id: str) -> None:
    """Raise NotFound for a reservation of another tenant."""
    booking = service.ledger.reservations.find_reservation(reservation_id)
    if booking is not None and not grant.can_see_tenant(booking.key.tenant_id):
        raise NotFound(f"reservation {reservation_id} not found")


def check_registration(service: ServiceContext, grant: Grant, worker_id: int) -> None:
    """Raise Conflict if the id belongs to another tenant's worker: ids are global."""
    try:
        check_worker(service, grant, worker_id)
    except NotFound:
        # The text must not disclose that the id belongs to another tenant.
        raise Conflict(f"the worker id {worker_id} is in use; choose another") from None


def visible_rows(request: Request, rows: Iterable[T | None]) -> Iterator[T | None]:
    """Yield the rows visible to the caller, and None for hidden rows."""
    grant = request_grant(request)
    return (
        row if row is not None and grant.can_see_tenant(row.tenant_id) else None for row in rows
    )


def hide_hints(grant: Grant, record: WorkerRecord) -> WorkerRecord:
    """Return the record without hints for bound keys: hints may mention workers of other
    tenants.
    """
    if grant.tenants is not None:
        record.hints = UNSET
    return record


def _check_body(service: ServiceContext, grant: Grant, body: Struct) -> None:
    """Check the tenant and the worker id of a body.  Raises Forbidden, Conflict."""
    given = getattr(body, "tenant_id", None), getattr(body, "routing_group", None)
    if given != (None, None):
        check_tenant(grant, resolve_tenant(*(None if name is UNSET else name for name in given)))
    if isinstance(body, WorkerRegistration):
        check_registration(service, grant, body.worker_id)
