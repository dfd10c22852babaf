"""Several reservations for one prompt in one request: all of them, or none."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from copy import copy
from time import perf_counter
from typing import TypeAlias

from starlette.requests import Request

from select_service.api.quota import count_booking
from select_service.api.service_context import ServiceContext, core_time
from select_service.base.cooperative import SLICE_S
from select_service.base.errors import InvalidBody, NotFound
from select_service.http.client_connection import ClientGone, connection_of
from select_service.schemas.common import ID_CHARS_MAX
from select_service.schemas.selection import SelectAndReserveRequest, Selection

ReserveOne: TypeAlias = Callable[[SelectAndReserveRequest], Awaitable[Selection]]
"""Function that makes one reservation and may wait in the queue."""


async def reserve_group(
    service: ServiceContext, request: Request, body: SelectAndReserveRequest, one: ReserveOne
) -> Selection:
    """Make the reservations of a group in turn and return the first with all others.

    Raises like a single reservation; what was reserved is then freed.
    """
    started_at = core_time()
    members, made, selections = split_group(body), _MadeReservations(service), []
    with ExitStack() as stack:
        stack.enter_context(made)
        counts = [stack.enter_context(ExitStack()) for _ in members]
        # The quotas of all members are checked before the first reservation.
        books = [
            count.enter_context(count_booking(service, request, member, member.booking_id))
            for count, member in zip(counts, members, strict=True)
        ]
        until = perf_counter() + SLICE_S
        for member, booked, count in zip(members, books, counts, strict=True):
            if perf_counter() > until:
                await asyncio.sleep(0)
                until = perf_counter() + SLICE_S
            if body.deadline_ms is not None:
                # One deadline for the whole group, also for members that wait after others.
                waited_ms = int(1000 * (core_time() - started_at))
                member.deadline_ms = max(0, body.deadline_ms - waited_ms)
            is_repeat = made.has_reservation(member.booking_id)
            selection = await one(member)
            reservation_id = str(selection.reservation_id)
            if not is_repeat:  # else an earlier request made it
                made.ids.append(reservation_id)
            booked(reservation_id)
            count.close()  # from now on the reservation itself is counted
            selections.append(selection)
        if connection_of(request).is_gone:
            raise ClientGone
        made.ids.clear()
    first, *first.more = selections
    return first


class _MadeReservations:
    """Reservations that are freed at the end of the context; none after success."""

    def __init__(self, service: ServiceContext) -> None:
        self._service = service
        self.ids: list[str] = []

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        for reservation_id in self.ids:
            with suppress(NotFound):  # it expired, or its worker has left
                self._service.selector.free_reservation(reservation_id, core_time())

    def has_reservation(self, reservation_id: str | None) -> bool:
        if reservation_id is None:
            return False
        return self._service.ledger.find_active(reservation_id) is not None


def split_group(body: SelectAndReserveRequest) -> list[SelectAndReserveRequest]:
    """Return the requests of the members of a group, each for one reservation.

    Raises InvalidBody for an id that is too long with its end.
    """
    members = []
    for i in range(body.n):
        member = copy(body)
        member.n = 1
        if body.reservation_id is not None:
            member.reservation_id = f"{body.reservation_id}-{i}"
        if body.selection_id is not None:
            member.selection_id = f"{body.selection_id}-{i}"
        members.append(member)
    for given in (members[-1].reservation_id, members[-1].selection_id):
        if given is not None and len(given) > ID_CHARS_MAX:
            raise InvalidBody(
                f"reservation_id: with `-{body.n - 1}` at its end it has {len(given)} characters, "
                f"more than {ID_CHARS_MAX}; give a shorter id"
            )
    return members
