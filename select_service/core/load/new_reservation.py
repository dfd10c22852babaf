"""New bookings, and the load account of a partition."""

from typing import NamedTuple

import numpy as np

from indexer.hashing.block_hashing import Hashes, Tokens
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.active_load import ActiveLoad
from select_service.core.load.compiled import load_layout as layout
from select_service.core.load.compiled.ledger_layout import ANY_PART
from select_service.schemas.pairs import PairRecord

BOOKED_BLOCKS_MAX = 8192
"""Number of prompt blocks booked by hash, some milliseconds of work.

Further blocks count as load without a hash, as if no other reservation shared them.
"""

UNKNOWN_CACHED = -1
"""Cached blocks of a booking on a rank that was chosen without a lookup of the prompt."""

NO_PROMPT: Hashes = np.zeros(0, np.uint64)


class DrainedTotals(NamedTuple):
    """Running sums: prefill tokens completed or released, and prompt blocks freed."""

    tokens: int = 0
    blocks: int = 0


class LoadAccount:
    """Load account of a partition.

    The account outlives its partition until the reservations of the last ranks are released.
    """

    def __init__(self, key: PartitionKey, block_size: int) -> None:
        """Create an empty account."""
        self.key = key
        self.block_size = block_size
        self.load = ActiveLoad()
        self.registrar: object = None
        """Table of rows that has registered the account, or None."""
        self.leaving_slots: set[int] = set()
        """Slots abandoned by their rank; such slots take no new load and are reused once empty."""

    @property
    def drained_totals(self) -> DrainedTotals:
        header = self.load.header
        return DrainedTotals(int(header[layout.DRAINED_TOKENS]), int(header[layout.DRAINED_BLOCKS]))

    def is_empty(self, slot: int) -> bool:
        """Return whether nothing is booked on the slot."""
        return not self.load.totals[slot, layout.REQUESTS]

    def reserve_slots(self, n_slots: int) -> None:
        """Allocate room for `ensure_slots`.  Raises MemoryError without a visible change."""
        self.load.reserve_slots(n_slots)

    def ensure_slots(self, n_slots: int) -> None:
        """Make slots 0 .. n_slots-1 exist.  Never shrinks."""
        self.load.ensure_slots(n_slots)

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        self.load.check_invariants()


class MoveConstraints(NamedTuple):
    """Migration constraints of a reservation.

    block_hashes: uint64[n], block hashes of the prompt; empty means unknown
    pinned: the only allowed rank, or None
    allowed: allowed workers; None means all
    required: required taints
    """

    block_hashes: Hashes = NO_PROMPT
    priority: int = 0
    migratable: bool = True
    pinned: Rank | None = None
    allowed: frozenset[int] | None = None
    required: frozenset[str] = frozenset()

    @property
    def n_names(self) -> int:
        """Number of workers and taints in the constraints."""
        return len(self.allowed or ()) + len(self.required)

    @property
    def is_restrictive(self) -> bool:
        """Whether the constraints exclude any rank."""
        return self.pinned is not None or self.allowed is not None or bool(self.required)


NO_MOVE_CONSTRAINTS = MoveConstraints()
"""Constraints of a usual request, without the prompt."""


class PromptEnd(NamedTuple):
    """End of a prompt behind the last whole block, to continue the prompt with the answer.

    seed: seed of the prompt's block hashes
    tokens: uint32[less than a block]
    """

    seed: int
    tokens: Tokens


class NewReservation(NamedTuple):
    """Load of a reservation to be booked.  `slot` belongs to the partition of `account`.

    sequence_hashes: uint64[n]; hashes behind BOOKED_BLOCKS_MAX are kept only for peers
    booked_at:       seconds
    origin:          router id of the admitting replica; None means this replica
    tracks_prefill:  whether prefill tokens count
    nameless:        number of prompt blocks that count without a hash
    own_work:        tokens the rank would compute; None means all booked tokens
    cached_blocks:   prompt blocks present on the rank, or UNKNOWN_CACHED
    prompt:          uint64[n], block hashes, if progress is to be estimated
    block_hashes:    uint64[n], block hashes, if the rank may be assumed to hold them
    prompt_end:      end of the prompt, in the same case; None if not known
    move_constraints:          migration constraints; None means `prompt` only
    session_id:      session of the request, for peers; None without one
    pair:            request behind a pair, for peers; None for a reservation on one rank
    request_part:    part of its request, for observations (ledger_layout)
    """

    reservation_id: str
    account: LoadAccount
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
    is_prefilling: bool = True
    untracked_blocks: int = 0
    own_work: int | None = None
    cached_blocks: int = 0
    prompt: Hashes = NO_PROMPT
    move_constraints: MoveConstraints | None = None
    session_id: str | None = None
    block_hashes: Hashes = NO_PROMPT
    prompt_end: PromptEnd | None = None
    pair: PairRecord | None = None
    request_part: int = ANY_PART

    @property
    def key(self) -> PartitionKey:
        return self.account.key

    @property
    def prefill_work(self) -> int:
        """Prefill work entered in the account, in tokens; 0 means no entry."""
        if not self.is_prefilling or not self.tracks_prefill:
            return 0
        return max(1, self.prefill_tokens if self.own_work is None else self.own_work)

    @property
    def n_hashed(self) -> int:
        """Number of blocks booked by hash."""
        return min(len(self.sequence_hashes), BOOKED_BLOCKS_MAX)


def count_untracked_blocks(prompt_blocks: int) -> int:
    """Return the number of prompt blocks that are not booked by hash."""
    return max(0, prompt_blocks - BOOKED_BLOCKS_MAX)


def bound_hashes(hashes: Hashes) -> Hashes:
    """Return the prompt blocks that are booked by hash, as a copy if shorter.

    hashes: uint64[n], a prompt or its beginning
    """
    return hashes if len(hashes) <= BOOKED_BLOCKS_MAX else hashes[:BOOKED_BLOCKS_MAX].copy()
