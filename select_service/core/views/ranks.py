"""Load and overlap of the ranks of one partition, as the bodies that clients read."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from select_service.bodies.inspection import (
    OverlapRow,
    OverlapScores,
    PartitionLoads,
    RankLoad,
    SharedCache,
)
from select_service.core.decide.placement_kernels import DECODE, EFFECTIVE_PREFILL_TOKENS
from select_service.core.decide.prompt import Prompt
from select_service.core.decide.router_config import RouterConfig
from select_service.core.fleet.partition import Partition
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load import load_layout as layout

ROWS_PER_STEP = 256
"""Ranks of a partition whose load is shown before others may be served."""


def loads_of(
    partition: Partition,
    pending_count: int,
    pending_isl_tokens: int,
    among: Container[int] | None = None,
) -> Iterator[PartitionLoads | None]:
    """Load of every rank at this moment, by worker and rank; None after a part of them.

    among: ids of the workers that are wanted; None: all.  Without any of them nothing is shown.
    """
    load = partition.load
    prefill_tokens = load.totals[:, layout.PREFILL_TOKENS]
    rows = []
    for row in _rank_loads(partition, prefill_tokens, load.active_blocks()):
        if among is None or row.worker_id in among:
            rows.append(row)
        if len(rows) % ROWS_PER_STEP == 0:
            yield None
    if among is not None and not rows:
        return
    yield PartitionLoads(
        model_name=partition.key.model_name,
        tenant_id=partition.key.tenant_id,
        loads=rows,
        pending_count=pending_count,
        pending_isl_tokens=pending_isl_tokens,
    )


class _Waiting(Protocol):
    """What waits in a partition."""

    @property
    def requests(self) -> int: ...
    @property
    def isl_tokens(self) -> int: ...


def loads_within(
    partitions: Mapping[PartitionKey, Partition],
    waiting_in: Callable[[PartitionKey], _Waiting],
    model_name: str | None,
    tenant_id: str | None,
    among: Container[int] | None = None,
) -> Iterator[PartitionLoads | None]:
    """Of a scope, by model and tenant; each as it is when it is asked for.

    None after a part of the ranks of one.  Partitions that have gone meanwhile are left out.
    """
    for key in sorted(key for key in partitions if key.within(model_name, tenant_id)):
        partition, waiting = partitions.get(key), waiting_in(key)
        if partition is not None:
            yield from loads_of(partition, waiting.requests, waiting.isl_tokens, among)


class LoadColumns(NamedTuple):
    """Of some ranks, in their order."""

    prefill_tokens: list[int]
    active_blocks: list[int]
    active_requests: list[int]


def load_columns(
    partition: Partition, blocks: npt.NDArray[np.int64], slots: Sequence[int]
) -> LoadColumns:
    """What `RankLoad` says of the ranks in these slots, for little work.

    blocks: the active blocks of all slots
    """
    totals = partition.load.totals[slots]
    prefill, requests = totals[:, layout.PREFILL_TOKENS], totals[:, layout.REQUESTS]
    return LoadColumns(prefill.tolist(), blocks[slots].tolist(), requests.tolist())


def potential_loads_of(
    partition: Partition, prompt: Prompt, config: RouterConfig
) -> Iterator[RankLoad]:
    """What the load of every rank would be with this prompt on it."""
    placing, everybody = partition.placing, partition.table.open
    placing.place(prompt, config, everybody)
    terms = placing.terms(prompt, config, everybody)
    prefill = partition.load.totals[:, layout.PREFILL_TOKENS]
    if config.track_prefill_tokens:
        prefill = prefill + terms[EFFECTIVE_PREFILL_TOKENS].astype(np.int64)
    return _rank_loads(partition, prefill, terms[DECODE].astype(np.int64))


def overlap_of(
    partition: Partition, prompt: Prompt, config: RouterConfig
) -> tuple[OverlapScores, Iterator[OverlapRow]]:
    """Blocks of every rank that match at the moment of the call, by worker and rank.

    The scores come without their rows, and these beside them.
    """
    matched, policy = partition.index.match(prompt.block_hashes).tolist(), partition.placing.policy
    rows = (
        _overlap_row(rank, matched[slot], policy.credit_blocks(matched[slot], config))
        for rank, slot in sorted(partition.table.slots())
    )
    scores = OverlapScores(
        block_size=partition.block_size,
        num_blocks=len(prompt.sequence_hashes),
        workers=[],
        shared_cache=SharedCache(),
    )
    return scores, rows


def _overlap_row(rank: Rank, matched: list[int], credit_blocks: float) -> OverlapRow:
    gpu, cpu, _, external = matched
    return OverlapRow(
        worker_id=rank.worker_id,
        dp_rank=rank.dp_rank,
        device_blocks=gpu,
        host_pinned_blocks=cpu,
        disk_blocks=external,
        host_pinned_extension_blocks=cpu - gpu,
        disk_extension_blocks=external - cpu,
        shared_beyond_device_blocks=None,
        router_credit_blocks=credit_blocks,
    )


def _rank_loads(
    partition: Partition,
    prefill_tokens: npt.NDArray[np.int64],
    decode_blocks: npt.NDArray[np.int64],
) -> Iterator[RankLoad]:
    """Of plain lists: an array costs as much per element as all the rest."""
    requests = partition.load.totals[:, layout.REQUESTS].tolist()
    tokens, blocks = prefill_tokens.tolist(), decode_blocks.tolist()
    return (
        RankLoad(
            worker_id=rank.worker_id,
            dp_rank=rank.dp_rank,
            potential_prefill_tokens=tokens[slot],
            potential_decode_blocks=blocks[slot],
            active_requests=requests[slot],
        )
        for rank, slot in sorted(partition.table.slots())
    )
