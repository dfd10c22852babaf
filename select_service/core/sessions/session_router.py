"""Effect of a session on the choice of a rank, and the binding of sessions by bookings.

Hard, as in Dynamo: the request goes to the rank of the session and waits for room there like a
pinned request.  A request that excludes the rank is refused and the binding stays, since the
request is wrong.  Of simultaneous first requests of a session the first booking decides.

Soft: no rank is preferred or pinned.  The session only adds cache that no event shows: where the
index of the bound rank is incomplete, the rank counts as holding 0.8 of the last turn.  With exact
events this would only cost (1.02 of the mean time to the first token); without an index sessions
save more than half (docs/guides/sessions.md).
"""

from collections import Counter
from collections.abc import Container
from typing import NamedTuple

import msgspec

from indexer.index.slot_writer import SlotWriter
from select_service.base.errors import BadRequest
from select_service.core.array_types import Mask
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.reservation_view import ReservationView
from select_service.core.sessions.session_directory import SessionDirectory
from select_service.core.sessions.session_table import SessionBinding
from select_service.core.workers.rank_table import RankTable
from select_service.schemas.prompts import PinnedWorker
from select_service.schemas.selection import SelectRequest
from select_service.schemas.sessions import (
    SESSION_ID_BYTES_MAX,
    NotFollowedReason,
    SessionAnswer,
    SessionRank,
    is_session_id,
)

CONTEXT_SHARE = 0.8
"""Share of the last turn that the rank of a session counts as holding; 0.5 and 1 are worse."""
UNBOUND_REASONS = frozenset[NotFollowedReason](("pinned", "target", "table_full", "id_too_long"))
"""Reasons with which a booking leaves the session as it is."""
SHOWN_CHARS_MAX = 64
"""Characters of a session id in the text of an error."""


class SessionScope(NamedTuple):
    """Scope of a request: key, ranks, and tokens of an output block."""

    key: PartitionKey
    table: RankTable
    block_size: int


class SessionRoute(NamedTuple):
    """Session of a request.

    bound: binding at the time of the decision; None without a binding
    slot: slot of the bound rank; None if the rank is not registered or several would do
    reason: why another rank than the bound rank is chosen, if so
    is_pinned: whether the request was pinned to the bound rank
    floor: slot and tokens: cache that the slot counts as holding; None means no such knowledge
    """

    session_id: str
    is_hard: bool
    is_final: bool
    bound: SessionBinding | None = None
    slot: int | None = None
    reason: NotFollowedReason = "new"
    is_pinned: bool = False
    floor: tuple[int, int] | None = None


class SessionRouter:
    """Router of requests by session."""

    def __init__(self, directory: SessionDirectory, use_kv_events: bool) -> None:
        self.directory = directory
        self._use_kv_events = use_kv_events
        self.silent_ranks: Container[SlotWriter] = ()
        """Writers of ranks that have stopped sending events."""
        self.moves: Counter[NotFollowedReason] = Counter()
        """Bookings on another rank than the session's, by reason, without those by cost alone."""

    def check_session(self, request: SelectRequest) -> None:
        """Raise BadRequest for a session id that is too long.

        Without `--session-affinity-ttl-secs` Dynamo ignores sessions; here only ids that are too
        long to be kept are ignored, unless the request has an `affinity`.
        """
        if self.directory.settings.ttl_s is None and request.affinity is None:
            return
        name = _session_id_of(request)
        if name is not None and not is_session_id(name):
            raise BadRequest(
                f"session affinity ID must not exceed {SESSION_ID_BYTES_MAX} bytes: "
                f"`session_id` has {len(name.encode())}"
            )

    def find_route(
        self, request: SelectRequest, scope: SessionScope, isl_tokens: int, now: float
    ) -> SessionRoute | None:
        """Return the session of a request; None without a session."""
        name = _session_id_of(request)
        if name is None:
            return None
        settings, context = self.directory.settings, request.session_context
        is_final = context is not None and bool(context.session_final) and not settings.is_hard
        is_hard = settings.is_hard if request.affinity is None else request.affinity == "hard"
        route = SessionRoute(name, is_hard, is_final)
        if not is_session_id(name):
            return route._replace(reason="id_too_long")
        found = self.directory.find_session(scope.key, name, now)
        if found is not None:
            route = _add_binding(route, found.binding, scope.table)
        if request.affinity_target is not None:
            # An explicit target wins over the session and leaves the binding alone.
            return route._replace(reason="target")
        if request.pinned_worker is not None:
            return route._replace(reason="pinned")
        if is_hard:
            return route
        return route._replace(floor=self._find_floor(route, request, scope, isl_tokens, now))

    def _find_floor(
        self,
        route: SessionRoute,
        request: SelectRequest,
        scope: SessionScope,
        isl_tokens: int,
        now: float,
    ) -> tuple[int, int] | None:
        """Return the cache of the session's rank that events do not show."""
        bound, slot, context = route.bound, route.slot, request.session_context
        if bound is None and context is not None and context.parent_session_id is not None:
            # The prefix that a child shares with the parent was computed on the parent's rank.
            parent = self.directory.find_session(scope.key, context.parent_session_id, now)
            if parent is not None:
                bound = parent.binding
                slot = _slot_of(bound, scope.table)
        if bound is None or slot is None or not self.has_unseen_cache(scope.table, slot):
            return None
        tokens = int(CONTEXT_SHARE * min(bound.context_tokens, isl_tokens))
        return (slot, tokens) if tokens else None

    def has_unseen_cache(self, table: RankTable, slot: int) -> bool:
        """Return whether a rank may hold cache that the index does not show."""
        row = table.row_at(slot)
        registration = row.worker.registration
        cache = registration.kv_cache
        if cache is not None and (cache.unseen_tiers or cache.certainty == "at_most"):
            return True
        if row.writer in self.silent_ranks:
            return True
        has_events = self._use_kv_events and registration.index != "assumed"
        return not (has_events and row.worker.kv_endpoints().get(row.rank.dp_rank))

    def follow_route(
        self, route: SessionRoute, request: SelectRequest, allowed: Mask, table: RankTable
    ) -> tuple[SessionRoute, SelectRequest]:
        """Return the route and the request, pinned to the bound rank if the route is hard.

        allowed: bool[n_slots], the ranks that the request may use
        """
        slot = route.slot
        if route.reason in UNBOUND_REASONS or route.bound is None or slot is None:
            return route, request
        if not allowed[slot]:
            reason: NotFollowedReason = "not_allowed" if table.open_slots[slot] else "unavailable"
            return route._replace(reason=reason), request
        if not route.is_hard:
            return route._replace(reason="busy"), request
        rank = table.row_at(slot).rank
        pin = PinnedWorker(worker_id=rank.worker_id, dp_rank=rank.dp_rank)
        pinned = msgspec.structs.replace(request, pinned_worker=pin)
        return route._replace(is_pinned=True), pinned

    def check_conflict(self, route: SessionRoute) -> None:
        """Raise BadRequest for a booking that excludes the rank of a hard session."""
        if route.is_hard and route.reason == "not_allowed" and route.bound is not None:
            name = route.session_id[:SHOWN_CHARS_MAX]
            raise BadRequest(
                f"session {name} is bound to worker {route.bound.worker_id}, which this request "
                "does not allow: leave its constraints out, or end the session"
            )

    def check_replay(self, route: SessionRoute, slot: int) -> None:
        """Raise BadRequest for a selection on another rank than the hard session's."""
        is_bound = route.slot is not None and route.reason not in UNBOUND_REASONS
        if route.is_hard and route.bound is not None and is_bound and slot != route.slot:
            raise BadRequest(
                f"session {route.session_id[:SHOWN_CHARS_MAX]} is bound to worker "
                f"{route.bound.worker_id}, the selection is for another rank: select again"
            )

    def answer_route(self, route: SessionRoute, slot: int, eligible: Mask) -> SessionAnswer:
        """Return the answer about a session.

        slot: chosen slot
        eligible: bool[n_slots], ranks from which the slot was chosen
        """
        bound = route.bound
        place = None
        if bound is not None:
            place = SessionRank(worker_id=bound.worker_id, dp_rank=bound.dp_rank)
        if bound is not None and slot == route.slot:
            return SessionAnswer(bound=place, followed=True)
        reason = route.reason
        # So far "busy" only means that the request allows the rank; here the cost decided.
        if reason == "busy" and route.slot is not None and eligible[route.slot]:
            reason = "cost"
        return SessionAnswer(bound=place, followed=False, reason=reason)

    def bind_booking(
        self, route: SessionRoute, answer: SessionAnswer, booking: ReservationView, now: float
    ) -> None:
        """Bind the session of a new reservation to the booked rank; completes the answer."""
        if route.reason in UNBOUND_REASONS:
            return
        if not self.directory.book_turn(booking, route.session_id, route.is_final, now):
            answer.followed, answer.reason = False, "table_full"
        elif route.bound is not None and answer.reason not in (msgspec.UNSET, "cost"):
            self.moves[route.reason] += 1

    def note_slot(self, booking: ReservationView, table: RankTable) -> None:
        """Note the slot of a booked session, which lets the fast path follow the session."""
        self.directory.note_slot(booking, int(table.columns.version[booking.slot]))

    def bind_replay(self, route: SessionRoute, booking: ReservationView, now: float) -> None:
        """Bind the session of an earlier selection to the rank that was booked."""
        if route.reason not in UNBOUND_REASONS:
            self.directory.book_turn(booking, route.session_id, route.is_final, now)


def _session_id_of(request: SelectRequest) -> str | None:
    context = request.session_context
    return request.session_id if context is None else context.session_id


def leased_session_of(request: SelectRequest) -> str | None:
    """Return the session that a booking of the request leases; None without a session."""
    if request.session_id is None and request.session_context is None:
        return None
    name = _session_id_of(request)
    if name is None or request.pinned_worker is not None or request.affinity_target is not None:
        return None
    return name if is_session_id(name) else None


def _add_binding(route: SessionRoute, bound: SessionBinding, table: RankTable) -> SessionRoute:
    slot = _slot_of(bound, table)
    return route._replace(bound=bound, slot=slot, reason="gone" if slot is None else "busy")


def _slot_of(bound: SessionBinding, table: RankTable) -> int | None:
    """Return the slot of a bound rank; the first of the worker where any rank would do."""
    if bound.dp_rank is not None:
        return table.find_slot(Rank(bound.worker_id, bound.dp_rank))
    slots = table.slots_of(bound.worker_id)
    return slots[0] if slots else None
