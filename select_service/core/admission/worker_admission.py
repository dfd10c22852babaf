"""Admission state of workers, for GET /workers."""

from collections.abc import Generator, Sequence
from math import isnan
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.admission.busy_check import BusyCheck
from select_service.core.admission.busy_thresholds import BusyThresholds
from select_service.core.array_types import Mask
from select_service.core.identity import Rank
from select_service.core.load.compiled import load_layout as layout
from select_service.core.registry.fleet.partition import Partition
from select_service.core.workers.engine_load import EngineLoads, TimedReading
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.schemas.workers import EngineView, RankAdmission, WorkerAdmission

RANKS_PER_STEP = 128
"""Ranks of a worker rendered in a step of the event loop."""
USAGE_DIGITS = 4
"""Decimal places of usages in columns."""


class WorkerAdmissionContext(NamedTuple):
    """Admission data of a partition, computed once for several workers."""

    partition: Partition
    engines: EngineLoads
    limits: BusyThresholds
    free: Mask
    active_blocks: npt.NDArray[np.int64]
    now: float


def worker_admission_context(
    judge: BusyCheck, partition: Partition, now: float
) -> WorkerAdmissionContext:
    """Return the admission data of a partition.  O(slots)"""
    limits = judge.thresholds_of(partition)
    free, blocks = judge.all_free_ranks(partition), partition.load.compute_active_blocks()
    return WorkerAdmissionContext(partition, judge.engines, limits, free, blocks, now)


def make_worker_admission(
    scene: WorkerAdmissionContext, worker: RegisteredWorker
) -> Generator[None, None, WorkerAdmission | None]:
    """Return the admission state of a worker, in steps; the worker must not change meanwhile.

    None means that no threshold applies and no engine is read.
    """
    limits = scene.limits
    if limits.is_off and not worker.registration.metrics_endpoint:
        return None
    given, failure = worker.registration, scene.engines.last_failure(worker.worker_id)
    ranks: dict[int, RankAdmission] = {}
    for rank in worker.list_ranks():
        ranks[rank.dp_rank] = _make_rank_admission(scene, rank)
        if len(ranks) % RANKS_PER_STEP == 0:
            yield
    mute = [r for r, rank in ranks.items() if _lacks_usage(rank.engine)]
    error = f"kv_usage of dp_rank {mute[0]} is missing or invalid" if mute else None
    not_judged = []
    counted = any(rank.source == "accounting" for rank in ranks.values())
    if limits.decode_blocks is not None and counted and not given.total_kv_blocks:
        not_judged.append("active_decode_blocks_threshold: total_kv_blocks is unknown; declare it")
    return WorkerAdmission(
        busy=_is_busy(scene, worker, ranks),
        not_judged=not_judged,
        engine_error=error if failure is None else failure.error,
        ranks=ranks,
    )


class AdmissionColumns(NamedTuple):
    """Admission columns of some ranks, in order.

    kv_usages: used shares of the KV cache, 0 to 1; None means unknown
    """

    busy: list[bool]
    kv_usages: list[float | None]


def make_admission_columns(scene: WorkerAdmissionContext, slots: Sequence[int]) -> AdmissionColumns:
    """Return the columns of the ranks in these slots, cheaper than `RankAdmission`."""
    columns = scene.partition.table.columns
    busy = columns.open[slots] & ~scene.free[slots]
    measured = columns.kv_usage[slots]
    # The engine's own number includes blocks of requests that bypass this service.
    usages = np.where(
        np.isnan(measured),
        scene.active_blocks[slots] / columns.kv_blocks[slots],
        measured,
    )
    is_known = (np.isfinite(columns.kv_blocks[slots]) | ~np.isnan(measured)).tolist()
    shown = zip(usages.round(USAGE_DIGITS).tolist(), is_known, strict=True)
    return AdmissionColumns(
        busy.tolist(), [usage if has_usage else None for usage, has_usage in shown]
    )


def _is_busy(
    scene: WorkerAdmissionContext, worker: RegisteredWorker, ranks: dict[int, RankAdmission]
) -> bool:
    """Return whether every rank in rotation is busy; False without such ranks."""
    table = scene.partition.table
    if not table.n_closed:
        return all(rank.busy for rank in ranks.values())
    slots = table.slots_of(worker.worker_id)
    return bool(table.open_slots[slots].any() and not scene.free[slots].any())


def _make_rank_admission(scene: WorkerAdmissionContext, rank: Rank) -> RankAdmission:
    partition, engines = scene.partition, scene.engines
    slot = partition.table.find_slot(rank)
    assert slot is not None
    reading, engine_usage = (
        engines.last_reading(rank),
        float(partition.table.columns.kv_usage[slot]),
    )
    blocks = float(partition.table.columns.kv_blocks[slot])
    # An undeclared cache size is infinite in the columns.
    own = None if np.isinf(blocks) else int(scene.active_blocks[slot]) / blocks
    return RankAdmission(
        busy=bool(partition.table.open_slots[slot] and not scene.free[slot]),
        active_prefill_tokens=int(partition.load.totals[slot, layout.PREFILL_TOKENS]),
        kv_usage=own if isnan(engine_usage) else engine_usage,
        source="accounting" if isnan(engine_usage) else "engine",
        engine=None if reading is None else _make_engine_view(engines, reading, scene.now),
    )


def _lacks_usage(engine: EngineView | None) -> bool:
    """Return whether an engine answers without its cache usage."""
    return engine is not None and engine.fresh and engine.kv_usage is None


def _make_engine_view(engines: EngineLoads, last_reading: TimedReading, now: float) -> EngineView:
    return EngineView(
        fresh=engines.is_fresh(last_reading, now),
        age_s=round(now - last_reading.at, 3),
        kv_usage=last_reading.reading.kv_usage,
        requests_waiting=last_reading.reading.requests_waiting,
        requests_running=last_reading.reading.requests_running,
    )
