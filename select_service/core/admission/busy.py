"""Which ranks are below the busy thresholds, and what a refused client is told."""

from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

import numpy as np

from select_service.bodies.selection import SelectRequest
from select_service.core.admission import busy_kernels
from select_service.core.admission.drain import RETRY_AFTER_UNKNOWN_S, DrainRate, whole_s
from select_service.core.admission.policy_classes import PolicyClass
from select_service.core.admission.thresholds import BusyThresholds, ThresholdTable
from select_service.core.arrays import Mask
from select_service.core.engines.engine_load import EngineLoads
from select_service.core.fleet.partition import Partition
from select_service.core.identity import PartitionKey, Rank
from select_service.core.touched import Touched
from select_service.errors import Overloaded

NO_LIMITS = BusyThresholds()
BUSY_TEXT = "Service temporarily unavailable: All workers are busy, please retry later"


class Limits(NamedTuple):
    """From which load on a rank may not be chosen, see busy_kernels.free_ranks; infinite: any."""

    decode_max: float
    prefill_max: float
    room_max: float = inf
    batches_max: float = inf

    @classmethod
    def of(
        cls, thresholds: BusyThresholds, rules: PolicyClass | None, batch_share: float = 1.0
    ) -> "Limits":
        """rules: there has to be room for this policy class as well

        batch_share: of batch budgets, what counts
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


class BusyJudge:
    """Applies the thresholds of each model to the load of its partitions."""

    def __init__(self, thresholds: ThresholdTable, engines: EngineLoads, touched: Touched) -> None:
        self.thresholds = thresholds
        self.engines = engines
        self._touched = touched
        self._rates: dict[PartitionKey, DrainRate] = {}

    def limits(self, partition: Partition) -> BusyThresholds:
        """What counts there now."""
        given = self.thresholds.of(partition.key.model_name)
        return given.scaled(partition.batch_share)

    def free(self, partition: Partition, request: SelectRequest, candidates: Mask) -> Mask:
        """The candidates that are not busy.  A pinned rank is judged with its whole worker.

        Raises Overloaded when none is left.
        """
        limits = self.limits(partition)
        if limits.off:
            return candidates
        pinned = request.pinned_worker
        if pinned is None:
            free, n_free = free_ranks(partition, candidates, limits)
            if n_free:
                return free
            raise self._overloaded(partition, candidates, limits)
        worker = partition.table.mask_of(pinned.worker_id)
        if free_ranks(partition, worker, limits)[1]:
            return candidates
        raise self._overloaded(partition, worker, limits)

    def free_with_room(
        self, partition: Partition, candidates: Mask, rules: PolicyClass
    ) -> tuple[Mask, int]:
        """The candidates that are not busy and have room for a class, and how many they are."""
        limits = self.limits(partition)
        return free_ranks(partition, candidates, limits, rules)

    def free_of_all(self, partition: Partition) -> Mask:
        """All ranks of the partition that are not busy."""
        limits = self.limits(partition)
        return (
            partition.table.open
            if limits.off
            else free_ranks(partition, partition.table.open, limits)[0]
        )

    def free_when_pinned(self, partition: Partition) -> Mask:
        """All ranks of workers that are not busy: what a request may be pinned to."""
        free = self.free_of_all(partition)
        if free is partition.table.open:
            return free
        has_free = np.zeros(len(free), np.bool_)
        has_free[partition.table.columns.worker_number[free]] = True
        return has_free[partition.table.columns.worker_number] & partition.table.open

    def counts(self, partition: Partition) -> BusyCounts:
        """How many of the ranks that may be chosen are busy now, and workers that have such ranks
        and none of them free."""
        free, table = self.free_of_all(partition), partition.table
        number = table.columns.worker_number
        there = len(np.unique(number[table.open])) if table.n_closed else table.n_workers
        n_busy = int((table.open & ~free).sum())
        return BusyCounts(n_busy, there - len(np.unique(number[free])))

    def rate(self, partition: Partition) -> DrainRate:
        """Unknown, and so zero, before the second tick of a partition."""
        found = self._rates.get(partition.key)
        return DrainRate(partition.account.drained, 0.0) if found is None else found

    def tick(self, partitions: Mapping[PartitionKey, Partition], now: float) -> None:
        """Follow the drain rates."""
        self._rates = {
            key: self._rates.get(key) or DrainRate(part.account.drained, now)
            for key, part in partitions.items()
        }
        for key, partition in partitions.items():
            self._rates[key].observe(partition.account.drained, now)

    def read_engines(self, partition: Partition, ranks: Iterable[Rank]) -> None:
        """Let the partition know what engines say of these ranks of it, if they are believed."""
        table, news = partition.table, False
        for rank in ranks:
            slot = table.find(rank)
            news |= slot is not None and table.set_kv_usage(slot, self.engines.kv_usage(rank))
        if news:
            self._touched.capacity(partition.key)

    def _overloaded(
        self, partition: Partition, candidates: Mask, limits: BusyThresholds
    ) -> Overloaded:
        error = Overloaded(BUSY_TEXT)
        error.retry_after_s = self._retry_after_s(partition, candidates, limits)
        return error

    def _retry_after_s(self, partition: Partition, candidates: Mask, limits: BusyThresholds) -> int:
        """Until the least busy candidate is below its thresholds, if all drain alike."""
        rate, n_ranks = self.rate(partition), max(1, int(partition.table.open.sum()))
        seconds = busy_kernels.least_wait_s(
            candidates,
            partition.load.totals,
            partition.load.fractions,
            partition.table.columns.kv_blocks,
            partition.table.columns.kv_usage,
            _or_infinite(limits.decode_blocks),
            _or_infinite(limits.prefill_tokens),
            rate.blocks_per_s / n_ranks,
            rate.tokens_per_s / n_ranks,
            float(RETRY_AFTER_UNKNOWN_S),
        )
        return whole_s(seconds)


def free_ranks(
    partition: Partition,
    candidates: Mask,
    limits: BusyThresholds,
    rules: PolicyClass | None = None,
) -> tuple[Mask, int]:
    """The candidates below both thresholds, and how many they are.

    rules: only those that also have room for this policy class
    """
    return ranks_below(partition, candidates, Limits.of(limits, rules, partition.batch_share))


def ranks_below(partition: Partition, candidates: Mask, limits: Limits) -> tuple[Mask, int]:
    """The candidates below all limits, and how many they are."""
    out = np.empty(len(candidates), np.bool_)
    load = partition.load
    n_free = busy_kernels.free_ranks(
        candidates,
        load.totals,
        load.fractions,
        partition.table.columns.kv_blocks,
        partition.table.columns.kv_usage,
        partition.table.columns.batch_tokens,
        *limits,
        out,
    )
    return out, n_free


def _or_infinite(limit: float | None) -> float:
    return inf if limit is None else float(limit)
