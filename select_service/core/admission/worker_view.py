"""How one worker stands to the busy thresholds, for GET /workers."""

from math import isnan

import numpy as np

from select_service.core import load_kernels as kernels
from select_service.core.admission.busy import BusyJudge, Mask
from select_service.core.admission.engine_load import EngineLoads, Heard
from select_service.core.catalog import Worker
from select_service.core.identity import Rank
from select_service.core.partition import Partition
from select_service.schema import EngineView, RankAdmission, WorkerAdmission


def worker_admission(
    judge: BusyJudge, partition: Partition, worker: Worker, now: float
) -> WorkerAdmission | None:
    """None when no threshold judges it and its engine is not asked."""
    limits, given = judge.thresholds.of(partition.key.model_name), worker.given
    if limits.off and not given.metrics_endpoint:
        return None
    free = judge.free_of_all(partition)
    failure = judge.engines.failure(worker.worker_id)
    ranks = {
        rank.dp_rank: _rank(judge.engines, partition, rank, free, now) for rank in worker.ranks()
    }
    not_judged = []
    counted = any(rank.source == "accounting" for rank in ranks.values())
    if limits.decode_blocks is not None and counted and not given.total_kv_blocks:
        not_judged.append("active_decode_blocks_threshold: total_kv_blocks is not known")
    return WorkerAdmission(
        busy=all(rank.busy for rank in ranks.values()),
        not_judged=not_judged,
        engine_error=None if failure is None else failure.error,
        ranks=ranks,
    )


def _rank(
    engines: EngineLoads, partition: Partition, rank: Rank, free: Mask, now: float
) -> RankAdmission:
    slot = partition.find(rank)
    assert slot is not None
    heard, told = engines.last(rank), float(partition.kv_usage[slot])
    blocks = float(partition.kv_blocks[slot])
    own = None if np.isinf(blocks) else int(partition.load.active_blocks()[slot]) / blocks
    return RankAdmission(
        busy=not free[slot],
        active_prefill_tokens=int(partition.load.totals[slot, kernels.PREFILL_TOKENS]),
        kv_usage=own if isnan(told) else told,
        source="accounting" if isnan(told) else "engine",
        engine=None if heard is None else _engine(engines, heard, now),
    )


def _engine(engines: EngineLoads, heard: Heard, now: float) -> EngineView:
    return EngineView(
        fresh=engines.is_fresh(heard, now),
        age_s=round(now - heard.at, 3),
        kv_usage=heard.reading.kv_usage,
        requests_waiting=heard.reading.requests_waiting,
        requests_running=heard.reading.requests_running,
    )
