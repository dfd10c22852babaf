"""Endpoints of migrations: clients learn that reservations moved, and confirm the move."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from select_service.api import request_parameters
from select_service.api.example_values import EXAMPLE_RANK
from select_service.api.process_limits import request_holder
from select_service.api.request_parameters import parse_number
from select_service.api.service_context import ServiceContext, core_time, request_grant
from select_service.auth.guard import Grant
from select_service.auth.roles import CALLER, OPERATOR, tenant_scoped
from select_service.base.errors import (
    BadRequest,
    CapacityExceeded,
    HealthChecksOff,
    NotFound,
    ShuttingDown,
)
from select_service.core.identity import Rank
from select_service.http.body_codec import json_response
from select_service.http.bounded_stream import BoundedStream
from select_service.http.client_connection import ClientConnection, ClientGone, connection_of
from select_service.http.endpoint import (
    BODY_ERRORS,
    BodySpec,
    EndpointGroup,
    HeaderParameter,
    QueryParameter,
    ResponseSpec,
    RouteSpec,
)
from select_service.schemas.common import U64, U64_MAX
from select_service.schemas.migrations import (
    Confirmation,
    Done,
    MigratedRequest,
    MigrationEvent,
    MigrationPage,
    MovedFrom,
    MovedTo,
)

if TYPE_CHECKING:
    from select_service.core.health.migration.migrator import Migrator
    from select_service.core.health.migration.move_log import MoveEvent, MovePage

PAGE_EVENTS_MAX = 1000
"""Most events of one response, and of one step of a stream."""
TIMEOUT_MS_MAX = 60_000
"""Longest wait for an event, milliseconds."""
HEARTBEAT_S = 15.0
"""Seconds without an event after which a stream sends a comment as a heartbeat."""
LAST_EVENT_ID = "last-event-id"

_TO = {**EXAMPLE_RANK, "endpoint": "http://worker-1:8000"}
_EVENT: Mapping[str, Any] = {
    "seq": 17,
    "reservation_id": "request-123",
    "from": {"worker_id": 2, "dp_rank": 0},
    "to": _TO,
    "method": "reprefill",
    "estimated_ms": 38.4,
    "cause": "connect",
    "lockstep": True,
}
_AFTER = QueryParameter("after", U64, "Only events with higher numbers.", 0)
_TIMEOUT = QueryParameter(
    "timeout_ms",
    Annotated[int, Meta(ge=0, le=TIMEOUT_MS_MAX)],
    "Longest wait for an event if there is none yet, milliseconds.",
    0,
)

MIGRATIONS = EndpointGroup(
    "migrations", "Reservations moved off unhealthy or draining ranks, with `--health-checks on`."
)


def require_mover(service: ServiceContext) -> "Migrator":
    """Return the component that migrates reservations.  Raises HealthChecksOff."""
    mover = service.mover
    if mover is None:
        raise HealthChecksOff
    return mover


@MIGRATIONS.declare_route(
    RouteSpec(
        "GET",
        "/migrations",
        "list_migrations",
        "List migrations, waiting for new ones",
        {200: ResponseSpec("Events.", MigrationPage, {"events": [_EVENT], "next": 17})},
        may_call=tenant_scoped(CALLER, OPERATOR),
        detail="For later events, repeat the request with `after` set to `next`. Events are kept "
        "for 10 minutes, 65,536 at most.",
        query=(_AFTER, _TIMEOUT),
        refusals=(BadRequest, HealthChecksOff, CapacityExceeded, ShuttingDown),
    )
)
async def list_migrations(
    service: ServiceContext, request: Request, query: Mapping[str, str]
) -> Response:
    mover = require_mover(service)
    after = parse_number(query, "after", 0, U64_MAX) or 0
    timeout_ms = parse_number(query, "timeout_ms", 0, TIMEOUT_MS_MAX) or 0
    page = mover.move_log.events_after(after, PAGE_EVENTS_MAX)
    if not page.events and not page.gap and timeout_ms:
        await _wait_for_migration(service, request, mover, timeout_ms / 1000.0)
        page = mover.move_log.events_after(after, PAGE_EVENTS_MAX)
    return json_response(_page_view(service, request_grant(request), page))


async def _wait_for_migration(
    service: ServiceContext, request: Request, mover: "Migrator", timeout_s: float
) -> None:
    """Wait for the next migration.  Raises ClientGone, CapacityExceeded, ShuttingDown."""
    over, connection = asyncio.Event(), connection_of(request)
    limit, holder = service.limits.migration_waiters, request_holder(request)
    limit.take(holder)
    connection.on_disconnect(over.set)
    mover.add_watcher(over.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await over.wait()
    except asyncio.CancelledError:
        raise ShuttingDown("the service is shutting down") from None
    finally:
        mover.remove_watcher(over.set)
        connection.clear_on_disconnect()
        limit.give_back(holder)
    if connection.is_gone:
        raise ClientGone


@MIGRATIONS.declare_route(
    RouteSpec(
        "GET",
        "/migrations/stream",
        "stream_migrations",
        "Stream migrations as server-sent events",
        {
            200: ResponseSpec(
                "Events until the client disconnects.", None, media_type="text/event-stream"
            )
        },
        may_call=tenant_scoped(CALLER, OPERATOR),
        detail="Each event `migration` has the form of the events of `/migrations`, with the "
        "number as its id. An event `gap` means that earlier events are no longer kept. The stream "
        "begins after `Last-Event-ID` or `after`, by default with the next migration.",
        query=(_AFTER._replace(default=None),),
        headers=(HeaderParameter(LAST_EVENT_ID, "Number of the last event read."),),
        refusals=(BadRequest, HealthChecksOff, CapacityExceeded),
    )
)
async def stream_migrations(
    service: ServiceContext, request: Request, query: Mapping[str, str]
) -> Response:
    mover = require_mover(service)
    after = parse_number(query, "after", 0, U64_MAX)
    last = request.headers.get(LAST_EVENT_ID)
    if last:
        after = parse_number({LAST_EVENT_ID: last}, LAST_EVENT_ID, 0, U64_MAX)
    if request.method == "HEAD":
        return Response(media_type="text/event-stream")  # the body of GET would never end
    begin = mover.move_log.next_number - 1 if after is None else after
    events = _stream_events(service, request_grant(request), mover, begin, connection_of(request))
    headers = {"cache-control": "no-store"}
    limit, holder = service.limits.migration_waiters, request_holder(request)
    return BoundedStream(limit, holder, events, headers, "text/event-stream")


async def _stream_events(
    service: ServiceContext,
    grant: Grant,
    mover: "Migrator",
    after: int,
    connection: ClientConnection,
) -> AsyncIterator[bytes]:
    """Yield server-sent events until the service ends or the client's key is no longer valid.

    Nothing is buffered for slow clients: unread events exist only in `MoveLog`.
    A half-closed connection gets a heartbeat at once: the write fails if the client is gone.
    """
    moved = asyncio.Event()
    mover.add_watcher(moved.set)
    connection.on_input_end(moved.set)
    has_checked = False
    try:
        yield b": begin\n\n"
        while not mover.is_ending and service.guard.is_current(grant):
            # Clear before reading: an event that arrives after the read sets the flag again.
            moved.clear()
            page = mover.move_log.events_after(after, PAGE_EVENTS_MAX)
            if page.gap:
                yield b'event: gap\ndata: {"next":%d}\n\n' % page.next
            seen = [event for event in page.events if grant.can_see_tenant(event.tenant_id)]
            if seen:
                yield b"".join(_format_event(_event_view(service, event)) for event in seen)
            if page.events or page.gap:
                after = page.next
                continue
            if connection.is_half_closed and not has_checked:
                has_checked = True
                yield b": alive\n\n"
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await moved.wait()
            except TimeoutError:
                yield b": alive\n\n"
    finally:
        mover.remove_watcher(moved.set)


def _format_event(event: MigrationEvent) -> bytes:
    return b"id: %d\nevent: migration\ndata: %s\n\n" % (event.seq, msgspec.json.encode(event))


@MIGRATIONS.declare_route(
    RouteSpec(
        "POST",
        "/reservations/{reservation_id}/migrated",
        "confirm_migration",
        "Confirm the migration of a reservation",
        {
            200: ResponseSpec(
                "Next step.", Confirmation, {"method": "reprefill", "migrated_to": _TO}
            )
        },
        may_call=tenant_scoped(CALLER),
        detail="Call this when the request continues on its new rank, after the first token. The "
        "call renews the reservation and releases the prefill load of a prompt that was computed "
        "again. `ok: false` turns a transfer into a `reprefill` on the same rank, to be confirmed "
        "again.",
        in_path=request_parameters.RESERVATION_ID,
        body=BodySpec(
            MigratedRequest,
            {"done": {"ok": True, "took_ms": 41.5}, "failed": {"ok": False}},
        ),
        refusals=(*BODY_ERRORS, NotFound, HealthChecksOff),
    )
)
async def confirm_migration(
    service: ServiceContext, request: Request, reservation_id: str, body: MigratedRequest
) -> Response:
    confirmed = require_mover(service).confirm_move(
        reservation_id, body.ok, body.took_ms, core_time()
    )
    target = confirmed.event.target
    assert target is not None
    method = cast(Literal["transfer", "reprefill"], confirmed.method.value)
    return json_response(
        Confirmation(method=method, migrated_to=_target_view(service, target, confirmed.event.leg))
    )


def lifecycle_response(service: ServiceContext, reservation_id: str) -> Done:
    """Return the response of a lifecycle call; call this before freeing the reservation."""
    mover = service.mover
    # Clients that poll neither list nor stream learn of a migration from their next call.
    event = None if mover is None else mover.find_unconfirmed_move(reservation_id)
    done = Done()
    if event is not None and event.target is not None:
        done.migrated_to = _target_view(service, event.target, event.leg)
    if reservation_id in service.selector.pairs.book.lost_legs:
        done.lost_leg = "prefill"
    return done


def _page_view(service: ServiceContext, grant: Grant, page: "MovePage") -> MigrationPage:
    """Return the events visible to the grant."""
    seen = [event for event in page.events if grant.can_see_tenant(event.tenant_id)]
    return MigrationPage(
        events=[_event_view(service, event) for event in seen],
        next=page.next,
        gap=page.gap or msgspec.UNSET,
    )


def _event_view(service: ServiceContext, event: "MoveEvent") -> MigrationEvent:
    source, target = event.source, event.target
    return MigrationEvent(
        seq=event.seq,
        reservation_id=event.reservation_id,
        source=MovedFrom(worker_id=source.worker_id, dp_rank=source.dp_rank),
        target=None if target is None else _target_view(service, target, event.leg),
        method=event.method.value,
        estimated_ms=event.estimated_ms,
        cause=event.cause.value,
        lockstep=event.lockstep,
        leg=event.leg or msgspec.UNSET,
    )


def _target_view(
    service: ServiceContext, rank: Rank, leg: Literal["prefill", "decode"] | None = None
) -> MovedTo:
    worker = service.fleet.catalog.find_worker(rank.worker_id)
    endpoint = None if worker is None else worker.registration.endpoint
    return MovedTo(
        worker_id=rank.worker_id,
        dp_rank=rank.dp_rank,
        endpoint=endpoint or "",
        leg=leg or msgspec.UNSET,
    )
