"""One live reservation, and the account of the partition whose load it is part of."""

from dataclasses import dataclass, field
from typing import NamedTuple

from indexer.hashing.hashes import Hashes
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load import kernels
from select_service.core.load.active_load import ActiveLoad, OutputBlocks


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
        self.bookings: list[dict[int, Booking]] = []
        """By slot: order of booking -> booking.  Only the ledger writes here."""
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
            assert all(b.account is self and b.slot == slot for b in held.values())
            assert totals[slot, kernels.REQUESTS] == len(held)
            assert totals[slot, kernels.PREFILL_TOKENS] == sum(
                b.prefill_tokens for b in held.values()
            )


@dataclass(slots=True, eq=False)
class Booking:
    """Load of one live reservation.  `slot` belongs to the partition of `account`.

    origin:         router id of the replica that admitted it; None: this one
    tracks_prefill: are its prefill tokens to be counted; False: nobody asked for that
    mark:           hash of its id and rank, for comparing many of them at once
    lease_ends_at:  when it expires, if that is not the time to live after its last renewal
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
    output: OutputBlocks = field(default_factory=OutputBlocks)
    prefilling: bool = True
    order: int = -1
    renewed_at: float = 0.0

    @property
    def key(self) -> PartitionKey:
        return self.account.key

    @property
    def is_leaving(self) -> bool:
        """Has its rank left, so that it is about to be released?"""
        return self.slot in self.account.leaving
