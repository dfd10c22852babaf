"""Reservations that have moved to other ranks: how callers learn of it, and confirm it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from select_service.access.guard import Grant
from select_service.access.roles import CALLER, OPERATOR, within_tenants
from select_service.api import parameters
from select_service.api.limits import holder_of
from select_service.api.parameters import query_number
from select_service.api.samples import RANK
from select_service.api.service import Service, grant_of, now
from select_service.bodies.common import U64, U64_MAX
from select_service.bodies.migrations import (
    Confirmation,
    Done,
    MigratedRequest,
    MigrationEvent,
    MigrationPage,
    MovedFrom,
    MovedTo,
)
from select_service.core.identity import Rank
from select_service.errors import BadRequest, CapacityExceeded, HealthOff, NotFound, ShuttingDown
from select_service.http.codec import json_response
from select_service.http.connection import ClientGone, Connection, connection_of
from select_service.http.endpoint import (
    WITH_BODY,
    Answer,
    Body,
    HeaderParameter,
    Noun,
    QueryParameter,
    Route,
)
from select_service.http.streams import BoundedStream

if TYPE_CHECKING:
    from select_service.core.health.moves import MoveEvent, MovePage
    from select_service.core.moving.mover import Mover

PAGE_EVENTS_MAX = 1000
"""Events of one answer, and of one step of a stream."""
TIMEOUT_MS_MAX = 60_000
"""How long a call may wait for an event."""
HEARTBEAT_S = 15.0
"""After so long without an event a stream says that it is alive."""
LAST_EVENT_ID = "last-event-id"

_TO = {**RANK, "endpoint": "http://worker-1:8000"}
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
    "How long to wait for an event if there is none yet.",
    0,
)

MIGRATIONS = Noun(
    "migrations", "Reservations that left a rank that is not fit. All needs `--health-checks on`."
)


def mover_of(service: Service) -> "Mover":
    """Raises HealthOff."""
    mover = service.selector.mover
    if mover is None:
        raise HealthOff
    return mover


@MIGRATIONS.declare(
    Route(
        "GET",
        "/migrations",
        "list_migrations",
        "Which reservations have moved, as soon as they do",
        {200: Answer("Events.", MigrationPage, {"events": [_EVENT], "next": 17})},
        may_call=within_tenants(CALLER, OPERATOR),
        detail="Ask again with `after` set to `next`. Events are kept for 10 minutes, 65,536 at "
        "most.",
        query=(_AFTER, _TIMEOUT),
        refusals=(BadRequest, HealthOff, CapacityExceeded, ShuttingDown),
    )
)
async def listing(service: Service, request: Request, query: Mapping[str, str]) -> Response:
    mover = mover_of(service)
    after = query_number(query, "after", 0, U64_MAX) or 0
    timeout_ms = query_number(query, "timeout_ms", 0, TIMEOUT_MS_MAX) or 0
    page = mover.moves.after(after, PAGE_EVENTS_MAX)
    if not page.events and not page.gap and timeout_ms:
        await _wait(service, request, mover, timeout_ms / 1000.0)
        page = mover.moves.after(after, PAGE_EVENTS_MAX)
    return json_response(_page(service, grant_of(request), page))


async def _wait(service: Service, request: Request, mover: "Mover", timeout_s: float) -> None:
    """Until something moves.  Raises ClientGone, CapacityExceeded, ShuttingDown."""
    over, connection = asyncio.Event(), connection_of(request)
    limit, holder = service.limits.migration_waiters, holder_of(request)
    limit.take(holder)
    connection.tell(over.set)
    mover.watch(over.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await over.wait()
    except asyncio.CancelledError:
        raise ShuttingDown("the service is ending") from None
    finally:
        mover.unwatch(over.set)
        connection.forget()
        limit.give_back(holder)
    if connection.gone:
        raise ClientGone


@MIGRATIONS.declare(
    Route(
        "GET",
        "/migrations/stream",
        "stream_migrations",
        "Which reservations have moved, as server-sent events",
        {200: Answer("Events until the client leaves.", None, media_type="text/event-stream")},
        may_call=within_tenants(CALLER, OPERATOR),
        detail="Each is an event `migration` whose id is its number, in the form of those of "
        "`/migrations`; `gap` says that some are not kept any more. The stream begins behind "
        "`Last-Event-ID` or `after`, else with what moves from now on.",
        query=(_AFTER._replace(default=None),),
        headers=(HeaderParameter(LAST_EVENT_ID, "Number of the last event that was read."),),
        refusals=(BadRequest, HealthOff, CapacityExceeded),
    )
)
async def stream(service: Service, request: Request, query: Mapping[str, str]) -> Response:
    mover = mover_of(service)
    after = query_number(query, "after", 0, U64_MAX)
    last = request.headers.get(LAST_EVENT_ID)
    if last:
        after = query_number({LAST_EVENT_ID: last}, LAST_EVENT_ID, 0, U64_MAX)
    if request.method == "HEAD":
        return Response(media_type="text/event-stream")  # what follows has no end
    begin = mover.moves.next - 1 if after is None else after
    events = _events(service, grant_of(request), mover, begin, connection_of(request))
    headers = {"cache-control": "no-store"}
    limit, holder = service.limits.migration_waiters, holder_of(request)
    return BoundedStream(limit, holder, events, headers, "text/event-stream")


async def _events(
    service: Service, grant: Grant, mover: "Mover", after: int, connection: Connection
) -> AsyncIterator[bytes]:
    """Pieces of a stream; what a slow client has not read is nowhere but in `Moves`.

    A client that sends nothing more gets a heartbeat at once: if it has gone, that fails.

    It ends when the key of the client does not count any more.
    """
    moved = asyncio.Event()
    mover.watch(moved.set)
    connection.tell_of_end(moved.set)
    has_checked = False
    try:
        yield b": begin\n\n"
        while not mover.is_ending and service.guard.stands(grant):
            moved.clear()
            page = mover.moves.after(after, PAGE_EVENTS_MAX)
            if page.gap:
                yield b'event: gap\ndata: {"next":%d}\n\n' % page.next
            seen = [event for event in page.events if grant.sees(event.tenant_id)]
            if seen:
                yield b"".join(_written(_event(service, event)) for event in seen)
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
        mover.unwatch(moved.set)


def _written(event: MigrationEvent) -> bytes:
    return b"id: %d\nevent: migration\ndata: %s\n\n" % (event.seq, msgspec.json.encode(event))


@MIGRATIONS.declare(
    Route(
        "POST",
        "/reservations/{reservation_id}/migrated",
        "confirm_migration",
        "Say how the move of a reservation went",
        {200: Answer("How it goes on.", Confirmation, {"method": "reprefill", "migrated_to": _TO})},
        may_call=within_tenants(CALLER),
        detail="Call it when the request goes on at its new rank, after the first token: it renews "
        "the lease, and gives back the prefill load of a prompt that was computed again. `ok: "
        "false` of a transfer makes it a `reprefill` on the same rank, to be confirmed again.",
        in_path=parameters.RESERVATION_ID,
        body=Body(
            MigratedRequest,
            {"done": {"ok": True, "took_ms": 41.5}, "failed": {"ok": False}},
        ),
        refusals=(*WITH_BODY, NotFound, HealthOff),
    )
)
async def migrated(
    service: Service, request: Request, reservation_id: str, body: MigratedRequest
) -> Response:
    confirmed = mover_of(service).confirmed(reservation_id, body.ok, body.took_ms, now())
    target = confirmed.event.target
    assert target is not None
    method = cast(Literal["transfer", "reprefill"], confirmed.method.value)
    return json_response(Confirmation(method=method, migrated_to=_moved_to(service, target)))


def done(service: Service, reservation_id: str) -> Done:
    """The answer of a lifecycle call, to be made before the reservation is freed."""
    mover = service.selector.mover
    event = None if mover is None else mover.moved(reservation_id)
    if event is None or event.target is None:
        return Done()
    return Done(migrated_to=_moved_to(service, event.target))


def _page(service: Service, grant: Grant, page: "MovePage") -> MigrationPage:
    seen = [event for event in page.events if grant.sees(event.tenant_id)]
    return MigrationPage(
        events=[_event(service, event) for event in seen],
        next=page.next,
        gap=page.gap or msgspec.UNSET,
    )


def _event(service: Service, event: "MoveEvent") -> MigrationEvent:
    source, target = event.source, event.target
    return MigrationEvent(
        seq=event.seq,
        reservation_id=event.reservation_id,
        source=MovedFrom(worker_id=source.worker_id, dp_rank=source.dp_rank),
        target=None if target is None else _moved_to(service, target),
        method=event.method.value,
        estimated_ms=event.estimated_ms,
        cause=event.cause.value,
        lockstep=event.lockstep,
    )


def _moved_to(service: Service, rank: Rank) -> MovedTo:
    worker = service.selector.fleet.catalog.find(rank.worker_id)
    endpoint = None if worker is None else worker.given.endpoint
    return MovedTo(worker_id=rank.worker_id, dp_rank=rank.dp_rank, endpoint=endpoint or "")
