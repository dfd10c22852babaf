"""Prices of fetching tokens from a shared cache, by rank.

    k     = bytes_per_token / (min(link of the rank, link of the cache) * LINK_EFFICIENCY) * speed
    value = max(0, 1 - k)

`speed` is the rank's declared prefill speed, else the median of the declared ones.  So k is in
tokens of prefill of the rank, as the prices of pairs.  A rank without a known price gets no credit.
"""

from collections.abc import Mapping
from math import inf

import numpy as np
import numpy.typing as npt

from select_service.core.array_types import Floats
from select_service.core.shared_caches.shared_hits import SharedHits
from select_service.core.shared_caches.shared_layout import (
    SHARED_FIELDS,
    SHARED_TOKENS,
    SHARED_VALUE,
)
from select_service.core.workers.rank_table import RankTable
from select_service.core.workers.transfer_prices import (
    HOST_PRICE,
    LinkPosition,
    link_position_of,
    transfer_token_s,
)

SLOTS_PER_CALL = 512
"""Maximum number of changed ranks that a call reads; the others have no price until the next."""


class FetchPrices:
    """Prices of the ranks of a table, by their current registrations."""

    def __init__(self, table: RankTable) -> None:
        self._table = table
        self._seen_version = 0
        self._versions = np.zeros(0, np.int64)
        """int64[n_slots], version of the row that the facts are of."""
        self._bytes: Floats = np.zeros(0, np.float64)
        """Bytes of a token; 0 where the rank's bytes or link are unknown."""
        self._token_s: Floats = np.zeros(0, np.float64)
        """Seconds of a token on the link of the rank."""
        self._slots_by_engine: dict[str, set[int]] = {}
        self._engine_by_slot: dict[int, str] = {}

    def prices(self, link_gbps: float | None) -> Floats:
        """Return the price of a token in the cache, float64[n_slots]; infinite where unknown.

        link_gbps: speed of the cache's link; None means that the links of the ranks decide
        """
        self._read_changes()
        declared = self._table.columns.speed[: self._table.n_slots]
        speed = np.where(declared > 0.0, declared, self._table.median_speed)
        # The slower of both links decides.
        token_s = self._token_s
        if link_gbps is not None:
            byte_s = transfer_token_s(LinkPosition(bytes_per_token=1.0, link_gbps=link_gbps)) or 0.0
            # The slower link decides.
            token_s = np.maximum(token_s, self._bytes * byte_s)
        found: Floats = np.where((self._bytes > 0.0) & (speed > 0.0), token_s * speed, inf)
        return found

    def count_unpriced(self) -> int:
        """Return the number of ranks without a known price."""
        slots = [slot for _, slot in self._table.iterate_slots()]
        return int(np.isinf(self.prices(None)[slots]).sum())

    def price_rows(self, hits: SharedHits) -> npt.NDArray[np.float64]:
        """Return the tokens of the cache and their value for every slot, a fresh array.

        Result: float64[n_slots, SHARED_FIELDS] of shared_layout; a match fills the other fields.

        An engine loads its own tokens over the bus of its host where that saves more.
        """
        # An infinite price, and one above that of computing, give no credit.
        values = np.maximum(0.0, 1.0 - self.prices(hits.link_gbps))
        rows = np.zeros((len(values), SHARED_FIELDS), np.float64)
        rows[:, SHARED_TOKENS], rows[:, SHARED_VALUE] = hits.tokens, values
        self._use_own_tokens(rows, hits.own_tokens)
        return rows

    def _use_own_tokens(
        self, rows: npt.NDArray[np.float64], tokens_by_engine: Mapping[str, int]
    ) -> None:
        for engine, tokens in tokens_by_engine.items():
            for slot in self._slots_by_engine.get(engine, ()):
                shared, value = rows[slot, SHARED_TOKENS], rows[slot, SHARED_VALUE]
                if tokens * (1.0 - HOST_PRICE) > shared * value:
                    rows[slot, SHARED_TOKENS] = tokens
                    rows[slot, SHARED_VALUE] = 1.0 - HOST_PRICE

    def _read_changes(self) -> None:
        """Read the facts of a bounded number of changed rows."""
        table, n_slots = self._table, self._table.n_slots
        if self._seen_version == table.version and len(self._versions) == n_slots:
            return
        more = (0, n_slots - len(self._versions))
        self._versions = np.pad(self._versions, more)
        self._bytes, self._token_s = np.pad(self._bytes, more), np.pad(self._token_s, more)
        versions = table.columns.version[:n_slots]
        # Comparing all versions is cheap, reading a registration is not.
        changed = np.flatnonzero(versions != self._versions)
        for slot in changed[:SLOTS_PER_CALL].tolist():
            self._read_row(slot)
            self._versions[slot] = versions[slot]
        if len(changed) <= SLOTS_PER_CALL:
            self._seen_version = table.version

    def _read_row(self, slot: int) -> None:
        # The slot may have belonged to a rank of another engine.
        if (former := self._engine_by_slot.pop(slot, None)) is not None:
            slots = self._slots_by_engine[former]
            slots.discard(slot)
            if not slots:
                del self._slots_by_engine[former]
        self._bytes[slot] = self._token_s[slot] = 0.0
        if not self._table.is_taken(slot):
            return
        row = self._table.row_at(slot)
        position, transfer = link_position_of(row.worker), row.worker.registration.kv_transfer
        if (token_s := transfer_token_s(position)) is not None:
            self._bytes[slot], self._token_s[slot] = position.bytes_per_token, token_s
        engines = {} if transfer is None else transfer.engine_ids or {}
        if (engine := engines.get(row.rank.dp_rank)) is not None:
            self._engine_by_slot[slot] = engine
            self._slots_by_engine.setdefault(engine, set()).add(slot)
