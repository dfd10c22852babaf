"""Sources for engines: another rank from which a part of a prompt comes faster than by computing.

The price of a token is that of pairs, by the registered links of both workers and the prefill speed
of the chosen rank.  Without a known price of both there is no source.  Only announced blocks in GPU
memory count, and only where the overlap is exact.
"""

from math import inf
from typing import NamedTuple

import numpy as np

from indexer.tiers import Tier
from select_service.core.registry.fleet.partition import Partition, RankPlacement
from select_service.core.workers.rank_table import RankRow
from select_service.core.workers.transfer_prices import (
    LinkPosition,
    link_position_of,
    price_between,
    price_over_network,
)
from select_service.schemas.shared_caches import FetchSource

CANDIDATES_MAX = 64
"""Maximum number of ranks that are compared, those with most blocks."""
EXACT = 0
"""Number of the certainty of an exact match (MATCH_CERTAINTIES)."""


class _Source(NamedTuple):
    """Rank to fetch from: leading tokens of the prompt there, and how many of these to fetch."""

    row: RankRow
    tokens: int
    fetched: int
    price: float


class FetchSources:
    """Finder of the ranks to fetch from."""

    def find_source(self, partition: Partition, placement: RankPlacement) -> FetchSource | None:
        """Return the rank that saves most for the last placement, or None.  O(slots)"""
        best, least_cost = None, inf
        for source in self._list_sources(partition, placement):
            # Tokens of prefill that remain: those that no fetch brings, and the price of the fetch.
            cost = -source.fetched * (1.0 - source.price)
            if source.price < 1.0 and cost < min(least_cost, 0.0):
                best, least_cost = source, cost
        partition.kv_source_outcomes["none" if best is None else "given"] += 1
        if best is None:
            return None
        worker, rank = best.row.worker, best.row.rank
        found = FetchSource(
            worker_id=rank.worker_id,
            dp_rank=rank.dp_rank,
            endpoint=worker.registration.endpoint or "",
            tokens=best.tokens,
            fetch_tokens=best.fetched,
            fetch_price=round(best.price, 6),
        )
        transfer = worker.registration.kv_transfer
        engines = {} if transfer is None else transfer.engine_ids or {}
        if rank.dp_rank in engines:
            found.engine_id = engines[rank.dp_rank]
        return found

    def _list_sources(self, partition: Partition, placement: RankPlacement) -> list[_Source]:
        table, placer, slot = partition.table, partition.placer, placement.slot
        n_slots, size = table.n_slots, partition.block_size
        held = size * placement.external
        blocks = placer.scratch.matched[:n_slots, Tier.GPU].astype(np.int64)
        if placer.may_assume:
            # An engine could not fetch blocks that are only assumed to be there.
            blocks -= placer.scratch.assumed_blocks[:n_slots]
        blocks[slot] = 0
        blocks[~table.open_slots] = 0
        if partition.index.has_layouts:
            reuse = partition.index.last_reuse(placer.scratch.matched)
            if reuse.certainty is not None and reuse.inside is not None:
                blocks[reuse.certainty != EXACT] = 0
                # The chosen rank may hold a part of the first block that it lacks.
                held += int(reuse.inside[slot])
        ahead = np.flatnonzero(size * blocks > held)
        if not len(ahead):
            return []
        own = link_position_of(table.row_at(slot).worker)
        speed = float(table.columns.speed[slot]) or table.median_speed or None
        ahead = ahead[np.argsort(-blocks[ahead], kind="stable")[:CANDIDATES_MAX]]
        found, price_of = [], dict[LinkPosition, float]()
        for at in filter(table.is_taken, ahead.tolist()):
            row = table.row_at(at)
            # Few links differ, and a price takes longer than a look-up.
            position = link_position_of(row.worker)
            if (price := price_of.get(position)) is None:
                price = price_of[position] = _known_price(position, own, speed)
            tokens = size * int(blocks[at])
            found.append(_Source(row, tokens, tokens - held, price))
        return found


def _known_price(source: LinkPosition, target: LinkPosition, speed: float | None) -> float:
    """Return the price of moving a token; infinite if a link is unknown or forbidden."""
    if price_over_network(source, speed) is None or price_over_network(target, speed) is None:
        return inf
    return price_between(source, target, speed)
