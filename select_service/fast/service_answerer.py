"""Answers usual requests of one service: one compiled call, and what it asks for.

What is not for here is given up before anything has changed.
"""

from collections.abc import Sequence

import numpy as np

from select_service.bodies.common import DEFAULT_NAME
from select_service.core.arrays import Mask, name_array
from select_service.core.identity import PartitionKey
from select_service.core.selector import Selector
from select_service.fast import request_layout as request
from select_service.fast import serve_layout as layout
from select_service.fast.bookings import Bookings
from select_service.fast.counts import Counts
from select_service.fast.known_partitions import KnownPartitions
from select_service.fast.request_layout import NONE
from select_service.fast.serve_kernels import serve
from select_service.fast.serve_memory import ServeMemory
from select_service.http.head import Headers
from select_service.metrics.service_metrics import Metrics

_CHANGING = (layout.BOOK, layout.CALL, layout.TELL)
"""What kernels ask for that changes something, or comes after a change."""


class ServiceAnswerer:
    """The `Answerer` of a service.

    _name: a new id that the request in hand has got
    """

    def __init__(
        self, selector: Selector, metrics: Metrics, tenants: frozenset[str] | None = None
    ) -> None:
        """tenants: what is asked of others is given up; None: of nobody"""
        self.end, self._tenants, self._sums = 0, tenants, selector.held.sums
        self._memory = ServeMemory()
        self._state = self._memory.header
        self._numbers = self._state.data
        self._partitions = KnownPartitions(
            selector.fleet, selector.held, self._state, tenants=tenants
        )
        self._counts = Counts(self._state, selector.gate.tally, metrics)
        self._gate, self._random = selector.gate, selector.random
        self._out = self._memory.out.data
        read = self._memory.blocks, self._memory.sequence
        self._bookings = Bookings(selector, self._numbers, *read)
        metrics.before_observing.append(self._counts.pass_on)
        self._name: str | None = None
        self._new_reservation_id = selector.new_reservation_id
        self._mover = selector.mover
        if self._mover is not None:
            self._mover.watch(self._step_aside)
        self._books = selector.router.assume_kv_reuse
        self._follow(selector)
        self.say([])

    def _follow(self, selector: Selector) -> None:
        """What the kernel does here, and how, is said by others, too."""
        state, router = self._state, selector.router
        name_array(state, layout.GATE, self._gate.admits)
        name_array(state, layout.LEDGER, selector.held.memory.header)
        name_array(state, layout.WAITS, self._gate.waiting.waits)
        name_array(state, layout.SUM_CHANGES, self._sums.changes)
        state[layout.IS_BOUND], state[layout.SUMS_SEEN] = self._tenants is not None, NONE
        state[layout.BOOKS] = self._books
        state[layout.COUNTS_PREFILL] = router.track_prefill_tokens
        state[layout.COUNTS_BLOCKS] = router.track_active_blocks
        state[layout.COUNTS_OUTPUT] = router.track_output_blocks and router.track_active_blocks

    def say(self, headers: Headers) -> None:
        """Every answer begins with these from now on, before its own."""
        self._memory.say(headers)
        self._partitions.look()

    def ask_hosts(self, hosts: Sequence[bytes]) -> None:
        """Give up requests for other hosts."""
        self._memory.ask_hosts(hosts)

    def ask_for(self, address: int, length: int) -> None:
        """Give up requests without this value of `authorization`, which the caller keeps alive."""
        numbers = self._numbers
        numbers[layout.ASKS_KEY], numbers[layout.KEY], numbers[layout.KEY + 1] = 1, address, length

    @property
    def booked_row(self) -> int:
        """That of the reservation of the last answer in the ledger; NONE: it made none."""
        route = self._numbers[request.ROUTE]
        is_booked = route in (request.SELECT_AND_RESERVE, request.RESERVE)
        return self._numbers[layout.CHANGED] if is_booked else NONE

    @property
    def is_select(self) -> bool:
        """See `Answerer`."""
        return self._numbers[request.ROUTE] == request.SELECT

    def answer(self, data: bytes, at: int, file: int = NONE) -> bytes | None:
        """See `Answerer`."""
        draw = self._random()
        end = serve(data, at, self._state, layout.READ, draw, file)
        if end < 0:
            end = self._go_on(end, data, at, draw, file)
        if not end:
            self.end = len(data)
            return b""
        if end < 0:
            self.end = self._numbers[request.END] if end == layout.INCOMPLETE else 0
            return None
        self.end = self._numbers[request.END]
        return bytes(self._out[self._numbers[layout.BEGIN] : end])

    def _go_on(self, said: int, data: bytes, at: int, draw: float, file: int) -> int:
        """Do what the kernel needs, and call it again, until it has an answer or gives up.

        SENT, where the rest of the answer ends, INCOMPLETE or GIVE_UP.
        """
        self._name = None
        while said < layout.INCOMPLETE:  # and no GIVE_UP
            try:
                step = self._prepared(said, data)
            except MemoryError:  # the ordinary path answers with less, or says that none is left
                if said in _CHANGING:
                    raise
                return layout.GIVE_UP
            if step == layout.GIVE_UP:
                return step
            said = serve(data, at, self._state, step, draw, file)
        return said

    def _prepared(self, said: int, data: bytes) -> int:
        """The step at which the kernel is to go on, or GIVE_UP."""
        state = self._numbers
        if said == layout.STALE:
            self._partitions.look()
            return layout.READ
        if said == layout.STALE_SUMS:
            self._look_at_sums()
            return layout.READ
        if said == layout.UNTOLD:
            self._partitions.at(state[layout.AT_ROW]).answers.tell(state[layout.SLOT])
            return layout.TOLD
        if said == layout.FIND_RANK:
            return self._found()
        if said == layout.BOOK:
            return self._booked(data)
        if said == layout.TELL:
            return self._told(data)
        if said == layout.UNNAMED:
            self._name_it(self._new_reservation_id())
            return layout.NAMED
        if said == layout.CALL:
            if self._is_aside():
                return layout.GIVE_UP
            return layout.RENDER if self._bookings.call(data) else layout.GIVE_UP
        assert said != layout.BROKEN, "more was released than had been booked"
        if said == layout.UNKNOWN and not self._partitions.learn(_key_in(data, state)):
            return layout.GIVE_UP
        partition = self._partitions.at(state[layout.AT_ROW]).partition
        if self._gate.is_open or state[request.ROUTE] == request.RESERVE:
            return layout.GO_ON
        free = None if self._is_misnamed(data) else self._gate.free_at_once(partition)
        if free is None:
            return layout.GIVE_UP
        self._let_choose_among(free)
        return layout.GO_ON_JUDGED

    def _look_at_sums(self) -> None:
        assert self._tenants is not None
        self._within = self._sums.within(self._tenants)
        name_array(self._state, layout.WITHIN, self._within)
        self._state[layout.SUMS_SEEN] = self._sums.changes[0]

    def _step_aside(self) -> None:
        """Reservations have moved: their callers are told by the ordinary path."""
        self._state[layout.BOOKS] = False

    def _is_aside(self) -> bool:
        """Is it so?  If no move is left to tell of, that ends."""
        if self._mover is None:
            return False
        if not self._mover.has_moved:
            self._state[layout.BOOKS] = self._books
        return self._mover.has_moved

    def _is_misnamed(self, data: bytes) -> bool:
        """Does the request ask for a policy class that its model does not have?"""
        at, rules = self._numbers[request.POLICY_CLASS], self._gate.rules
        if at == NONE or rules is None:
            return False
        wanted = data[at : at + self._numbers[request.POLICY_CLASS + 1]].decode("ascii")
        return not rules.profile(_key_in(data, self._numbers).model_name).knows(wanted)

    def _found(self) -> int:
        """Let SLOT be that of the rank which the request names, and the mask its own: TOLD or
        GIVE_UP."""
        state = self._numbers
        partition = self._partitions.at(state[layout.AT_ROW]).partition
        slot = self._bookings.slot_asked_for(partition)
        if slot is None:
            return layout.GIVE_UP
        state[layout.SLOT] = slot
        if partition.placing.policy.follows:
            there = np.zeros(partition.table.n_slots, np.bool_)
            there[slot] = True
            self._let_choose_among(there)
        return layout.TOLD

    def _let_choose_among(self, mask: Mask) -> None:
        self._mask = mask
        name_array(self._state, layout.MASK, mask)

    def _booked(self, data: bytes) -> int:
        """Book on SLOT: RENDER or GIVE_UP."""
        state = self._numbers
        partition = self._partitions.at(state[layout.AT_ROW]).partition
        if not self._bookings.may_book(partition):
            return layout.GIVE_UP
        if state[request.ROUTE] == request.RESERVE:
            if not self._bookings.reserve(data, partition):
                return layout.GIVE_UP
        else:
            name = self._bookings.book_placed(data, partition, state[layout.SLOT], self._name)
            if name is None:
                return layout.GIVE_UP
            if state[request.RESERVATION_ID] == NONE:
                self._name_it(name)
        self._partitions.booked(state[layout.AT_ROW])
        state[layout.CHANGED] = self._bookings.row_booked(data, self._name)
        return layout.RENDER

    def _told(self, data: bytes) -> int:
        """Tell the followers of the ledger what the kernel has changed: RENDER."""
        state = self._numbers
        if state[request.ROUTE] > request.RESERVE:
            self._bookings.tell_changed(state[layout.CHANGED])
        else:
            partition = self._partitions.at(state[layout.AT_ROW]).partition
            self._bookings.tell_booked(data, partition, state[layout.CHANGED], self._name)
        return layout.RENDER

    def _name_it(self, name: str) -> None:
        """Let the reservation that is asked for be called so."""
        self._name = name
        self._memory.new_id[:] = np.frombuffer(name.encode(), np.uint8)


def _key_in(data: bytes, fields: memoryview) -> PartitionKey:
    """The partition that the request names."""

    def name(field: int) -> str:
        at, length = fields[field], fields[field + 1]
        return DEFAULT_NAME if at == NONE else data[at : at + length].decode("ascii")

    return PartitionKey(name(request.MODEL_NAME), name(request.TENANT_ID))
