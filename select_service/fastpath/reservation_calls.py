"""Calls of the core that change load, with the fields parsed by the kernel.

After a refusal nothing has changed; the ordinary path then produces the error response.
"""

from collections.abc import Callable
from time import monotonic

import numpy as np

from indexer.hashing.block_hashing import Hashes
from indexer.hashing.seeds import U64_MASK
from select_service.base.errors import SelectError
from select_service.core.identity import Rank
from select_service.core.load.new_reservation import NewReservation
from select_service.core.placement.prompt import Prompt, ReadAheadPrompt
from select_service.core.registry.fleet.partition import Partition
from select_service.core.selector import SelectorCore
from select_service.fastpath.parsing import request_layout as request
from select_service.fastpath.parsing.request_layout import NONE
from select_service.schemas.reservations import ReservationRequest
from select_service.schemas.selection import SelectAndReserveRequest

_NO_HASHES: Hashes = np.zeros(0, np.uint64)


class ReservationCalls:
    """Books, completes, renews and frees reservations from the fields of a request."""

    def __init__(
        self, selector: SelectorCore, fields: memoryview, blocks: Hashes, sequence: Hashes
    ) -> None:
        """fields: int64[N_FIELDS];  blocks, sequence: arrays last filled by the kernel"""
        self._selector, self._ledger, self._decisions = (
            selector,
            selector.ledger,
            selector.decisions,
        )
        self._fields = fields
        self._blocks, self._sequence = blocks, sequence
        self._lifecycle_calls: dict[int, Callable[[str, float], None]] = {
            request.PREFILL_COMPLETE: selector.complete_prefill,
            request.OUTPUT_BLOCK: self._output_block,
            request.RENEW: selector.renew_reservation,
            request.FREE: selector.free_reservation,
        }

    def _output_block(self, name: str, now: float) -> None:
        bits = self._fields[request.DECAY_FRACTION]
        decay = None if bits == NONE else float(np.int64(bits).view(np.float64))
        self._selector.add_output_block(name, decay, now)

    def call(self, data: bytes) -> bool:
        """Apply the route to the reservation in the path.  Returns False if refused."""
        name = self._name_field(data, request.PATH_ID)
        try:
            self._lifecycle_calls[self._fields[request.ROUTE]](name, monotonic())
        except SelectError:
            return False
        return True

    def is_booking_bounded(self, partition: Partition) -> bool:
        """Return whether the booking is a bounded step; otherwise the ordinary path waits until it
        is.
        """
        return self._selector.may_book(partition, self._fields[request.N_SEQUENCE])

    def requested_slot(self, partition: Partition) -> int | None:
        """Return the slot of the requested rank; None means no such rank, or out of rotation."""
        table = partition.table
        slot = table.find_slot(self._requested_rank())
        # Errors about closed ranks have details that the ordinary path collects.
        return slot if slot is not None and table.columns.open[slot] else None

    def _requested_rank(self) -> Rank:
        fields = self._fields
        return Rank(fields[request.WORKER_ID] & U64_MASK, max(0, fields[request.DP_RANK]))

    def reserve(self, data: bytes, partition: Partition) -> bool:
        """Book on the requested rank.  Returns False if refused."""
        rank, key = self._requested_rank(), partition.key
        asked = ReservationRequest(
            reservation_id=self._name_field(data, request.RESERVATION_ID),
            model_name=key.model_name,
            tenant_id=key.tenant_id,
            worker_id=rank.worker_id,
            dp_rank=rank.dp_rank,
            effective_prefill_tokens=self._number_field(request.EFFECTIVE_PREFILL_TOKENS),
            expected_output_tokens=self._number_field(request.EXPECTED_OUTPUT_TOKENS),
        )
        has_tokens = self._fields[request.N_TOKENS] != NONE
        prompt = self._copy_prompt(partition.placer.policy.follows_prefills and has_tokens)
        read = ReadAheadPrompt(partition.block_size, partition.is_eagle, prompt)
        try:
            self._selector.reserve(asked, monotonic(), read)
        except (SelectError, MemoryError):
            return False
        return True

    def book_placed(
        self, data: bytes, partition: Partition, slot: int, generated_id: str | None
    ) -> str | None:
        """Book the placement of the kernel.  Returns the id, or None if refused.

        generated_id: generated id for a request without one, if it exists already
        """
        if self._fields[request.RESERVATION_ID] != NONE:
            generated_id = self._name_field(data, request.RESERVATION_ID)
        asked = SelectAndReserveRequest(
            reservation_id=generated_id,
            expected_output_tokens=self._number_field(request.EXPECTED_OUTPUT_TOKENS),
        )
        try:
            prompt = self._copy_prompt(partition.placer.policy.follows_prefills)
            return self._selector.book_placed(partition, slot, prompt, asked, monotonic())
        except (SelectError, MemoryError):
            return None

    def row_of_booking(self, data: bytes, generated_id: str | None) -> int:
        """Return the ledger row of the reservation just booked.

        generated_id: as in `book_placed`
        """
        name = self._name_field(data, request.RESERVATION_ID, generated_id)
        booking = self._ledger.reservations.find_reservation(name)
        assert booking is not None
        return booking.row

    def notify_lifecycle(self, row: int) -> None:
        """Notify the followers of the ledger of a lifecycle call."""
        if self._fields[request.ROUTE] == request.FREE:
            self._ledger.notify_released(row, "client", monotonic())
        else:
            self._ledger.notify_completed(row, "client", monotonic())

    def notify_booking(
        self, data: bytes, partition: Partition, row: int, generated_id: str | None
    ) -> None:
        """Notify the followers of the ledger of a booking.

        generated_id: generated id of a request without one
        """
        if not self._ledger.notifies_bookings:
            return
        held, fields = self._ledger.reservations.view_row(row), self._fields
        is_own_rank = fields[request.ROUTE] == request.RESERVE
        # As `booking_kernels.has_block_hashes`.
        has_blocks = not is_own_rank or fields[request.N_TOKENS] != NONE
        prompt = self._copy_prompt(self._decisions.keeps_move_constraints and has_blocks)
        is_given = is_own_rank and fields[request.EFFECTIVE_PREFILL_TOKENS] != NONE
        booking = NewReservation(
            reservation_id=self._name_field(data, request.RESERVATION_ID, generated_id),
            account=partition.account,
            rank=held.rank,
            slot=held.slot,
            sequence_hashes=prompt.sequence_hashes[: held.prompt_blocks],
            isl_tokens=prompt.isl_tokens,
            prefill_tokens=held.prefill_tokens,
            booked_at=held.booked_at,
            tracks_prefill=self._decisions.config.track_prefill_tokens or is_given,
            expected_output_tokens=self._number_field(request.EXPECTED_OUTPUT_TOKENS),
            own_work=held.prefill_work,
            prompt=prompt.block_hashes,
        )
        self._ledger.notify_booked(booking, "client", monotonic())

    def _copy_prompt(self, has_blocks: bool) -> Prompt:
        """Return the prompt in arrays of its own.  has_blocks: whether block hashes are needed"""
        fields, blocks = self._fields, _NO_HASHES
        if has_blocks:
            # Copies, because the next request overwrites the kernel's arrays.
            blocks = self._blocks[: fields[request.N_BLOCKS]].copy()
        sequence = self._sequence[: fields[request.N_SEQUENCE]].copy()
        return Prompt(blocks, sequence, fields[request.ISL_TOKENS])

    def _number_field(self, field: int) -> int | None:
        number: int = self._fields[field]
        return None if number == NONE else number

    def _name_field(self, data: bytes, field: int, generated: str | None = None) -> str:
        """Return the id in a field, or the generated one."""
        at, length = self._fields[field], self._fields[field + 1]
        name = generated if at == NONE else data[at : at + length].decode("ascii")
        assert name is not None
        return name
