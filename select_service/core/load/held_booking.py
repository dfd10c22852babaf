"""A live reservation as others see it: a view of its row, made on demand."""

from weakref import WeakValueDictionary

import numpy as np

from indexer.hashing.hashes import Hashes
from indexer.hashing.seeds import U64_MASK
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load import ledger_kernels as kernels
from select_service.core.load import ledger_layout as layout
from select_service.core.load.booking import Account
from select_service.core.load.ledger_memory import LedgerMemory
from select_service.core.load.origin_sums import OriginSums


class Rows:
    """The arrays of all reservations, and what their numbers stand for."""

    def __init__(self, ttl_s: float) -> None:
        """ttl_s: seconds without renewal after which a lease ends; 0 = never"""
        self.memory = LedgerMemory(ttl_s)
        self.sums = OriginSums(self.memory, self._block_size_of)
        self.accounts: WeakValueDictionary[int, Account] = WeakValueDictionary()
        """By the address of the header of their load.  Whoever may book on an account keeps it
        alive, and slots that leave do."""

    def know(self, account: Account) -> None:
        """Something is to be booked on it."""
        address = account.load.header.ctypes.data
        if address not in self.accounts:
            self.accounts[address] = account
            self.sums.sized(account.key, account.block_size)

    def _block_size_of(self, key: PartitionKey) -> int | None:
        """Of the partition that is served now; None: nothing can be booked there."""
        sizes = [a.block_size for a in self.accounts.values() if a.key == key]
        return sizes[-1] if sizes else None


class Booking:
    """Reads the row whenever it is asked.  Equal to another view of the same reservation.

    After the release the row reads as before until something new is booked.
    """

    __slots__ = ("_name", "_rows", "order", "row")

    def __init__(self, rows: Rows, row: int, name: str | None = None) -> None:
        self._rows, self.row, self.order = rows, row, int(rows.memory.orders[row])
        self._name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Booking) and (self.row, self.order) == (other.row, other.order)

    def __hash__(self) -> int:
        return hash((self.row, self.order))

    def _field(self, field: int) -> int:
        return self._rows.memory.fields[self.row * layout.FIELDS + field]

    def _time(self, field: int) -> float:
        return self._rows.memory.times[self.row * layout.FIELDS + field]

    @property
    def reservation_id(self) -> str:
        if self._name is None:
            n_bytes = self._field(layout.NAME_BYTES)
            self._name = self._words(0, -(-n_bytes // 8)).tobytes()[:n_bytes].decode()
        return self._name

    @property
    def account(self) -> Account:
        return self._rows.accounts[self._field(layout.LOAD)]

    @property
    def key(self) -> PartitionKey:
        return self.account.key

    @property
    def rank(self) -> Rank:
        worker_id = self._field(layout.WORKER_ID) & U64_MASK
        return Rank(worker_id, self._field(layout.DP_RANK))

    @property
    def slot(self) -> int:
        return self._field(layout.SLOT)

    @property
    def is_leaving(self) -> bool:
        """Has its rank left, so that it is about to be released?"""
        return self.slot in self.account.leaving

    @property
    def origin(self) -> int | None:
        """Router id of the replica that answers for it; None: this one."""
        return self._rows.sums.place(self._field(layout.SUM)).origin

    @property
    def sequence_hashes(self) -> Hashes:
        """uint64[n], a copy."""
        return self.first_hashes(self.prompt_blocks)

    @property
    def named(self) -> Hashes:
        """uint64[n], a copy: the blocks that are booked by name."""
        return self.first_hashes(self.n_named)

    def first_hashes(self, n: int) -> Hashes:
        """As many of the sequence hashes, if there are."""
        return self._words(-(-self._field(layout.NAME_BYTES) // 8), min(n, self.prompt_blocks))

    def _words(self, first: int, n: int) -> Hashes:
        out = np.empty(n, np.uint64)
        kernels.copy_chain(self._rows.memory.header, self.row, first, out)
        return out

    @property
    def cached_blocks(self) -> int:
        """Of its prompt, those that the rank had when it was booked."""
        return self._field(layout.CACHED)

    def first_of_prompt(self, n: int) -> Hashes:
        """uint64[n at most], a copy: block hashes of its prompt, while its prefill is followed."""
        chunk = self._field(layout.PROMPT) if self.work else 0
        n = min(n, self._field(layout.PROMPT_BLOCKS)) if chunk else 0
        return self._rows.memory.chain(chunk, n)

    @property
    def prompt_blocks(self) -> int:
        """Sequence hashes that are kept."""
        return self._field(layout.BLOCKS)

    @property
    def n_named(self) -> int:
        """Those of them that are booked by name."""
        return self._field(layout.NAMED)

    @property
    def isl_tokens(self) -> int:
        return self._field(layout.ISL_TOKENS)

    @property
    def prefill_tokens(self) -> int:
        return self._field(layout.TOKENS)

    @property
    def prefilling(self) -> bool:
        return bool(self._field(layout.IS_PREFILLING))

    @property
    def work(self) -> int:
        """Own work of its prefill in tokens, 0: it is not in the account, or not any more."""
        return self._field(layout.WORK)

    @property
    def mark(self) -> int:
        """Hash of its id and rank, for comparing many of them at once."""
        return self._field(layout.MARK) & U64_MASK

    @property
    def nameless(self) -> int:
        """Load that has no name: output blocks, and prompt blocks behind the named ones."""
        return self._field(layout.WHOLE) + self._field(layout.FADED)

    @property
    def output_blocks(self) -> int:
        """Those that were reported."""
        return self.nameless - (self.prompt_blocks - self.n_named)

    @property
    def booked_at(self) -> float:
        return self._time(layout.BOOKED_AT)

    @property
    def renewed_at(self) -> float:
        return self._time(layout.RENEWED_AT)

    @property
    def lease_ends_at(self) -> float:
        """In seconds; infinite: never."""
        return float(self._rows.memory.ends[self.row])
