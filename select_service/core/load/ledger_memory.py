"""Arrays of all reservations, reserved once at their largest size."""

from math import inf
from random import SystemRandom
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.hashing.block_hashing import Hashes
from indexer.page_memory import zeroed_array
from select_service.core.load.compiled import ledger_layout as layout
from select_service.core.load.compiled.ledger_entry_kernels import export_addresses
from select_service.core.load.live_counter import LiveCounter
from select_service.core.load.new_reservation import BOOKED_BLOCKS_MAX

RESERVATIONS_MAX = 200_000
RESERVED_BLOCKS_MAX = 16_777_216
"""Prompt blocks of all live reservations.

Each takes 8 bytes here and 88 in the load tables, where up to two thirds of the rows are free.
"""
PROMPT_CHUNKS_MAX = 1 << 19
"""Chunks for prompts of unfinished prefills, 64 MiB; further prompts get no progress estimate."""
CHUNKS_MAX = (1 << 21) + PROMPT_CHUNKS_MAX
"""Chunks for names, prompt blocks and prompts.

Enough for all prompt blocks, all names of 400 bytes, and the prompts.
"""
_INITIAL_BUCKETS = 64
_BUCKETS_MAX = 1 << 18

pack_booking = Struct(layout.BOOKING_FORMAT).pack_into
"""Write the fields of a booking (ledger_layout): (array, 0, *fields)."""


class LedgerMemory:
    """Owner of the arrays behind the header."""

    def __init__(self, ttl_s: float) -> None:
        """Reserve the arrays.

        ttl_s: seconds without renewal after which a lease ends; 0 = never
        """
        self.header = np.zeros(layout.HEADER_LENGTH, np.int64)
        self.numbers = self.header.data
        self._header_times: Any = self.header.view(np.float64).data
        # Row 0 ends lists and is never a reservation.
        n_rows = RESERVATIONS_MAX + 1
        rows = self._reserve_column(layout.ROWS, n_rows * layout.FIELDS, np.int64)
        self.fields = rows.data
        """int64[rows * FIELDS]"""
        self.times = rows.view(np.float64).data
        """The same memory as float64, for times and weights."""
        self.orders = self._reserve_column(layout.ORDERS, n_rows, np.int64)
        self.ends = self._reserve_column(layout.ENDS, n_rows, np.float64)
        self._heads = self._reserve_column(layout.HEADS, _BUCKETS_MAX, np.int32)
        self._chunks = self._reserve_column(
            layout.CHUNKS, CHUNKS_MAX * layout.CHUNK_WORDS, np.uint64
        )
        self._next_chunk = self._reserve_column(layout.NEXT_CHUNK, CHUNKS_MAX, np.int32)
        self._scratch = self._reserve_column(layout.SCRATCH, BOOKED_BLOCKS_MAX, np.uint64)
        self.history = self._reserve_column(
            layout.HISTORY, n_rows * layout.HISTORY_NUMBERS, np.int64
        ).data
        """int64[rows * HISTORY_NUMBERS]"""
        booking = np.zeros(layout.BOOKING_FIELDS, np.int64)
        self.set_array(layout.BOOKING, booking)
        self.booking = booking.data
        """Numbers of the next booking or move, filled with `pack_booking`."""
        self._counts: set[LiveCounter] = set()
        self.orders[0], self.ends[0] = layout.FREE, inf
        self._set_numbers(ttl_s)

    def _set_numbers(self, ttl_s: float) -> None:
        header = self.header
        export_addresses(header)
        header[layout.ROWS_USED] = header[layout.CHUNKS_USED] = 1
        header[layout.BUCKETS] = _INITIAL_BUCKETS
        header[layout.PROMPT_CHUNKS_MAX] = PROMPT_CHUNKS_MAX
        header[layout.COUNT_MAX], header[layout.BLOCKS_MAX] = RESERVATIONS_MAX, RESERVED_BLOCKS_MAX
        # A secret seed keeps clients from choosing ids that all fall into one bucket.
        header[layout.SEED] = SystemRandom().getrandbits(63)
        times = header.view(np.float64)
        times[layout.TTL], times[layout.NEXT_END] = ttl_s, inf

    def set_release_time(self, now: float) -> None:
        """Set the time of the releases that follow, for the leases of their sessions."""
        self._header_times[layout.NOW] = now

    def lease_session(self, row: int, table: int, session: int) -> None:
        """Note that a reservation has a lease of a session until its release.

        table: header address of the table of sessions
        session: row of the session there
        """
        at = row * layout.HISTORY_NUMBERS
        self.history[at + layout.SESSION_TABLE] = table
        self.history[at + layout.SESSION_ROW] = session
        self.numbers[layout.N_SESSION_LEASES] += 1

    def session_of(self, row: int) -> tuple[int, int] | None:
        """Return table and row of the session that a reservation leases, or leased at its end.

        None without a session.
        """
        at = row * layout.HISTORY_NUMBERS
        session = self.history[at + layout.SESSION_ROW]
        return (self.history[at + layout.SESSION_TABLE], abs(session)) if session else None

    def count_while_live(self, row: int, count: LiveCounter) -> None:
        """Count the reservation of a row while it lives, unless the row has a counter already."""
        at = row * layout.HISTORY_NUMBERS + layout.COUNTER_ADDRESS
        if not self.history[at]:
            self._counts.add(count)
            self.history[at] = count.address
            count.numbers[0] += 1
            count.numbers[1] += self.fields[row * layout.FIELDS + layout.BLOCKS]
            self.numbers[layout.N_COUNTED] += 1

    def read_chain(self, chunk: int, n: int) -> Hashes:
        """Return the first n words of a chain, uint64[n], a copy.

        chunk: first chunk of the chain
        """
        size, out = layout.CHUNK_WORDS, np.empty(n, np.uint64)
        for begin in range(0, n, size):
            part = out[begin : begin + size]
            part[:] = self._chunks[chunk * size : chunk * size + len(part)]
            chunk = int(self._next_chunk[chunk])
        return out

    def _reserve_column(self, at: int, length: int, dtype: Any) -> npt.NDArray[Any]:
        array = zeroed_array(length, dtype)
        self.set_array(at, array)
        return array

    def set_array(self, at: int, array: npt.NDArray[Any]) -> None:
        """Set a pair of the header to an array, which the caller must keep alive."""
        self.header[at], self.header[at + 1] = array.ctypes.data, array.size
