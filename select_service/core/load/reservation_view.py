"""View of a live reservation, created on demand from its row."""

from weakref import WeakValueDictionary

import numpy as np

from indexer.hashing.block_hashing import Hashes
from indexer.hashing.seeds import U64_MASK
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.compiled import ledger_kernels as kernels
from select_service.core.load.compiled import ledger_layout as layout
from select_service.core.load.ledger_memory import LedgerMemory
from select_service.core.load.new_reservation import LoadAccount
from select_service.core.load.origin_sums import OriginSums


class ReservationRows:
    """Arrays of all reservations, with the accounts behind their numbers."""

    def __init__(self, ttl_s: float) -> None:
        """Allocate the arrays.

        ttl_s: seconds without renewal after which a lease ends; 0 = never
        """
        self.memory = LedgerMemory(ttl_s)
        self.sums = OriginSums(self.memory, self._block_size_of)
        self.accounts: WeakValueDictionary[int, LoadAccount] = WeakValueDictionary()
        """Accounts by the address of their load header.

        Weak references: partitions and leaving slots keep the accounts in use alive.
        """

    def register_account(self, account: LoadAccount) -> None:
        """Register an account before its first booking."""
        account.registrar = self
        self.accounts[account.load.header.ctypes.data] = account
        self.sums.set_block_size(account.key, account.block_size)

    def _block_size_of(self, key: PartitionKey) -> int | None:
        """Return the block size of the partition served now.  None means nothing can be booked
        there.
        """
        sizes = [a.block_size for a in self.accounts.values() if a.key == key]
        # A partition may return with another block size while its older account still lingers.
        return sizes[-1] if sizes else None


class ReservationView:
    """View of a reservation, equal to any other view of the same reservation.

    Every access reads the row.  After the release the row keeps its values until the next booking.
    """

    __slots__ = ("_name", "_rows", "order", "row")

    def __init__(self, rows: ReservationRows, row: int, name: str | None = None) -> None:
        self._rows, self.row, self.order = rows, row, int(rows.memory.orders[row])
        self._name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReservationView) and (self.row, self.order) == (
            other.row,
            other.order,
        )

    def __hash__(self) -> int:
        return hash((self.row, self.order))

    def _read_field(self, field: int) -> int:
        return self._rows.memory.fields[self.row * layout.FIELDS + field]

    def _read_time(self, field: int) -> float:
        return self._rows.memory.times[self.row * layout.FIELDS + field]

    @property
    def reservation_id(self) -> str:
        if self._name is None:
            n_bytes = self._read_field(layout.NAME_BYTES)
            self._name = self._copy_words(0, -(-n_bytes // 8)).tobytes()[:n_bytes].decode()
        return self._name

    @property
    def account(self) -> LoadAccount:
        return self._rows.accounts[self._read_field(layout.LOAD)]

    @property
    def key(self) -> PartitionKey:
        return self.account.key

    @property
    def rank(self) -> Rank:
        worker_id = self._read_field(layout.WORKER_ID) & U64_MASK
        return Rank(worker_id, self._read_field(layout.DP_RANK))

    @property
    def slot(self) -> int:
        return self._read_field(layout.SLOT)

    @property
    def is_leaving(self) -> bool:
        """Whether the rank has left, so that the reservation is about to be released."""
        return self.slot in self.account.leaving_slots

    @property
    def origin(self) -> int | None:
        """Router id of the replica responsible for the reservation; None means this replica."""
        return self._rows.sums.subject_of(self._read_field(layout.SUM)).origin

    @property
    def sequence_hashes(self) -> Hashes:
        """uint64[n], a copy."""
        return self.first_hashes(self.prompt_blocks)

    @property
    def hashed_blocks(self) -> Hashes:
        """uint64[n], a copy: the blocks booked by hash."""
        return self.first_hashes(self.n_hashed)

    def first_hashes(self, n: int) -> Hashes:
        """Return up to n of the sequence hashes."""
        return self._copy_words(
            -(-self._read_field(layout.NAME_BYTES) // 8), min(n, self.prompt_blocks)
        )

    def _copy_words(self, first: int, n: int) -> Hashes:
        out = np.empty(n, np.uint64)
        kernels.copy_chain(self._rows.memory.header, self.row, first, out)
        return out

    @property
    def cached_blocks(self) -> int:
        """Prompt blocks present on the rank at booking time."""
        return self._read_field(layout.CACHED)

    def prompt_beginning(self, n: int) -> Hashes:
        """Return up to n block hashes of the prompt, uint64, a copy; empty unless progress is
        estimated.
        """
        chunk = self._read_field(layout.PROMPT) if self.prefill_work else 0
        n = min(n, self._read_field(layout.PROMPT_BLOCKS)) if chunk else 0
        return self._rows.memory.read_chain(chunk, n)

    @property
    def prompt_blocks(self) -> int:
        """Number of stored sequence hashes."""
        return self._read_field(layout.BLOCKS)

    @property
    def n_hashed(self) -> int:
        """Number of blocks booked by hash."""
        return self._read_field(layout.HASHED_BLOCKS)

    @property
    def isl_tokens(self) -> int:
        return self._read_field(layout.ISL_TOKENS)

    @property
    def prefill_tokens(self) -> int:
        return self._read_field(layout.TOKENS)

    @property
    def is_prefilling(self) -> bool:
        return bool(self._read_field(layout.IS_PREFILLING))

    @property
    def prefill_work(self) -> int:
        """Own work of the prefill in tokens; 0 means no entry in the account, or none any more."""
        return self._read_field(layout.WORK)

    @property
    def fingerprint(self) -> int:
        """Hash of id and rank, for comparing many reservations at once."""
        return self._read_field(layout.FINGERPRINT) & U64_MASK

    @property
    def untracked_blocks(self) -> int:
        """Number of blocks without a hash: output blocks, and prompt blocks behind the hashed
        blocks.
        """
        return self._read_field(layout.WHOLE_WEIGHT_BLOCKS) + self._read_field(
            layout.DECAYED_BLOCKS
        )

    @property
    def output_blocks(self) -> int:
        """Number of reported output blocks."""
        return self.untracked_blocks - (self.prompt_blocks - self.n_hashed)

    @property
    def booked_at(self) -> float:
        return self._read_time(layout.BOOKED_AT)

    @property
    def renewed_at(self) -> float:
        return self._read_time(layout.RENEWED_AT)

    @property
    def lease_ends_at(self) -> float:
        """End of the lease in seconds; infinite means never."""
        return float(self._rows.memory.ends[self.row])
