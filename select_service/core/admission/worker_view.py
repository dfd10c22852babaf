"""How workers stand to the busy thresholds, for GET /workers."""

from collections.abc import Generator, Sequence
from math import isnan
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.bodies.workers import EngineView, RankAdmission, WorkerAdmission
from select_service.core.admission.busy import BusyJudge
from select_service.core.admission.thresholds import BusyThresholds
from select_service.core.arrays import Mask
from select_service.core.engines.engine_load import EngineLoads, Heard
from select_service.core.fleet.partition import Partition
from select_service.core.identity import Rank
from select_service.core.load import load_layout as layout
from select_service.core.workers.catalog import Worker

RANKS_PER_STEP = 128
"""Ranks of a worker that are shown before others may be served."""
USAGE_DIGITS = 4
"""Of usages in columns."""


class AdmissionScene(NamedTuple):
    """What the ranks of one partition are shown by; computed once for several workers."""

    partition: Partition
    engines: EngineLoads
    limits: BusyThresholds
    free: Mask
    active_blocks: npt.NDArray[np.int64]
    now: float


def admission_scene(judge: BusyJudge, partition: Partition, now: float) -> AdmissionScene:
    """O(slots)"""
    limits = judge.limits(partition)
    free, blocks = judge.free_of_all(partition), partition.load.active_blocks()
    return AdmissionScene(partition, judge.engines, limits, free, blocks, now)


def worker_admission(
    scene: AdmissionScene, worker: Worker
) -> Generator[None, None, WorkerAdmission | None]:
    """How a worker of the partition stands, in steps: only while it is as it was at the first.

    None when no threshold judges it and its engine is not asked.
    """
    limits = scene.limits
    if limits.off and not worker.given.metrics_endpoint:
        return None
    given, failure = worker.given, scene.engines.failure(worker.worker_id)
    ranks: dict[int, RankAdmission] = {}
    for rank in worker.ranks():
        ranks[rank.dp_rank] = _rank(scene, rank)
        if len(ranks) % RANKS_PER_STEP == 0:
            yield
    mute = [r for r, rank in ranks.items() if _is_mute(rank.engine)]
    error = f"kv_usage of dp_rank {mute[0]} is missing or not credible" if mute else None
    not_judged = []
    counted = any(rank.source == "accounting" for rank in ranks.values())
    if limits.decode_blocks is not None and counted and not given.total_kv_blocks:
        not_judged.append("active_decode_blocks_threshold: total_kv_blocks is not known")
    return WorkerAdmission(
        busy=_is_busy(scene, worker, ranks),
        not_judged=not_judged,
        engine_error=error if failure is None else failure.error,
        ranks=ranks,
    )


class AdmissionColumns(NamedTuple):
    """Of some ranks, in their order.  kv_usages: 0 to 1; None: nobody can tell"""

    busy: list[bool]
    kv_usages: list[float | None]


def admission_columns(scene: AdmissionScene, slots: Sequence[int]) -> AdmissionColumns:
    """What `RankAdmission` says of the ranks in these slots, for little work."""
    columns = scene.partition.table.columns
    busy = columns.open[slots] & ~scene.free[slots]
    told = columns.kv_usage[slots]
    usages = np.where(np.isnan(told), scene.active_blocks[slots] / columns.kv_blocks[slots], told)
    is_known = (np.isfinite(columns.kv_blocks[slots]) | ~np.isnan(told)).tolist()
    shown = zip(usages.round(USAGE_DIGITS).tolist(), is_known, strict=True)
    return AdmissionColumns(busy.tolist(), [usage if known else None for usage, known in shown])


def _is_busy(scene: AdmissionScene, worker: Worker, ranks: dict[int, RankAdmission]) -> bool:
    """Is every rank busy that may be chosen?  Of none, no."""
    table = scene.partition.table
    if not table.n_closed:
        return all(rank.busy for rank in ranks.values())
    slots = table.slots_of(worker.worker_id)
    return bool(table.open[slots].any() and not scene.free[slots].any())


def _rank(scene: AdmissionScene, rank: Rank) -> RankAdmission:
    partition, engines = scene.partition, scene.engines
    slot = partition.table.find(rank)
    assert slot is not None
    heard, told = engines.last(rank), float(partition.table.columns.kv_usage[slot])
    blocks = float(partition.table.columns.kv_blocks[slot])
    own = None if np.isinf(blocks) else int(scene.active_blocks[slot]) / blocks
    return RankAdmission(
        busy=bool(partition.table.open[slot] and not scene.free[slot]),
        active_prefill_tokens=int(partition.load.totals[slot, layout.PREFILL_TOKENS]),
        kv_usage=own if isnan(told) else told,
        source="accounting" if isnan(told) else "engine",
        engine=None if heard is None else _engine(engines, heard, scene.now),
    )


def _is_mute(engine: EngineView | None) -> bool:
    """It answers, but does not say how full its cache is."""
    return engine is not None and engine.fresh and engine.kv_usage is None


def _engine(engines: EngineLoads, heard: Heard, now: float) -> EngineView:
    return EngineView(
        fresh=engines.is_fresh(heard, now),
        age_s=round(now - heard.at, 3),
        kv_usage=heard.reading.kv_usage,
        requests_waiting=heard.reading.requests_waiting,
        requests_running=heard.reading.requests_running,
    )
