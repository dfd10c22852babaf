"""Calls of the core that change load, with the fields parsed by the kernel.

After a refusal nothing has changed; the ordinary path then produces the error response.
"""

from collections.abc import Callable
from time import monotonic

import numpy as np

from indexer.hashing.block_hashing import Hashes, Tokens
from indexer.hashing.seeds import SEED, U64_MASK
from select_service.base.errors import SelectError
from select_service.core.identity import Rank
from select_service.core.load.new_reservation import NewReservation, PromptEnd
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
        self, selector: SelectorCore, fields: memoryview, arrays: tuple[Hashes, Hashes, Tokens]
    ) -> None:
        """fields: int64[N_FIELDS];  arrays: blocks, sequence and tokens last read by the kernel"""
        self._selector, self._ledger, self._decisions = (
            selector,
            selector.ledger,
            selector.decisions,
        )
        self._fields = fields
        self._blocks, self._sequence, self._tokens = arrays
        self._lifecycle_calls: dict[int, Callable[[str, float], None]] = {
            request.PREFILL_COMPLETE: selector.complete_prefill,
            request.OUTPUT_BLOCK: self._output_block,
            request.RENEW: selector.renew_reservation,
            request.FIRST_TOKEN: selector.report_first_token,
            request.FREE: selector.free_reservation,
        }

    def _output_block(self, name: str, now: float) -> None:
        bits = self._fields[request.DECAY_FRACTION]
        decay = None if bits == NONE else float(np.int64(bits).view(np.float64))
        self._selector.add_output_block(name, decay, now)

    def call(self, data: bytes) -> bool:
        """Apply the route to the reservation in the path.  Returns False if refused."""
        name = self.name_field(data, request.PATH_ID)
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
        name = self.name_field(data, request.RESERVATION_ID)
        is_selection_named = self._fields[request.IS_SELECTION_NAMED] != 0
        has_tokens = self._fields[request.N_TOKENS] != NONE
        asked = ReservationRequest(
            # The form of the prompt decides whether its identities are shared; the prompt is read.
            token_ids=[] if has_tokens else None,
            reservation_id=None if is_selection_named else name,
            selection_id=name if is_selection_named else None,
            model_name=key.model_name,
            tenant_id=key.tenant_id,
            worker_id=rank.worker_id,
            dp_rank=rank.dp_rank,
            effective_prefill_tokens=self.number_field(request.EFFECTIVE_PREFILL_TOKENS),
            expected_output_tokens=self.number_field(request.EXPECTED_OUTPUT_TOKENS),
        )
        prompt = self.copy_prompt(partition.placer.policy.follows_prefills and has_tokens)
        if partition.assumed is not None:
            prompt = self._add_assumable(prompt, partition)
        read = ReadAheadPrompt(partition.block_size, partition.lookahead, prompt)
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
            generated_id = self.name_field(data, request.RESERVATION_ID)
        asked = SelectAndReserveRequest(
            reservation_id=generated_id,
            expected_output_tokens=self.number_field(request.EXPECTED_OUTPUT_TOKENS),
            session_id=self._session_field(data),
        )
        try:
            prompt = self.copy_prompt(partition.placer.policy.follows_prefills)
            if partition.assumed is not None:
                prompt = self._add_assumable(prompt, partition)
            return self._selector.book_placed(partition, slot, prompt, asked, monotonic())
        except (SelectError, MemoryError):
            return None

    def row_of_booking(self, data: bytes, generated_id: str | None) -> int:
        """Return the ledger row of the reservation just booked.

        generated_id: as in `book_placed`
        """
        name = self.name_field(data, request.RESERVATION_ID, generated_id)
        booking = self._ledger.reservations.find_reservation(name)
        assert booking is not None
        return booking.row

    def has_session(self, row: int) -> bool:
        """Return whether a reservation has a lease of a session."""
        return self._ledger.reservations.memory.session_of(row) is not None

    def notify_lifecycle(self, data: bytes, row: int) -> None:
        """Notify the followers of the ledger of a lifecycle call."""
        route, name = self._fields[request.ROUTE], self.name_field(data, request.PATH_ID)
        if route == request.FREE:
            self._ledger.notify_released(row, "client", monotonic(), name)
            return
        if route == request.FIRST_TOKEN:
            # As `SelectorCore.report_first_token`: first, as the end of the prefill begins the
            # time that a transfer has without a first token.
            self._selector.pairs.book.report_first_token(name, monotonic())
        self._ledger.notify_completed(row, "client", monotonic(), name)

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
        prompt = self.copy_prompt(self._decisions.keeps_move_constraints and has_blocks)
        is_given = is_own_rank and fields[request.EFFECTIVE_PREFILL_TOKENS] != NONE
        booking = NewReservation(
            reservation_id=self.name_field(data, request.RESERVATION_ID, generated_id),
            account=partition.account,
            rank=held.rank,
            slot=held.slot,
            sequence_hashes=prompt.sequence_hashes[: held.prompt_blocks],
            isl_tokens=prompt.isl_tokens,
            prefill_tokens=held.prefill_tokens,
            booked_at=held.booked_at,
            tracks_prefill=self._decisions.config.track_prefill_tokens or is_given,
            expected_output_tokens=self.number_field(request.EXPECTED_OUTPUT_TOKENS),
            own_work=held.prefill_work,
            prompt=prompt.block_hashes,
            cached_blocks=held.cached_blocks,
            session_id=self._session_field(data),
        )
        if partition.assumed is not None:
            given = self._add_assumable(prompt, partition)
            blocks = given.assumable_blocks
            booking = booking._replace(block_hashes=blocks, prompt_end=given.end)
        self._ledger.notify_booked(booking, "client", monotonic())
        if booking.session_id is not None:
            self._decisions.sessions.directory.notify_use_of(held)

    def _add_assumable(self, prompt: Prompt, partition: Partition) -> Prompt:
        """Return the prompt with what a rank holds after it: block hashes, and its end."""
        n_blocks, n_tokens = self._fields[request.N_BLOCKS], self._fields[request.N_TOKENS]
        is_whole = n_blocks == self._fields[request.N_SEQUENCE]
        blocks = self._blocks[:n_blocks].copy() if is_whole else _NO_HASHES
        end = None
        if n_tokens != NONE:
            # Prompts with adapters or salts are left to the ordinary path.
            end = PromptEnd(SEED, self._tokens[n_blocks * partition.block_size : n_tokens].copy())
        return prompt._replace(booked_blocks=blocks, end=end)

    def copy_prompt(self, has_blocks: bool) -> Prompt:
        """Return the prompt in arrays of its own.  has_blocks: whether block hashes are needed"""
        fields, blocks = self._fields, _NO_HASHES
        if has_blocks:
            # Copies, because the next request overwrites the kernel's arrays.
            blocks = self._blocks[: fields[request.N_BLOCKS]].copy()
        sequence = self._sequence[: fields[request.N_SEQUENCE]].copy()
        return Prompt(blocks, sequence, fields[request.ISL_TOKENS])

    def number_field(self, field: int) -> int | None:
        number: int = self._fields[field]
        return None if number == NONE else number

    def _session_field(self, data: bytes) -> str | None:
        """Return the session of a request; None without one."""
        is_own_rank = self._fields[request.ROUTE] == request.RESERVE
        if is_own_rank or self._fields[request.SESSION_ID] == NONE:
            return None
        return self.name_field(data, request.SESSION_ID)

    def name_field(self, data: bytes, field: int, generated: str | None = None) -> str:
        """Return the id in a field, or the generated one."""
        at, length = self._fields[field], self._fields[field + 1]
        name = generated if at == NONE else data[at : at + length].decode("ascii")
        assert name is not None
        return name
