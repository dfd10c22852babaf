"""Load and overlap of the ranks of a partition as response bodies."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from indexer.index.prefix_index import ReuseMatch
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.compiled import load_layout as layout
from select_service.core.placement.placement_kernels import DECODE, EFFECTIVE_PREFILL_TOKENS
from select_service.core.placement.prompt import Prompt
from select_service.core.placement.router_config import RouterConfig
from select_service.core.registry.fleet.partition import Partition
from select_service.core.shared_caches.shared_hits import SharedHits
from select_service.schemas.common import MATCH_CERTAINTIES
from select_service.schemas.inspection import (
    OverlapRow,
    OverlapScores,
    PartitionLoads,
    RankLoad,
    SharedCache,
)

ROWS_PER_STEP = 256
"""Ranks per step, before the event loop runs other tasks."""


def list_loads(
    partition: Partition,
    pending_count: int,
    pending_isl_tokens: int,
    among: Container[int] | None = None,
) -> Iterator[PartitionLoads | None]:
    """Yield the current load of every rank, by worker and rank, with None after a part of them.

    among: requested worker ids; None means all. Without a match nothing is yielded.
    """
    load = partition.load
    prefill_tokens = load.totals[:, layout.PREFILL_TOKENS]
    rows = []
    for row in _rank_loads(partition, prefill_tokens, load.compute_active_blocks()):
        if among is None or row.worker_id in among:
            rows.append(row)
        if len(rows) % ROWS_PER_STEP == 0:
            yield None
    if among is not None and not rows:
        return
    yield PartitionLoads(
        model_name=partition.key.model_name,
        tenant_id=partition.key.tenant_id,
        routing_group=partition.key.tenant_id,
        loads=rows,
        pending_count=pending_count,
        pending_isl_tokens=pending_isl_tokens,
    )


class _Waiting(Protocol):
    """Waiting requests of a partition."""

    @property
    def requests(self) -> int: ...
    @property
    def isl_tokens(self) -> int: ...


def list_loads_within(
    partitions: Mapping[PartitionKey, Partition],
    waiting_in: Callable[[PartitionKey], _Waiting],
    model_name: str | None,
    tenant_id: str | None,
    among: Container[int] | None = None,
) -> Iterator[PartitionLoads | None]:
    """Yield the loads of a scope, by model and tenant, each as of its turn.

    None is yielded after a part of a partition's ranks. Partitions removed meanwhile are left out.
    """
    for key in sorted(key for key in partitions if key.matches(model_name, tenant_id)):
        partition, waiting = partitions.get(key), waiting_in(key)
        if partition is not None:
            yield from list_loads(partition, waiting.requests, waiting.isl_tokens, among)


class LoadColumns(NamedTuple):
    """Load columns of some ranks, in their order."""

    prefill_tokens: list[int]
    active_blocks: list[int]
    active_requests: list[int]


def load_columns(
    partition: Partition, blocks: npt.NDArray[np.int64], slots: Sequence[int]
) -> LoadColumns:
    """Return the values of `RankLoad` for the ranks in these slots, cheaply.

    blocks: active blocks of all slots
    """
    totals = partition.load.totals[slots]
    prefill, requests = totals[:, layout.PREFILL_TOKENS], totals[:, layout.REQUESTS]
    return LoadColumns(prefill.tolist(), blocks[slots].tolist(), requests.tolist())


def list_potential_loads(
    partition: Partition, prompt: Prompt, config: RouterConfig
) -> Iterator[RankLoad]:
    """Return the load of every rank if this prompt were booked there."""
    placing, everybody = partition.placer, partition.table.open_slots
    placing.place_prompt(prompt, config, everybody)
    terms = placing.cost_terms(prompt, config, everybody)
    prefill = partition.load.totals[:, layout.PREFILL_TOKENS]
    if config.track_prefill_tokens:
        prefill = prefill + terms[EFFECTIVE_PREFILL_TOKENS].astype(np.int64)
    return _rank_loads(partition, prefill, terms[DECODE].astype(np.int64))


def list_overlap(
    partition: Partition, prompt: Prompt, config: RouterConfig
) -> tuple[OverlapScores, Iterator[OverlapRow]]:
    """Return matching blocks of every rank at this moment, by worker and rank.

    The result is the scores without their rows, and the rows.
    """
    reuse, assumed = partition.match_assumed(prompt, config)
    # Rows are made later, when other prompts may have been placed.
    reuse = reuse._replace(matched=reuse.matched.copy())
    assumed = None if assumed is None else assumed.copy()
    matched, policy = reuse.matched.tolist(), partition.placer.policy
    shared = _shared_cache(prompt.shared, partition.block_size)
    rows = (
        _add_assumed(
            _add_reuse(
                _overlap_row(
                    rank, matched[slot], policy.credit_blocks(matched[slot], config), shared
                ),
                reuse,
                slot,
                partition.block_size,
            ),
            0 if assumed is None else int(assumed[slot]),
        )
        for rank, slot in sorted(partition.table.iterate_slots())
    )
    scores = OverlapScores(
        block_size=partition.block_size,
        num_blocks=len(prompt.sequence_hashes),
        workers=[],
        shared_cache=shared,
    )
    return scores, rows


def _shared_cache(hits: SharedHits | None, block_size: int) -> SharedCache:
    """Return the blocks of the shared cache that all ranks can fetch."""
    if hits is None:
        return SharedCache()
    blocks = hits.tokens // block_size
    return SharedCache(
        enabled=True,
        total_hit_blocks=blocks,
        ranges=[[0, blocks]] if blocks else [],
        error=None if hits.outcome in ("hit", "miss") else hits.outcome,
    )


def _overlap_row(
    rank: Rank, matched: list[int], credit_blocks: float, shared: SharedCache
) -> OverlapRow:
    gpu, cpu, _, external = matched
    beyond = max(0, shared.total_hit_blocks - gpu) if shared.enabled else None
    return OverlapRow(
        worker_id=rank.worker_id,
        dp_rank=rank.dp_rank,
        device_blocks=gpu,
        host_pinned_blocks=cpu,
        disk_blocks=external,
        host_pinned_extension_blocks=cpu - gpu,
        disk_extension_blocks=external - cpu,
        shared_beyond_device_blocks=beyond,
        router_credit_blocks=credit_blocks,
    )


def _add_reuse(row: OverlapRow, reuse: ReuseMatch, slot: int, block_size: int) -> OverlapRow:
    """Add to the row of a rank with several cache groups what is reusable there."""
    if reuse.layouts is None or not reuse.layouts[slot]:
        return row
    assert reuse.inside is not None
    assert reuse.certainty is not None
    row.reusable_tokens = row.device_blocks * block_size + int(reuse.inside[slot])
    row.held_blocks = int(reuse.held[slot])
    row.certainty = MATCH_CERTAINTIES[reuse.certainty[slot]]
    return row


def _add_assumed(row: OverlapRow, assumed_blocks: int) -> OverlapRow:
    """Add to a row the device blocks that are only assumed."""
    if assumed_blocks:
        row.assumed_blocks, row.certainty = assumed_blocks, "assumed"
    return row


def _rank_loads(
    partition: Partition,
    prefill_tokens: npt.NDArray[np.int64],
    decode_blocks: npt.NDArray[np.int64],
) -> Iterator[RankLoad]:
    """Build rows from plain lists, as access to array elements would double the cost."""
    requests = partition.load.totals[:, layout.REQUESTS].tolist()
    # Indexing numpy arrays element by element creates a scalar object each time.
    tokens, blocks = prefill_tokens.tolist(), decode_blocks.tolist()
    return (
        RankLoad(
            worker_id=rank.worker_id,
            dp_rank=rank.dp_rank,
            potential_prefill_tokens=tokens[slot],
            potential_decode_blocks=blocks[slot],
            active_requests=requests[slot],
        )
        for rank, slot in sorted(partition.table.iterate_slots())
    )
