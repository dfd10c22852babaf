"""Reservations that are made exactly once, however many attempts are needed.

The client names the reservation. After a lost answer the client sends the same name again, marked
as a repeat, and a selector that has the reservation returns it. An older selector refuses the name
with 409; the client then reads the reservation. When the caller gives up, the client frees the
reservation at every selector that may have made it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from msgspec import UnsetType

from select_service.client.client_core import ClientCore, decode_answer
from select_service.client.errors import Refused, SelectorError, Unavailable
from select_service.client.retrying_caller import ATTEMPT_S_MIN, PAUSE_S_MIN, Call
from select_service.client.route_table import (
    RESERVE,
    SELECT_AND_RESERVE,
    SELECT_PAIR_AND_RESERVE,
    ClientRoute,
    RouteCall,
    SelectorRoutes,
)
from select_service.client.transport import ClientResponse
from select_service.schemas.pairs import PairSelection
from select_service.schemas.reservations import Reservation, ReservationRow
from select_service.schemas.selection import Overlap, Selection
from select_service.schemas.workers import WorkerRecord

A = TypeVar("A")
N = TypeVar("N", str, int)


class MadeReservation(NamedTuple):
    """A reservation and the other selectors that may hold a copy.

    url: selector that confirmed the reservation
    doubtful: URLs of selectors with a lost answer
    pair: both legs of a pair, with the selection as decode leg; None means one rank
    """

    selection: Selection
    reservation_id: str
    url: str
    uncertain: tuple[str, ...]
    pair: PairSelection | None = None


def new_reservation_id() -> str:
    return uuid4().hex


async def select_and_reserve(
    link: ClientCore, fields: dict[str, Any], headers: dict[str, str], until: float
) -> MadeReservation:
    """Reserve a rank that a selector chooses.

    fields: fields of the body
    Raises SelectorError; whatever was reserved is then freed.
    """
    fields = _with_reservation_id(link, fields)
    call = _make_call(link, SELECT_AND_RESERVE, fields, headers, until)
    async with _freed_on_failure(link, call, fields["reservation_id"]):
        answer = await _answer_or_conflict(link, call)
        if answer is not None:
            selection = _decode_answer(SELECT_AND_RESERVE, call, answer)
        else:
            selection = _as_selection(*await _read_conflicting(link, call, fields))
    # The selector that confirmed is freed by the end of the lease anyway.
    doubtful = tuple(url for url in call.uncertain if url != call.url)
    return MadeReservation(selection, fields["reservation_id"], call.url, doubtful)


async def select_group(
    link: ClientCore, fields: dict[str, Any], headers: dict[str, str], until: float
) -> list[MadeReservation]:
    """Reserve `n` ranks for one prompt, all or none.

    fields: fields of the body, `n` included
    Raises SelectorError; whatever was reserved is then freed.
    """
    fields = _with_reservation_id(link, fields)
    n, first_id = fields["n"], fields["reservation_id"]
    names = [f"{first_id}-{i}" for i in range(n)] if n > 1 else [first_id]
    call = _make_call(link, SELECT_AND_RESERVE, fields, headers, until)
    async with contextlib.AsyncExitStack() as stack:
        # A selector of an older version knows no groups and reserves one rank under the first id.
        for name in {first_id, *names}:
            await stack.enter_async_context(_freed_on_failure(link, call, name))
        answer = await link.caller.call(call)
        first = _decode_answer(SELECT_AND_RESERVE, call, answer)
        more = [] if isinstance(first.more, UnsetType) else first.more
        if len(more) != n - 1:
            call.uncertain.append(call.url)
            raise SelectorError(f"{call.url} has no groups of reservations: update this selector")
    doubtful = tuple(url for url in call.uncertain if url != call.url)
    return [
        MadeReservation(each, name, call.url, doubtful)
        for each, name in zip([first, *more], names, strict=True)
    ]


async def select_pair(
    link: ClientCore, fields: dict[str, Any], headers: dict[str, str], until: float
) -> MadeReservation:
    """Reserve a pair that a selector chooses.

    Raises SelectorError; whatever was reserved is then freed.
    """
    has_name = fields.get("reservation_id") or fields.get("selection_id")
    while True:
        named = _with_reservation_id(link, fields)
        call = _make_call(link, SELECT_PAIR_AND_RESERVE, named, headers, until)
        try:
            async with _freed_on_failure(link, call, named["reservation_id"]):
                answer = await link.caller.call(call)
                pair = _decode_answer(SELECT_PAIR_AND_RESERVE, call, answer)
            break
        except Unavailable as error:
            # Selectors do not repeat the answer about a pair: reserve another under a new id.
            left_s = until - asyncio.get_running_loop().time() - PAUSE_S_MIN
            if has_name or not error.may_be_done or left_s < ATTEMPT_S_MIN:
                raise
            await asyncio.sleep(PAUSE_S_MIN)
    doubtful = tuple(url for url in call.uncertain if url != call.url)
    named_id = named["reservation_id"]
    return MadeReservation(selection_of_pair(pair), named_id, call.url, doubtful, pair)


def selection_of_pair(pair: PairSelection) -> Selection:
    """Return the decode leg of a pair as a selection."""
    decode = pair.legs[-1]
    return Selection(
        reservation_id=pair.reservation_id,
        model_name=pair.model_name,
        tenant_id=pair.tenant_id,
        routing_group=pair.routing_group,
        worker_id=decode.worker_id,
        dp_rank=decode.dp_rank,
        endpoint=decode.endpoint,
        block_size=pair.block_size,
        overlap=decode.overlap,
        effective_prefill_tokens=pair.effective_prefill_tokens,
    )


async def reserve(link: ClientCore, fields: dict[str, Any]) -> Reservation:
    """Reserve a rank that the caller chose.  Raises SelectorError."""
    fields = _with_reservation_id(link, fields)
    call = _make_call(link, RESERVE, fields, link.call_headers(), link.deadline_in())
    async with _freed_on_failure(link, call, fields["reservation_id"]):
        answer = await _answer_or_conflict(link, call)
        if answer is not None:
            return _decode_answer(RESERVE, call, answer)
        return _as_reservation(*await _read_conflicting(link, call, fields))


def _with_reservation_id(link: ClientCore, fields: dict[str, Any]) -> dict[str, Any]:
    # A selection id names the reservation, also at selectors of versions in which it does not.
    named = fields.get("reservation_id") or fields.get("selection_id") or new_reservation_id()
    return link.with_default_scope({**fields, "reservation_id": named})


def _make_call(
    link: ClientCore,
    route: ClientRoute[Any, Any],
    fields: dict[str, Any],
    headers: dict[str, str],
    until: float,
) -> Call:
    asked = link.make_request(route.method, RouteCall(route.path, fields), headers)
    return Call(asked, link.scope_of_fields(fields), route.repeats, until)


@contextlib.asynccontextmanager
async def _freed_on_failure(
    link: ClientCore, call: Call, reservation_id: str
) -> AsyncIterator[None]:
    """Free the reservation at all selectors that may have made it if the block raises."""
    try:
        yield
    # BaseException, because a cancellation leaves the reservation behind just as an error does.
    except BaseException:
        link.free_when_reachable(call.may_have_taken_effect(), reservation_id)
        raise


async def _answer_or_conflict(link: ClientCore, call: Call) -> ClientResponse | None:
    """Return the answer; None means that a repeat met a name in use.  Raises SelectorError."""
    try:
        return await link.caller.call(call)
    except Refused as refused:
        # 409 on a first attempt is a real conflict: another caller uses the name.
        if refused.status != 409 or not call.uncertain:
            raise
        call.uncertain.append(call.url)
        return None


def _decode_answer(route: ClientRoute[Any, A], call: Call, answer: ClientResponse) -> A:
    try:
        return decode_answer(route, answer)
    except SelectorError:
        call.uncertain.append(call.url)
        raise


async def _read_conflicting(
    link: ClientCore, call: Call, fields: Mapping[str, Any]
) -> tuple[ReservationRow, WorkerRecord]:
    """Read the reservation that a selector has under the refused name.  Raises SelectorError."""
    row = await _call_same_selector(
        link, call, SelectorRoutes.reservation, fields["reservation_id"]
    )
    tokens = fields.get("token_ids")
    # Names of callers may collide; the length of the prompt detects most foreign reservations.
    if tokens is not None and len(tokens) != row.isl_tokens:
        call.uncertain.clear()  # the reservation of another caller must not be freed
        raise Refused(
            409,
            "conflict",
            f"reservation {row.reservation_id} belongs to another prompt: use another id",
        )
    return row, await _call_same_selector(link, call, SelectorRoutes.worker, row.worker_id)


async def _call_same_selector(link: ClientCore, call: Call, route: ClientRoute[[N], A], of: N) -> A:
    asked = link.make_request("GET", route.make_call(of), dict(call.request.headers))
    there = Call(asked, call.scope, route.repeats, call.deadline, only_selector=call.url)
    return decode_answer(route, await link.caller.call(there))


def _as_reservation(row: ReservationRow, worker: WorkerRecord) -> Reservation:
    return Reservation(
        selection_id=row.reservation_id,
        reservation_id=row.reservation_id,
        model_name=row.model_name,
        tenant_id=row.tenant_id,
        routing_group=row.tenant_id,
        worker_id=row.worker_id,
        dp_rank=row.dp_rank,
        endpoint=worker.endpoint or "",
    )


def _as_selection(row: ReservationRow, worker: WorkerRecord) -> Selection:
    """Rebuild a selection from a reservation; the cached share is an upper bound.

    Selectors keep no decision with a reservation, so the tiers of the cached tokens are unknown.
    """
    cached = max(0, row.isl_tokens - row.prefill_tokens)
    return Selection(
        selection_id=row.reservation_id,
        reservation_id=row.reservation_id,
        isl_tokens=row.isl_tokens,
        model_name=row.model_name,
        tenant_id=row.tenant_id,
        routing_group=row.tenant_id,
        worker_id=row.worker_id,
        dp_rank=row.dp_rank,
        endpoint=worker.endpoint or "",
        block_size=worker.block_size or 0,
        overlap=Overlap(
            longest_matched=cached, gpu=cached, dp={row.dp_rank: cached}, cpu=cached, disk=cached
        ),
        effective_prefill_tokens=row.prefill_tokens,
    )
