"""The arrays of all reservations, reserved once and touched as they are needed."""

from math import inf
from random import SystemRandom
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.hashing.hashes import Hashes
from indexer.pages import zeros
from select_service.core.load import ledger_layout as layout
from select_service.core.load.booking import BOOKED_BLOCKS_MAX
from select_service.core.load.ledger_call_kernels import say_addresses
from select_service.core.load.live_count import LiveCount

RESERVATIONS_MAX = 200_000
RESERVED_BLOCKS_MAX = 16_777_216
"""Prompt blocks of all live reservations: 8 bytes each here, and 88 in the load tables, of
whose rows up to two thirds are free."""
PROMPT_CHUNKS_MAX = 1 << 19
"""Chunks for prompts of unfinished prefills, 64 MiB; what finds no room is not followed."""
CHUNKS_MAX = (1 << 21) + PROMPT_CHUNKS_MAX
"""Chunks for names, prompt blocks and prompts: as many as all blocks and names of 400 bytes need,
and the prompts."""
_BUCKETS_AT_FIRST = 64
_BUCKETS_MAX = 1 << 18


class LedgerMemory:
    """Keeps alive what the header names."""

    def __init__(self, ttl_s: float) -> None:
        """ttl_s: seconds without renewal after which a lease ends; 0 = never"""
        self.header = np.zeros(layout.HEADER_LENGTH, np.int64)
        self.numbers = self.header.data
        n_rows = RESERVATIONS_MAX + 1
        rows = self._column(layout.ROWS, n_rows * layout.FIELDS, np.int64)
        self.fields = rows.data
        """int64[rows * FIELDS]"""
        self._times = rows.view(np.float64)
        self.times = self._times.data
        """The same, where they are times or weights."""
        self.orders = self._column(layout.ORDERS, n_rows, np.int64)
        self.ends = self._column(layout.ENDS, n_rows, np.float64)
        self._heads = self._column(layout.HEADS, _BUCKETS_MAX, np.int32)
        self._chunks = self._column(layout.CHUNKS, CHUNKS_MAX * layout.CHUNK_WORDS, np.uint64)
        self._next_chunk = self._column(layout.NEXT_CHUNK, CHUNKS_MAX, np.int32)
        self._scratch = self._column(layout.SCRATCH, BOOKED_BLOCKS_MAX, np.uint64)
        self.lived = self._column(layout.LIVED, n_rows * layout.LIVED_NUMBERS, np.int64).data
        """int64[rows * LIVED_NUMBERS]"""
        self._counts: set[LiveCount] = set()
        self.orders[0], self.ends[0] = layout.FREE, inf
        self._set_numbers(ttl_s)

    def _set_numbers(self, ttl_s: float) -> None:
        header = self.header
        say_addresses(header)
        header[layout.ROWS_USED] = header[layout.CHUNKS_USED] = 1
        header[layout.BUCKETS] = _BUCKETS_AT_FIRST
        header[layout.PROMPT_CHUNKS_MAX] = PROMPT_CHUNKS_MAX
        header[layout.COUNT_MAX], header[layout.BLOCKS_MAX] = RESERVATIONS_MAX, RESERVED_BLOCKS_MAX
        header[layout.SEED] = SystemRandom().getrandbits(63)
        times = header.view(np.float64)
        times[layout.TTL], times[layout.NEXT_END] = ttl_s, inf

    def lease(self, row: int, renewed_at: float, ends_at: float) -> None:
        """Let the lease of a row be this one."""
        self._times[row * layout.FIELDS + layout.RENEWED_AT] = renewed_at
        self.ends[row] = ends_at
        numbers = self.header.view(np.float64)
        numbers[layout.NEXT_END] = min(numbers[layout.NEXT_END], ends_at)

    def count(self, row: int, count: LiveCount) -> None:
        """Let the reservation of a row be counted as long as it lives, unless it is already."""
        at = row * layout.LIVED_NUMBERS + layout.COUNTED_BY
        if not self.lived[at]:
            self._counts.add(count)
            self.lived[at] = count.address
            count.numbers[0] += 1
            count.numbers[1] += self.fields[row * layout.FIELDS + layout.BLOCKS]
            self.numbers[layout.COUNTED] += 1

    def chain(self, chunk: int, n: int) -> Hashes:
        """uint64[n], a copy: the first words of the chain that begins with a chunk."""
        size, out = layout.CHUNK_WORDS, np.empty(n, np.uint64)
        for begin in range(0, n, size):
            part = out[begin : begin + size]
            part[:] = self._chunks[chunk * size : chunk * size + len(part)]
            chunk = int(self._next_chunk[chunk])
        return out

    def _column(self, at: int, length: int, dtype: Any) -> npt.NDArray[Any]:
        array = zeros(length, dtype)
        self.name(at, array)
        return array

    def name(self, at: int, array: npt.NDArray[Any]) -> None:
        """Let a pair of the header be this array, which somebody keeps alive."""
        self.header[at], self.header[at + 1] = array.ctypes.data, array.size
