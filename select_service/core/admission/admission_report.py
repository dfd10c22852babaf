"""Numbers of the admission stage, for metrics."""

from collections.abc import Generator, Mapping
from typing import NamedTuple

from select_service.core.admission.admission_gate import AdmissionGate
from select_service.core.admission.busy_check import BusyCounts
from select_service.core.admission.waiting_list import NO_BACKLOG, Backlog
from select_service.core.duration_histogram import DurationHistogram
from select_service.core.identity import PartitionKey, Rank
from select_service.core.registry.fleet.partition import Partition
from select_service.core.workers.engine_load import EngineReading
from select_service.schemas.admission import BusyThresholdView

RANKS_PER_STEP = 256
"""Ranks with engine readings handled in a step of the event loop."""


class AdmissionReport(NamedTuple):
    """Numbers of the admission stage.

    issued: number of requests judged, including waiting ones
    bounds: limits of the waiting requests
    """

    issued: int
    rejected: int
    waiting: Backlog
    bounds: Backlog
    outcomes: Mapping[str, int]
    shed: Mapping[str, int]
    tier_shed: Mapping[str, bool]
    classes: Mapping[str, Backlog]
    flows: Mapping[str, int]
    missed_deadlines: Mapping[str, int]
    waits: Mapping[str, DurationHistogram]
    busy: Mapping[PartitionKey, BusyCounts]
    thresholds: tuple[BusyThresholdView, ...]
    engine_readings: Mapping[tuple[PartitionKey, Rank], EngineReading]
    engine_stale: int


def admission_report(
    gate: AdmissionGate, partitions: Mapping[PartitionKey, Partition], now: float
) -> Generator[None, None, AdmissionReport]:
    """Return the current numbers, in steps.  Costs O(ranks + waiting classes)."""
    tally, tiers, rules = gate.tally, gate.shedding.tiers, gate.rules
    busy = yield from _busy_counts(gate, partitions)
    readings, stale = yield from _fresh_readings(gate, partitions, now)
    outcomes = tally.outcome_counts()
    models = {key.model_name for key in partitions}
    return AdmissionReport(
        issued=sum(outcomes.values()) + gate.waiting.requests,
        rejected=tally.n_rejected,
        waiting=Backlog(gate.waiting.requests, gate.waiting.isl_tokens),
        bounds=NO_BACKLOG if rules is None else Backlog(*rules.bounds),
        outcomes=outcomes,
        shed={tier: tally.shed_tiers[tier] for tier in tiers.names},
        tier_shed={tier: tier in tiers.shed_names for tier in tiers.names},
        classes=gate.backlog_by_class(),
        flows={name: len(flows) for name, flows in gate.waiting.backlog_by_flow().items()},
        missed_deadlines=dict(tally.missed_deadlines),
        waits={name: waits.copy() for name, waits in tally.waits.items()},
        busy=busy,
        thresholds=tuple(gate.busy_check.thresholds.list_views(models)),
        engine_readings=readings,
        engine_stale=stale,
    )


def _fresh_readings(
    gate: AdmissionGate, partitions: Mapping[PartitionKey, Partition], now: float
) -> Generator[None, None, tuple[dict[tuple[PartitionKey, Rank], EngineReading], int]]:
    """Return the fresh readings, and the number of stale readings."""
    engines = gate.busy_check.engines
    fresh, stale = {}, 0
    for key, partition in list(partitions.items()) if engines else ():
        for number, rank in enumerate(partition.table.sorted_ranks(), 1):
            heard = engines.last_reading(rank)
            if heard is not None and engines.is_fresh(heard, now):
                fresh[(key, rank)] = heard.reading
            else:
                stale += heard is not None
            if number % RANKS_PER_STEP == 0:
                yield
        yield
    return fresh, stale


def _busy_counts(
    gate: AdmissionGate, partitions: Mapping[PartitionKey, Partition]
) -> Generator[None, None, dict[PartitionKey, BusyCounts]]:
    """Return the busy counts of each partition; empty without thresholds."""
    found: dict[PartitionKey, BusyCounts] = {}
    if gate.busy_check.thresholds.is_off:
        return found
    for key, partition in list(partitions.items()):
        # The partition may have been removed or replaced since the copy, between two steps.
        if partitions.get(key) is partition:
            found[key] = gate.busy_check.count_busy(partition)
            yield
    return found
