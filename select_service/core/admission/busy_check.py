"""Ranks below the busy thresholds, and the error when all ranks are busy."""

from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

import numpy as np

from select_service.base.errors import Overloaded
from select_service.core.admission import busy_kernels
from select_service.core.admission.busy_thresholds import BusyThresholds, ThresholdTable
from select_service.core.admission.drain_rate import (
    RETRY_AFTER_UNKNOWN_S,
    DrainRate,
    round_up_seconds,
)
from select_service.core.admission.policy_classes import PolicyClass
from select_service.core.array_types import Mask
from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.identity import PartitionKey, Rank
from select_service.core.registry.fleet.partition import Partition
from select_service.core.workers.engine_load import EngineLoads
from select_service.schemas.selection import SelectRequest

NO_THRESHOLDS = BusyThresholds()
BUSY_TEXT = "Service temporarily unavailable: All workers are busy, please retry later"


class RankLoadLimits(NamedTuple):
    """Loads above which a rank is excluded, see busy_kernels.DECODE_MAX; infinite means no
    limit.
    """

    decode_max: float
    prefill_max: float
    room_max: float = inf
    batches_max: float = inf

    @classmethod
    def for_class(
        cls, thresholds: BusyThresholds, rules: PolicyClass | None, batch_share: float = 1.0
    ) -> "RankLoadLimits":
        """Return the limits of a model.

        rules: policy class that needs room as well, or None
        batch_share: factor of batch budgets
        """
        busy = (_or_infinite(thresholds.decode_blocks), _or_infinite(thresholds.prefill_tokens))
        if rules is None:
            return cls(*busy)
        return cls(
            *busy,
            _or_infinite(rules.prefill_busy_threshold),
            _or_infinite(rules.prefill_busy_threshold_frac) * batch_share,
        )


class BusyCounts(NamedTuple):
    ranks: int
    workers: int


class BusyCheck:
    """Busy check: applies the thresholds of each model to the load of its partitions."""

    def __init__(
        self, thresholds: ThresholdTable, engines: EngineLoads, touched: DirtyPartitions
    ) -> None:
        self.thresholds = thresholds
        self.engines = engines
        self._touched = touched
        self._rates: dict[PartitionKey, DrainRate] = {}

    def thresholds_of(self, partition: Partition) -> BusyThresholds:
        """Return the thresholds in force for a partition."""
        given = self.thresholds.thresholds_of(partition.key.model_name)
        return given.scaled_by(partition.effective_batch_share)

    def free_candidates(
        self, partition: Partition, request: SelectRequest, candidates: Mask
    ) -> Mask:
        """Return the candidates that are not busy.  A pinned rank is judged with its whole worker.

        Raises Overloaded when all candidates are busy.
        """
        limits = self.thresholds_of(partition)
        if limits.is_off:
            return candidates
        pinned = request.pinned_worker
        if pinned is None:
            free, n_free = free_ranks(partition, candidates, limits)
            if n_free:
                return free
            raise self._overloaded_error(partition, candidates, limits)
        # As in the reference, a worker is busy only when all its ranks are.
        worker = partition.table.mask_of(pinned.worker_id)
        if free_ranks(partition, worker, limits)[1]:
            return candidates
        raise self._overloaded_error(partition, worker, limits)

    def all_free_ranks(self, partition: Partition) -> Mask:
        """Return all ranks of the partition that are not busy."""
        limits = self.thresholds_of(partition)
        return (
            partition.table.open_slots
            if limits.is_off
            else free_ranks(partition, partition.table.open_slots, limits)[0]
        )

    def free_for_pinned(self, partition: Partition) -> Mask:
        """Return all ranks of workers with a rank that is not busy, the ranks open for pinned
        requests.
        """
        free = self.all_free_ranks(partition)
        # Identity means that no threshold applies.
        if free is partition.table.open_slots:
            return free
        has_free = np.zeros(len(free), np.bool_)
        has_free[partition.table.columns.worker_number[free]] = True
        return has_free[partition.table.columns.worker_number] & partition.table.open_slots

    def count_busy(self, partition: Partition) -> BusyCounts:
        """Return the number of busy ranks in rotation, and of workers with busy ranks only."""
        free, table = self.all_free_ranks(partition), partition.table
        number = table.columns.worker_number
        # Counting distinct workers is only needed while some rank is out of rotation.
        there = len(np.unique(number[table.open_slots])) if table.n_closed else table.n_workers
        n_busy = int((table.open_slots & ~free).sum())
        return BusyCounts(n_busy, there - len(np.unique(number[free])))

    def drain_rate(self, partition: Partition) -> DrainRate:
        """Return the drain rate of a partition; zero, for unknown, before the second tick."""
        found = self._rates.get(partition.key)
        return DrainRate(partition.account.drained_totals, 0.0) if found is None else found

    def update_rates(self, partitions: Mapping[PartitionKey, Partition], now: float) -> None:
        """Update the drain rates."""
        self._rates = {
            key: self._rates.get(key) or DrainRate(part.account.drained_totals, now)
            for key, part in partitions.items()
        }
        for key, partition in partitions.items():
            self._rates[key].observe_totals(partition.account.drained_totals, now)

    def apply_readings(self, partition: Partition, ranks: Iterable[Rank]) -> None:
        """Copy the trusted engine readings of these ranks into the partition."""
        table, news = partition.table, False
        for rank in ranks:
            slot = table.find_slot(rank)
            news |= slot is not None and table.set_kv_usage(slot, self.engines.kv_usage(rank))
        # Only changes wake the queues: engines repeat most of their readings.
        if news:
            self._touched.mark_capacity(partition.key)

    def _overloaded_error(
        self, partition: Partition, candidates: Mask, limits: BusyThresholds
    ) -> Overloaded:
        error = Overloaded(BUSY_TEXT)
        error.retry_after_s = self._retry_after_s(partition, candidates, limits)
        return error

    def _retry_after_s(self, partition: Partition, candidates: Mask, limits: BusyThresholds) -> int:
        """Return the seconds until the least busy candidate is below its thresholds, if all
        drain alike.
        """
        rate, n_ranks = self.drain_rate(partition), max(1, int(partition.table.open_slots.sum()))
        drain = (
            rate.blocks_per_s / n_ranks,
            rate.tokens_per_s / n_ranks,
            float(RETRY_AFTER_UNKNOWN_S),
        )
        seconds = busy_kernels.least_wait_seconds(
            candidates,
            partition.load.header,
            partition.table.header,
            RankLoadLimits.for_class(limits, None),
            drain,
        )
        return round_up_seconds(seconds)


def free_ranks(
    partition: Partition,
    candidates: Mask,
    limits: BusyThresholds,
    rules: PolicyClass | None = None,
) -> tuple[Mask, int]:
    """Return the candidates below both thresholds, and their number.

    rules: policy class for which the candidates also need room, or None
    """
    share = partition.effective_batch_share
    out = np.empty(len(candidates), np.bool_)
    n_free = busy_kernels.fill_free_ranks(
        candidates,
        partition.load.header,
        partition.table.header,
        RankLoadLimits.for_class(limits, rules, share),
        out,
    )
    return out, n_free


def _or_infinite(limit: float | None) -> float:
    return inf if limit is None else float(limit)
