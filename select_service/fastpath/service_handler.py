"""Handler of the common requests of a service: one compiled call, and the steps it requests.

Requests the fast path cannot handle are declined before any state changes.
"""

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import ClassVar

import numpy as np

from select_service.core.array_types import Mask, store_pointer
from select_service.core.identity import PartitionKey
from select_service.core.load.reservations import Reservations
from select_service.core.placement.pending_selection_layout import KEY_AT
from select_service.core.placement.router_config import RouterConfig
from select_service.core.registry.fleet.partition import Partition
from select_service.core.selector import SelectorCore
from select_service.fastpath import serve_layout as layout
from select_service.fastpath.fastpath_counts import FastPathCounts
from select_service.fastpath.pair_answers import PairAnswers
from select_service.fastpath.parsing import request_layout as request
from select_service.fastpath.parsing.request_layout import NONE
from select_service.fastpath.partition_cache import PartitionCache
from select_service.fastpath.reservation_calls import ReservationCalls
from select_service.fastpath.serve_kernels import serve_request
from select_service.fastpath.serve_memory import ServeMemory
from select_service.http.request_head import Headers
from select_service.metrics.service_metrics import ServiceMetrics
from select_service.schemas.common import DEFAULT_NAME

_STATE_CHANGING = (layout.NEEDS_PAIR, layout.CORE_BOOKS, layout.CORE_CALLS, layout.NOTIFY_FOLLOWERS)
"""Results of the kernel that request a change, or follow one."""
_BOOKING_ROUTES = (request.SELECT_AND_RESERVE, request.RESERVE, request.SELECT_PAIR_AND_RESERVE)


class ServiceHandler:
    """`FastHandler` of a service.

    _generated_id: generated reservation id of the current request, and _draw: its random number
    """

    def __init__(
        self, selector: SelectorCore, metrics: ServiceMetrics, tenants: frozenset[str] | None = None
    ) -> None:
        """tenants: tenants served here; None means all"""
        decisions, reservations = selector.decisions, selector.ledger.reservations
        self.end, self._tenants, self._sums = 0, tenants, reservations.sums
        self._gate, self.draw_random = selector.gate, decisions.rng.random
        self._memory = ServeMemory()
        self._state = self.header = self._memory.header
        self._numbers = self._state.data
        self._partitions = PartitionCache(
            selector.fleet, reservations, self._state, decisions.sessions, tenants=tenants
        )
        self._counts = FastPathCounts(self._state, self._gate.tally, metrics)
        self._out = self._memory.out.data
        read = self._memory.blocks, self._memory.sequence, self._memory.tokens
        self._calls = ReservationCalls(selector, self._numbers, read)
        self._pairs = PairAnswers(selector, self._memory, self._partitions, self._calls)
        metrics.before_observing.append(self._counts.flush_to_metrics)
        self._pending = selector.replay.pending
        self._selection = self._memory.selection.data.cast("B")
        self._generated_id: str | None = None
        self._draw = 0.0
        self._new_reservation_id = decisions.new_reservation_id
        self._mover = None if selector.health is None else selector.health.mover
        if self._mover is not None:
            self._mover.add_watcher(self._pause_booking)
        self._pair_book = selector.pairs.book
        self._pair_book.loss_watchers.append(self._pause_booking)
        self._may_kernel_book = decisions.config.assume_kv_reuse
        self._busy_thresholds = decisions.busy_thresholds
        self._are_sessions_hard = decisions.sessions.directory.settings.is_hard
        self._state[layout.SESSIONS_ARE_HARD] = self._are_sessions_hard
        self._share_core_state(reservations, decisions.config)
        self.set_common_headers([])

    def _share_core_state(self, reservations: Reservations, router: RouterConfig) -> None:
        """Point the header to state shared with the core, and copy the settings."""
        state = self._state
        store_pointer(state, layout.GATE, self._gate.is_open_flag)
        store_pointer(state, layout.LEDGER, reservations.memory.header)
        store_pointer(state, layout.WAITS, self._gate.waiting.n_requests_array)
        store_pointer(state, layout.SUM_CHANGES, self._sums.changes)
        state[layout.IS_BOUND], state[layout.SUMS_SEEN] = self._tenants is not None, NONE
        state[layout.KERNEL_BOOKS] = self._may_kernel_book
        state[layout.KEEPS_SELECTIONS] = self._pending.is_on
        state[layout.COUNTS_PREFILL] = router.track_prefill_tokens
        state[layout.COUNTS_BLOCKS] = router.track_active_blocks
        threshold = self._busy_thresholds.decode
        state.view(np.float64)[layout.BUSY_BLOCKS] = np.nan if threshold is None else threshold
        state[layout.COUNTS_OUTPUT] = router.track_output_blocks and router.track_active_blocks

    @property
    def keeps_selections(self) -> bool:
        """Whether selections are kept for later bookings, which remove them."""
        return bool(self._pending.records)

    def set_common_headers(self, headers: Headers) -> None:
        """Set the headers that every response begins with from now on."""
        self._memory.set_common_headers(headers)
        self._partitions.refresh_cache()

    def restrict_hosts(self, hosts: Sequence[bytes]) -> None:
        """Give up requests for other hosts."""
        self._memory.restrict_hosts(hosts)

    def require_authorization(self, address: int, length: int) -> None:
        """Decline requests without this value of `authorization`, which the caller keeps alive."""
        numbers = self._numbers
        numbers[layout.NEEDS_KEY], numbers[layout.KEY], numbers[layout.KEY + 1] = 1, address, length

    @property
    def booked_row(self) -> int:
        """Ledger row of the reservation made by the last request; NONE if it made none."""
        route = self._numbers[request.ROUTE]
        return self._numbers[layout.CHANGED] if route in _BOOKING_ROUTES else NONE

    def answer_request(self, data: bytes, at: int, socket_fd: int = NONE) -> bytes | None:
        """See `FastHandler`."""
        # Drawn per request even if unused: the kernel cannot call Python's generator.
        draw = self.draw_random()
        end = serve_request(data, at, self._state, layout.READ, draw, socket_fd)
        return self.finish_request(end, data, at, draw, socket_fd)

    def finish_request(
        self, end: int, data: bytes, at: int, draw: float, socket_fd: int
    ) -> bytes | None:
        """Finish a request where the kernel left it; result as for `answer_request`.

        end: result of the kernel;  draw: the random number that it got
        """
        if end < 0:
            end = self._run_steps(end, data, at, draw, socket_fd)
        n_bytes = self._numbers[layout.SELECTION_BYTES]
        if n_bytes and end >= 0 and (n_bytes > 0 or self._pending.records):
            self._update_selections(n_bytes)
        if not end:
            self.end = len(data)
            return b""
        if end < 0:
            self.end = self._numbers[request.END] if end == layout.INCOMPLETE else 0
            return None
        self.end = self._numbers[request.END]
        # A copy: the next request overwrites OUT.
        return bytes(self._out[self._numbers[layout.BEGIN] : end])

    def _update_selections(self, n_bytes: int) -> None:
        """Keep the selection just answered, or remove the selection with the booked id.

        n_bytes: length of its record, or the negative length of its key
        """
        try:
            if n_bytes > 0:
                self._pending.put(bytes(self._selection[:n_bytes]))
            else:
                self._pending.discard(bytes(self._selection[KEY_AT : KEY_AT - n_bytes]))
        except MemoryError:
            # The answer may be sent already, so a lack of memory must not show: the selection is
            # then not kept, as after its expiry.
            pass

    def _run_steps(self, outcome: int, data: bytes, at: int, draw: float, socket_fd: int) -> int:
        """Carry out the steps the kernel requests and call it again, until there is a response or a
        refusal.

        Returns SENT, the end of the unsent response, INCOMPLETE or DECLINED.
        """
        self._generated_id, self._draw = None, draw
        while outcome < layout.INCOMPLETE:  # other than DECLINED
            try:
                resume_at = self._STEPS[outcome](self, data)
            except MemoryError:  # the ordinary path needs less memory, or reports that none is left
                if outcome in _STATE_CHANGING:
                    raise
                return layout.DECLINED
            if resume_at == layout.DECLINED:
                return resume_at
            outcome = serve_request(data, at, self._state, resume_at, draw, socket_fd)
        return outcome

    # Steps: each returns the step at which the kernel continues, or DECLINED.  See `_STEPS`.

    def _refresh_rows(self, data: bytes) -> int:
        """Drop the cached partitions: READ."""
        self._partitions.refresh_cache()
        return layout.READ

    def _refresh_sums(self, data: bytes) -> int:
        """Recompute which ledger sums belong to the tenants of the key: READ."""
        assert self._tenants is not None
        self._sums_of_tenants = self._sums.tenants_mask(self._tenants)
        store_pointer(self._state, layout.WITHIN, self._sums_of_tenants)
        self._state[layout.SUMS_SEEN] = self._sums.changes[0]
        return layout.READ

    def _add_partition(self, data: bytes) -> int:
        """Cache the requested partition, then admit: as `_admit_by_gate`."""
        if not self._partitions.add_partition(_key_in(data, self._numbers)):
            return layout.DECLINED
        return self._admit_by_gate(data)

    def _admit_by_gate(self, data: bytes) -> int:
        """Set the mask to the ranks the gate admits to at once: CONTINUE, CONTINUE_GATED or
        DECLINED.
        """
        route = self._numbers[request.ROUTE]
        if self._gate.is_open or route == request.RESERVE:
            return layout.CONTINUE
        if route >= request.SELECT_PAIR:
            return layout.DECLINED  # limits count for each leg
        # Without waiting requests and with a free rank the gate admits at once; everything else
        # queues.
        if self._has_unknown_class(data):
            return layout.DECLINED
        is_bound = self._are_sessions_hard and self._numbers[request.SESSION_ID] != NONE
        free = self._gate.ranks_without_waiting(self._current_partition(), is_bound)
        if free is None:
            return layout.DECLINED
        self._set_mask(free)
        return layout.CONTINUE_GATED

    def _render_template(self, data: bytes) -> int:
        """Render the response text of SLOT: TEXT_READY."""
        state = self._numbers
        templates = self._partitions.partition_at(state[layout.AT_ROW]).templates
        templates.render_template(state[layout.SLOT])
        return layout.TEXT_READY

    def _find_requested_rank(self, data: bytes) -> int:
        """Set SLOT and the mask to the rank named by the request: TEXT_READY or DECLINED."""
        partition = self._current_partition()
        slot = self._calls.requested_slot(partition)
        if slot is None:
            return layout.DECLINED
        self._numbers[layout.SLOT] = slot
        if partition.placer.policy.follows_prefills:
            # A policy that follows prefills needs the overlap of the given rank, hence a placement
            # with one candidate.
            there = np.zeros(partition.table.n_slots, np.bool_)
            there[slot] = True
            self._set_mask(there)
        return layout.TEXT_READY

    def _prepare_sessions(self, data: bytes) -> int:
        """Make the table of sessions, or the text of SESSION_SLOT: CONTINUE, CONTINUE_GATED or
        DECLINED.
        """
        number = self._numbers[layout.AT_ROW]
        if self._partitions.has_sessions(number):
            cached = self._partitions.partition_at(number)
            cached.templates.render_template(self._numbers[layout.SESSION_SLOT])
        elif not self._partitions.add_sessions(number, monotonic()):
            return layout.DECLINED
        # The mask of the gate is still set.
        return layout.CONTINUE if self._gate.is_open else layout.CONTINUE_GATED

    def _answer_pair(self, data: bytes) -> int:
        """Choose a pair, book it if requested, and write the answer: RENDER or DECLINED."""
        return self._pairs.answer_request(data, self._draw)

    def _generate_id(self, data: bytes) -> int:
        """Set a generated id for the requested reservation: ID_READY."""
        self._set_reservation_id(self._new_reservation_id())
        return layout.ID_READY

    def _book_slot(self, data: bytes) -> int:
        """Book on SLOT through the core: RENDER or DECLINED."""
        state, partition = self._numbers, self._current_partition()
        if not self._calls.is_booking_bounded(partition):
            return layout.DECLINED
        if state[request.ROUTE] == request.RESERVE:
            if not self._calls.reserve(data, partition):
                return layout.DECLINED
        else:
            name = self._calls.book_placed(data, partition, state[layout.SLOT], self._generated_id)
            if name is None:
                return layout.DECLINED
            if state[request.RESERVATION_ID] == NONE:
                self._set_reservation_id(name)
        self._partitions.allow_booking(state[layout.AT_ROW])
        state[layout.CHANGED] = row = self._calls.row_of_booking(data, self._generated_id)
        if state[request.SESSION_ID] != NONE and not self._calls.has_session(row):
            state[layout.SESSION_ROW] = NONE
        return layout.RENDER

    def _apply_lifecycle_call(self, data: bytes) -> int:
        """Apply the lifecycle call through the core: RENDER or DECLINED."""
        if self._is_booking_paused():
            return layout.DECLINED
        return layout.RENDER if self._calls.call(data) else layout.DECLINED

    def _notify_followers(self, data: bytes) -> int:
        """Notify the followers of the ledger of the kernel's change: RENDER."""
        row = self._numbers[layout.CHANGED]
        if self._numbers[request.ROUTE] >= request.PREFILL_COMPLETE:
            self._calls.notify_lifecycle(data, row)
        else:
            self._calls.notify_booking(data, self._current_partition(), row, self._generated_id)
        return layout.RENDER

    def _report_broken_ledger(self, data: bytes) -> int:
        """Raise AssertionError."""
        raise AssertionError("the ledger released more than was booked")

    _STEPS: ClassVar[Mapping[int, Callable[["ServiceHandler", bytes], int]]] = {
        layout.STALE_ROWS: _refresh_rows,
        layout.STALE_SUMS: _refresh_sums,
        layout.UNKNOWN_PARTITION: _add_partition,
        layout.NEEDS_GATE: _admit_by_gate,
        layout.FIND_RANK: _find_requested_rank,
        layout.TEXT_MISSING: _render_template,
        layout.NEEDS_ID: _generate_id,
        layout.NEEDS_SESSIONS: _prepare_sessions,
        layout.NEEDS_PAIR: _answer_pair,
        layout.CORE_BOOKS: _book_slot,
        layout.CORE_CALLS: _apply_lifecycle_call,
        layout.NOTIFY_FOLLOWERS: _notify_followers,
        layout.LEDGER_BROKEN: _report_broken_ledger,
    }
    """Step of every outcome of the kernel that requests one, roughly in the order of a request."""

    # Helpers of the steps.

    def _current_partition(self) -> Partition:
        return self._partitions.partition_at(self._numbers[layout.AT_ROW]).partition

    def _pause_booking(self) -> None:
        """Stop booking here: reservations were migrated or lost a leg, which the ordinary path
        reports to callers.
        """
        self._state[layout.KERNEL_BOOKS] = False

    def _is_booking_paused(self) -> bool:
        """Return whether migrations remain to be reported; if not, resume booking here."""
        has_moved = self._mover is not None and self._mover.has_moved
        has_news = has_moved or bool(self._pair_book.lost_legs)
        if not has_news:
            self._state[layout.KERNEL_BOOKS] = self._may_kernel_book
        return has_news

    def _has_unknown_class(self, data: bytes) -> bool:
        """Return whether the request names a policy class that its model does not have."""
        at, rules = self._numbers[request.POLICY_CLASS], self._gate.rules
        if at == NONE or rules is None:
            return False
        policy_class = data[at : at + self._numbers[request.POLICY_CLASS + 1]].decode("ascii")
        return not rules.profile_of(_key_in(data, self._numbers).model_name).is_known_name(
            policy_class
        )

    def _set_mask(self, mask: Mask) -> None:
        self._mask = mask
        store_pointer(self._state, layout.MASK, mask)

    def _set_reservation_id(self, name: str) -> None:
        """Set the id of the requested reservation."""
        self._generated_id = name
        self._memory.set_new_id(name)


def _key_in(data: bytes, fields: memoryview) -> PartitionKey:
    """Return the partition named by the request."""

    def name(field: int) -> str:
        at, length = fields[field], fields[field + 1]
        return DEFAULT_NAME if at == NONE else data[at : at + length].decode("ascii")

    return PartitionKey(name(request.MODEL_NAME), name(request.TENANT_ID))
