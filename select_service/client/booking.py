"""A booking that is made once, however often it has to be asked for.

The client names it.  When an answer is lost the same name is sent again, and says so: a selector
that has the booking answers with it.  One that does not know such repeats refuses the name (409),
and is asked what it holds.  What may have been booked when the caller gives up is freed.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from select_service.bodies.reservations import Reservation, ReservationRow
from select_service.bodies.selection import Overlap, Selection
from select_service.bodies.workers import WorkerRecord
from select_service.client import routes
from select_service.client.calling import Call
from select_service.client.errors import Refused, SelectorError
from select_service.client.exchange import Answer
from select_service.client.link import Link, read
from select_service.client.routes import Route, Wanted

A = TypeVar("A")
N = TypeVar("N", str, int)


class Booked(NamedTuple):
    """A booking, and who may have it besides the selector that said so."""

    selection: Selection
    reservation_id: str
    url: str
    doubtful: tuple[str, ...]


def made_up_id() -> str:
    return uuid4().hex


async def select_and_reserve(
    link: Link, fields: dict[str, Any], headers: dict[str, str], until: float
) -> Booked:
    """fields: of the body.  Raises SelectorError, and then whatever is booked is freed."""
    fields = _named(link, fields)
    call = _call(link, routes.SELECT_AND_RESERVE, fields, headers, until)
    async with _given_up(link, call, fields["reservation_id"]):
        answer = await _answer(link, call)
        if answer is not None:
            selection = _read(routes.SELECT_AND_RESERVE, call, answer)
        else:
            selection = _as_selection(*await _held(link, call, fields))
    doubtful = tuple(url for url in call.doubtful if url != call.url)
    return Booked(selection, fields["reservation_id"], call.url, doubtful)


async def reserve(link: Link, fields: dict[str, Any]) -> Reservation:
    """The same on a rank that the caller chose."""
    fields = _named(link, fields)
    call = _call(link, routes.RESERVE, fields, link.headers(), link.until())
    async with _given_up(link, call, fields["reservation_id"]):
        answer = await _answer(link, call)
        if answer is not None:
            return _read(routes.RESERVE, call, answer)
        return _as_reservation(*await _held(link, call, fields))


def _named(link: Link, fields: dict[str, Any]) -> dict[str, Any]:
    return link.scoped({**fields, "reservation_id": fields.get("reservation_id") or made_up_id()})


def _call(
    link: Link,
    route: Route[Any, Any],
    fields: dict[str, Any],
    headers: dict[str, str],
    until: float,
) -> Call:
    asked = link.asked(route.method, Wanted(route.path, fields), headers)
    return Call(asked, link.scope_in(fields), route.repeats, until)


@contextlib.asynccontextmanager
async def _given_up(link: Link, call: Call, reservation_id: str) -> AsyncIterator[None]:
    """Whoever may have booked it when the block fails, or is cancelled, has to free it."""
    try:
        yield
    except BaseException:
        link.owe(call.may_have_done(), reservation_id)
        raise


async def _answer(link: Link, call: Call) -> Answer | None:
    """None: it was repeated, and the name is in use.  Raises SelectorError."""
    try:
        return await link.caller.call(call)
    except Refused as refused:
        if refused.status != 409 or not call.doubtful:
            raise
        call.doubtful.append(call.url)
        return None


def _read(route: Route[Any, A], call: Call, answer: Answer) -> A:
    try:
        return read(route, answer)
    except SelectorError:
        call.doubtful.append(call.url)
        raise


async def _held(
    link: Link, call: Call, fields: Mapping[str, Any]
) -> tuple[ReservationRow, WorkerRecord]:
    """What the selector holds under the name that it refused.  Raises SelectorError."""
    row = await _told(link, call, routes.RESERVATION, fields["reservation_id"])
    tokens = fields.get("token_ids")
    if tokens is not None and len(tokens) != row.isl_tokens:
        call.doubtful.clear()  # it is somebody else's, and not to be freed
        raise Refused(409, "conflict", f"reservation {row.reservation_id} is another prompt's")
    return row, await _told(link, call, routes.WORKER, row.worker_id)


async def _told(link: Link, call: Call, route: Route[[N], A], of: N) -> A:
    asked = link.asked("GET", route.want(of), dict(call.asked.headers))
    there = Call(asked, call.scope, route.repeats, call.until, only=call.url)
    return read(route, await link.caller.call(there))


def _as_reservation(row: ReservationRow, worker: WorkerRecord) -> Reservation:
    return Reservation(
        reservation_id=row.reservation_id,
        model_name=row.model_name,
        tenant_id=row.tenant_id,
        worker_id=row.worker_id,
        dp_rank=row.dp_rank,
        endpoint=worker.endpoint or "",
    )


def _as_selection(row: ReservationRow, worker: WorkerRecord) -> Selection:
    """The decision is not kept with a booking: what was cached is not known any more."""
    cached = max(0, row.isl_tokens - row.prefill_tokens)
    return Selection(
        reservation_id=row.reservation_id,
        model_name=row.model_name,
        tenant_id=row.tenant_id,
        worker_id=row.worker_id,
        dp_rank=row.dp_rank,
        endpoint=worker.endpoint or "",
        block_size=worker.block_size or 0,
        overlap=Overlap(
            longest_matched=cached, gpu=cached, dp={row.dp_rank: cached}, cpu=cached, disk=cached
        ),
        effective_prefill_tokens=row.prefill_tokens,
    )
