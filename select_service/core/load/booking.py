"""One live reservation, and the account of the partition whose load it is part of."""

from typing import NamedTuple

from msgspec import Struct

from indexer.hashing.hashes import Hashes
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load import load_layout as layout
from select_service.core.load.active_load import NO_OUTPUT, ActiveLoad, OutputBlocks

BOOKED_BLOCKS_MAX = 16_384
"""Prompt blocks of a reservation that are booked by name, some milliseconds of work.  Those behind
them count as load without a name: as if nobody else had the same ones."""


class Drained(NamedTuple):
    """Running sums: prefill tokens that were done or given up, and prompt blocks freed."""

    tokens: int = 0
    blocks: int = 0


class Account:
    """The load of one partition, and by slot who it belongs to.

    It outlives its partition until the reservations of the last ranks have been released.
    """

    def __init__(self, key: PartitionKey, block_size: int) -> None:
        self.key = key
        self.block_size = block_size
        self.load = ActiveLoad()
        self.drained = Drained()
        self.bookings: list[dict[int, str]] = []
        """By slot: order of booking -> its id.  Only the ledger writes here."""
        self.leaving: set[int] = set()
        """Slots whose rank has left; they take no new load and come back when they are empty."""

    def reserve_slots(self, n_slots: int) -> None:
        """Let `ensure_slots` find room.  Raises MemoryError, and nobody sees a change."""
        self.load.reserve_slots(n_slots)
        while len(self.bookings) < n_slots:
            self.bookings.append({})

    def ensure_slots(self, n_slots: int) -> None:
        """Let slots 0 .. n_slots-1 exist.  Never shrinks."""
        self.reserve_slots(n_slots)
        self.load.ensure_slots(n_slots)

    def check_invariants(self) -> None:
        """For tests."""
        self.load.check_invariants()
        totals = self.load.totals
        assert not any(self.bookings[len(totals) :])
        for slot, held in enumerate(self.bookings[: len(totals)]):
            assert totals[slot, layout.REQUESTS] == len(held)


def nameless(prompt_blocks: int) -> OutputBlocks:
    """The load of the blocks of a prompt that are not booked by name."""
    if prompt_blocks <= BOOKED_BLOCKS_MAX:
        return NO_OUTPUT
    return OutputBlocks(whole=prompt_blocks - BOOKED_BLOCKS_MAX)


def bounded(hashes: Hashes, prompt_blocks: int) -> tuple[Hashes, OutputBlocks]:
    """The blocks of a prompt that are booked by name, and the load of the others.

    hashes: uint64[n], the first of the prompt at least; the rest is not kept
    """
    named = hashes if len(hashes) <= BOOKED_BLOCKS_MAX else hashes[:BOOKED_BLOCKS_MAX].copy()
    return named, nameless(prompt_blocks)


class Booking(Struct, eq=False, gc=False):
    """Load of one live reservation.  `slot` belongs to the partition of `account`.

    There may be very many, so the garbage collector does not look at them: nothing that a booking
    refers to may lead back to it.

    origin:         router id of the replica that admitted it; None: this one
    tracks_prefill: are its prefill tokens to be counted; False: nobody asked for that
    mark:           hash of its id and rank, for comparing many of them at once
    sequence_hashes: those behind BOOKED_BLOCKS_MAX are only kept to be told to others
    output:         output blocks, and prompt blocks without a name
    lease_ends_at:  when it expires, if that is not the time to live after its last renewal
    order, due:     where `Reservations` and `Leases` have it
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
    mark: int = 0
    lease_ends_at: float | None = None
    output: OutputBlocks = NO_OUTPUT
    prefilling: bool = True
    order: int = -1
    due: int | None = None
    renewed_at: float = 0.0

    @property
    def key(self) -> PartitionKey:
        return self.account.key

    @property
    def named(self) -> Hashes:
        """uint64[n]: the blocks that are booked by name."""
        hashes = self.sequence_hashes
        return hashes if len(hashes) <= BOOKED_BLOCKS_MAX else hashes[:BOOKED_BLOCKS_MAX]

    @property
    def output_blocks(self) -> int:
        """Those that were reported; the load without a name is in `output`, too."""
        nameless = len(self.sequence_hashes) - BOOKED_BLOCKS_MAX
        return self.output.whole + self.output.faded - max(0, nameless)

    @property
    def is_leaving(self) -> bool:
        """Has its rank left, so that it is about to be released?"""
        return self.slot in self.account.leaving
