"""Verbs that change load, with what the kernel has read of a request.

Where a verb refuses, nothing has changed, and the ordinary path is asked for the refusal.
"""

from collections.abc import Callable
from time import monotonic

import numpy as np

from indexer.hashing.hashes import Hashes
from indexer.hashing.seeds import U64_MASK
from select_service.bodies.reservations import ReservationRequest
from select_service.core.decide.prompt import Prompt, PromptRead
from select_service.core.fleet.partition import Partition
from select_service.core.identity import Rank
from select_service.core.load.booking import NewBooking
from select_service.core.selector import Selector
from select_service.errors import SelectError
from select_service.fast import request_layout as request
from select_service.fast.request_layout import NONE

_NO_HASHES: Hashes = np.zeros(0, np.uint64)


class Bookings:
    """Books, completes, renews and frees by the fields of a request."""

    def __init__(
        self, selector: Selector, fields: memoryview, blocks: Hashes, sequence: Hashes
    ) -> None:
        """fields: int64[N_FIELDS], blocks, sequence: what the kernel has read last"""
        self._selector = selector
        self._fields = fields
        self._blocks, self._sequence = blocks, sequence
        self._verbs: dict[int, Callable[[str, float], None]] = {
            request.PREFILL_COMPLETE: selector.prefill_complete,
            request.OUTPUT_BLOCK: self._output_block,
            request.RENEW: selector.renew,
            request.FREE: selector.free,
        }

    def _output_block(self, name: str, now: float) -> None:
        bits = self._fields[request.DECAY_FRACTION]
        decay = None if bits == NONE else float(np.int64(bits).view(np.float64))
        self._selector.output_block(name, decay, now)

    def call(self, data: bytes) -> bool:
        """Call the verb of the route with the id of the path.  False: it refused."""
        name = self._text(data, request.PATH_ID)
        assert name is not None
        try:
            self._verbs[self._fields[request.ROUTE]](name, monotonic())
        except SelectError:
            return False
        return True

    def may_book(self, partition: Partition) -> bool:
        """Is the booking a bounded step?  If not, the ordinary path waits until it is."""
        return self._selector.may_book(partition, self._fields[request.N_SEQUENCE])

    def slot_asked_for(self, partition: Partition) -> int | None:
        """That of the rank on which a reservation is to be; None: it is not there, or out."""
        table = partition.table
        slot = table.find(self._rank())
        return slot if slot is not None and table.columns.open[slot] else None

    def _rank(self) -> Rank:
        fields = self._fields
        return Rank(fields[request.WORKER_ID] & U64_MASK, max(0, fields[request.DP_RANK]))

    def reserve(self, data: bytes, partition: Partition) -> bool:
        """Book on the rank that the request names.  False: that is refused."""
        name, rank, key = self._text(data, request.RESERVATION_ID), self._rank(), partition.key
        assert name is not None
        asked = ReservationRequest(
            reservation_id=name,
            model_name=key.model_name,
            tenant_id=key.tenant_id,
            worker_id=rank.worker_id,
            dp_rank=rank.dp_rank,
            effective_prefill_tokens=self._number(request.EFFECTIVE_PREFILL_TOKENS),
            expected_output_tokens=self._number(request.EXPECTED_OUTPUT_TOKENS),
        )
        has_tokens = self._fields[request.N_TOKENS] != NONE
        prompt = self._prompt(partition.placing.policy.follows and has_tokens)
        read = PromptRead(partition.block_size, partition.is_eagle, prompt)
        try:
            self._selector.reserve(asked, monotonic(), read)
        except (SelectError, MemoryError):
            return False
        return True

    def book_placed(
        self, data: bytes, partition: Partition, slot: int, new_name: str | None
    ) -> str | None:
        """Book what the kernel has placed.  The id, or None: that is refused.

        new_name: an id where the client gives none, if there is one already
        """
        name = self._text(data, request.RESERVATION_ID) or new_name
        expected = self._number(request.EXPECTED_OUTPUT_TOKENS)
        try:
            prompt = self._prompt(partition.placing.policy.follows)
            return self._selector.book_placed(partition, slot, prompt, name, expected, monotonic())
        except (SelectError, MemoryError):
            return None

    def row_booked(self, data: bytes, new_name: str | None) -> int:
        """Where the reservation stands that was just booked.  new_name: as in `book_placed`"""
        name = self._text(data, request.RESERVATION_ID) or new_name
        assert name is not None
        booking = self._selector.held.find(name)
        assert booking is not None
        return booking.row

    def tell_changed(self, row: int) -> None:
        """Tell the followers of the ledger how the life of a reservation goes on."""
        if self._fields[request.ROUTE] == request.FREE:
            self._selector.ledger.tell_released(row, "client", monotonic())
        else:
            self._selector.ledger.tell_completed(row, "client", monotonic())

    def tell_booked(
        self, data: bytes, partition: Partition, row: int, new_name: str | None
    ) -> None:
        """Tell the followers of the ledger what was booked.

        new_name: the id where the client gives none
        """
        if not self._selector.ledger.tells_bookings:
            return
        held, tracks = self._selector.held.at(row), self._selector.router.track_prefill_tokens
        name = self._text(data, request.RESERVATION_ID) or new_name
        prompt = self._prompt(self._selector.decisions.keeps_wishes and self._has_path())
        assert name is not None
        given = self._fields[request.ROUTE] == request.RESERVE and (
            self._fields[request.EFFECTIVE_PREFILL_TOKENS] != NONE
        )
        booking = NewBooking(
            reservation_id=name,
            account=partition.account,
            rank=held.rank,
            slot=held.slot,
            sequence_hashes=prompt.sequence_hashes[: held.prompt_blocks],
            isl_tokens=prompt.isl_tokens,
            prefill_tokens=held.prefill_tokens,
            booked_at=held.booked_at,
            tracks_prefill=tracks or given,
            expected_output_tokens=self._number(request.EXPECTED_OUTPUT_TOKENS),
            own_work=held.work,
            prompt=prompt.block_hashes,
        )
        self._selector.ledger.tell_booked(booking, "client", monotonic())

    def _has_path(self) -> bool:
        """Does the prompt have block hashes that count (`booking_kernels.has_path`)?"""
        fields = self._fields
        return fields[request.ROUTE] != request.RESERVE or fields[request.N_TOKENS] != NONE

    def _prompt(self, has_blocks: bool) -> Prompt:
        """Of which the arrays will not be overwritten.  has_blocks: are its block hashes needed?"""
        fields, blocks = self._fields, _NO_HASHES
        if has_blocks:
            blocks = self._blocks[: fields[request.N_BLOCKS]].copy()
        sequence = self._sequence[: fields[request.N_SEQUENCE]].copy()
        return Prompt(blocks, sequence, fields[request.ISL_TOKENS])

    def _number(self, field: int) -> int | None:
        number: int = self._fields[field]
        return None if number == NONE else number

    def _text(self, data: bytes, field: int) -> str | None:
        at, length = self._fields[field], self._fields[field + 1]
        return None if at == NONE else data[at : at + length].decode("ascii")
