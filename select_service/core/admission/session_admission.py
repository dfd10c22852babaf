"""Requests that follow the rank of the session, or a preferred rank, through the gate."""

import msgspec
import numpy as np

from select_service.base.errors import BadRequest, SelectError
from select_service.core.admission.waiting_ticket import WaitingTicket, lane_of
from select_service.core.array_types import Mask
from select_service.core.decision_maker import DecisionMaker, PlacementRequest
from select_service.core.placement.candidates import find_candidates
from select_service.core.registry.fleet.partition import Partition
from select_service.schemas.pairs import (
    LegConstraints,
    SelectPairAndReserveRequest,
    SelectPairRequest,
)
from select_service.schemas.prompts import PinnedWorker
from select_service.schemas.selection import SelectRequest


def has_affinity(request: SelectRequest) -> bool:
    """Return whether a request has a session or a target."""
    return (
        request.session_id is not None
        or request.session_context is not None
        or request.affinity_target is not None
    )


def follow_session(
    job: PlacementRequest, decisions: DecisionMaker, allowed: Mask, now: float
) -> tuple[PlacementRequest, Mask]:
    """Return a request with its session, pinned if session or target require that; and its ranks.

    allowed: bool[n_slots], the ranks that the request may use, at least one set
    Raises BadRequest for a booking that excludes the rank of its session.
    """
    session = decisions.find_session(job.partition, job.prompt, job.request, now)
    job = job._replace(session=session)
    if job.request.affinity_target is not None:
        followed, there = _follow_target(job, allowed)
        # The target of a pair is the rank of its decode leg.
        return (followed, there) if job.pairs is None else (_bind_decode_leg(job, there), allowed)
    if session is None:
        return job, allowed
    sessions, table = decisions.sessions, job.partition.table
    route, request = sessions.follow_route(session, job.request, allowed, table)
    if job.reserves:
        sessions.check_conflict(route)
    job = job._replace(session=route, request=request)
    if not route.is_pinned:
        return job, allowed
    if job.pairs is not None:
        assert route.slot is not None
        request = _replace_fields(request, {"pinned_worker": None})
        there = table.mask_of(table.row_at(route.slot).rank.worker_id)
        return _bind_decode_leg(job._replace(request=request), there), allowed
    there = np.zeros(len(allowed), np.bool_)
    there[route.slot] = True
    return job, there


def _bind_decode_leg(job: PlacementRequest, there: Mask) -> PlacementRequest:
    """Return a request for a pair with its decode leg restricted to the workers of some slots."""
    table, request = job.partition.table, job.request
    assert isinstance(request, SelectPairRequest | SelectPairAndReserveRequest)
    given = None if request.decode is None else request.decode.allowed_worker_ids
    workers = {table.row_at(int(slot)).rank.worker_id for slot in np.flatnonzero(there)}
    if given is not None and not workers <= set(given):
        return job
    decode = LegConstraints(allowed_worker_ids=sorted(workers))
    return job._replace(request=_replace_fields(request, {"decode": decode}))


def _follow_target(job: PlacementRequest, allowed: Mask) -> tuple[PlacementRequest, Mask]:
    """Return a request restricted to its target, if that is an allowed rank."""
    request, target = job.request, job.request.affinity_target
    assert target is not None
    pinned, table = request.pinned_worker, job.partition.table
    if pinned is not None and pinned.worker_id != target.worker_id:
        raise BadRequest(f"pinned worker {pinned.worker_id} is not in allowed worker set")
    slots = [
        slot
        for slot in table.slots_of(target.worker_id)
        if allowed[slot] and target.dp_rank in (None, table.row_at(slot).rank.dp_rank)
    ]
    if not slots or pinned is not None:
        return job, allowed
    there = np.zeros(len(allowed), np.bool_)
    there[slots] = True
    rank = table.row_at(slots[0]).rank
    pin = PinnedWorker(worker_id=rank.worker_id, dp_rank=rank.dp_rank)
    # With several ranks of the worker the cheapest is chosen, as among allowed workers.
    changes: dict[str, object] = (
        {"pinned_worker": pin} if len(slots) == 1 else {"allowed_worker_ids": [target.worker_id]}
    )
    return job._replace(request=_replace_fields(request, changes)), there


def follow_session_again(ticket: WaitingTicket, decisions: DecisionMaker, now: float) -> None:
    """Look at the session of a waiting request again; another may have bound it meanwhile.

    Raises SelectError.
    """
    # A waiting pair keeps the decode leg of its session.
    if ticket.placement_request.session is None or ticket.pairs is not None:
        return
    job = _unpin_session(ticket.placement_request)
    allowed = find_candidates(job.partition.table, job.request)
    job, _ = follow_session(job, decisions, allowed, now)
    ticket.placement_request, ticket.request = job, job.request
    ticket.lane = lane_of(job.request)


def unpin_ticket(ticket: WaitingTicket, partition: Partition) -> bool:
    """Unpin a waiting request that its session had pinned to a rank that is gone.

    Return False for other requests, and if no rank is left.
    """
    job = _unpin_session(ticket.placement_request)
    if job is ticket.placement_request or job.session is None or job.pairs is not None:
        return False
    try:
        find_candidates(partition.table, job.request)
    except SelectError:
        return False
    session = job.session._replace(is_pinned=False, slot=None, reason="gone")
    ticket.placement_request = job._replace(session=session, partition=partition)
    ticket.request, ticket.lane = job.request, lane_of(job.request)
    return True


def _unpin_session(job: PlacementRequest) -> PlacementRequest:
    """Return a request as before the session pinned it."""
    if job.session is None or not job.session.is_pinned:
        return job
    return job._replace(request=_replace_fields(job.request, {"pinned_worker": None}))


def _replace_fields(request: SelectRequest, changes: dict[str, object]) -> SelectRequest:
    return msgspec.structs.replace(request, **changes)
