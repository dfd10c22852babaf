"""What is to be booked, and the account of the partition whose load it becomes part of."""

from typing import NamedTuple

import numpy as np

from indexer.hashing.hashes import Hashes
from indexer.mutex import Mutex
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load import load_layout as layout
from select_service.core.load.active_load import ActiveLoad

BOOKED_BLOCKS_MAX = 8192
"""Prompt blocks of a reservation that are booked by name, some milliseconds of work.  Those behind
them count as load without a name: as if nobody else had the same ones."""

NO_PROMPT: Hashes = np.zeros(0, np.uint64)


class Drained(NamedTuple):
    """Running sums: prefill tokens that were done or given up, and prompt blocks freed."""

    tokens: int = 0
    blocks: int = 0


class Account:
    """The load of one partition.

    It outlives its partition until the reservations of the last ranks have been released.
    """

    def __init__(self, key: PartitionKey, block_size: int, lock: Mutex | None = None) -> None:
        """lock: of its load"""
        self.key = key
        self.block_size = block_size
        self.load = ActiveLoad(lock)
        self.leaving: set[int] = set()
        """Slots whose rank has left; they take no new load and come back when they are empty."""

    @property
    def drained(self) -> Drained:
        header = self.load.header
        return Drained(int(header[layout.DRAINED_TOKENS]), int(header[layout.DRAINED_BLOCKS]))

    def is_empty(self, slot: int) -> bool:
        """Is nothing booked on the slot?"""
        return not self.load.totals[slot, layout.REQUESTS]

    def reserve_slots(self, n_slots: int) -> None:
        """Let `ensure_slots` find room.  Raises MemoryError, and nobody sees a change."""
        self.load.reserve_slots(n_slots)

    def ensure_slots(self, n_slots: int) -> None:
        """Let slots 0 .. n_slots-1 exist.  Never shrinks."""
        self.load.ensure_slots(n_slots)

    def check_invariants(self) -> None:
        """For tests."""
        self.load.check_invariants()


class MoveWishes(NamedTuple):
    """Of one reservation.

    block_hashes: uint64[n], of its prompt; none: unknown
    pinned:       the one rank that it may be on
    allowed:      workers; None: all;  required: taints
    """

    block_hashes: Hashes = NO_PROMPT
    priority: int = 0
    migratable: bool = True
    pinned: Rank | None = None
    allowed: frozenset[int] | None = None
    required: frozenset[str] = frozenset()

    @property
    def n_names(self) -> int:
        """How many workers and taints it names."""
        return len(self.allowed or ()) + len(self.required)

    @property
    def is_bound(self) -> bool:
        """Are there ranks that it may not be on?"""
        return self.pinned is not None or self.allowed is not None or bool(self.required)


NO_WISHES = MoveWishes()
"""Of a usual request, without its prompt."""


class NewBooking(NamedTuple):
    """Load of one reservation that is to be booked.  `slot` belongs to the partition of `account`.

    sequence_hashes: uint64[n]; those behind BOOKED_BLOCKS_MAX are only kept to be told to others
    booked_at:       in seconds
    origin:          router id of the replica that admitted it; None: this one
    tracks_prefill:  are its prefill tokens to be counted; False: nobody asked for that
    nameless:        prompt blocks that count without a name
    own_work:        tokens that the rank would compute; None: as many as are booked
    cached_blocks:   of the prompt that the rank has
    prompt:          uint64[n], its block hashes, where its progress is to be followed
    wishes:          what counts when it is moved; None: nothing but `prompt`
    """

    reservation_id: str
    account: Account
    rank: Rank
    slot: int
    sequence_hashes: Hashes
    isl_tokens: int
    prefill_tokens: int
    booked_at: float
    origin: int | None = None
    tracks_prefill: bool = True
    expected_output_tokens: int | None = None
    lora_name: str | None = None
    prefilling: bool = True
    nameless: int = 0
    own_work: int | None = None
    cached_blocks: int = 0
    prompt: Hashes = NO_PROMPT
    wishes: MoveWishes | None = None

    @property
    def key(self) -> PartitionKey:
        return self.account.key

    @property
    def work(self) -> int:
        """What its prefill is entered in the account with, 0: not at all."""
        if not self.prefilling or not self.tracks_prefill:
            return 0
        return max(1, self.prefill_tokens if self.own_work is None else self.own_work)

    @property
    def n_named(self) -> int:
        """How many of its blocks are booked by name."""
        return min(len(self.sequence_hashes), BOOKED_BLOCKS_MAX)


def nameless(prompt_blocks: int) -> int:
    """How many blocks of a prompt are not booked by name."""
    return max(0, prompt_blocks - BOOKED_BLOCKS_MAX)


def bounded(hashes: Hashes) -> Hashes:
    """The blocks of a prompt that are booked by name; the rest is not kept.

    hashes: uint64[n], the first of the prompt at least
    """
    return hashes if len(hashes) <= BOOKED_BLOCKS_MAX else hashes[:BOOKED_BLOCKS_MAX].copy()
