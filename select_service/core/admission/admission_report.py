"""The admission stage as plain numbers, for metrics."""

from collections.abc import Generator, Mapping
from typing import NamedTuple

from select_service.bodies.admission import BusyThresholdView
from select_service.core.admission.busy import BusyCounts
from select_service.core.admission.gate import Gate
from select_service.core.admission.waiting_list import Backlog
from select_service.core.engines.engine_load import EngineReading
from select_service.core.fleet.partition import Partition
from select_service.core.histogram import Histogram
from select_service.core.identity import PartitionKey, Rank

NO_BOUND = Backlog(0, 0)


RANKS_PER_STEP = 256
"""Ranks whose engines' readings are looked at before others may be served."""


class AdmissionReport(NamedTuple):
    """issued: requests that were judged, the waiting ones among them;  bounds: of what may wait."""

    issued: int
    rejected: int
    waiting: Backlog
    bounds: Backlog
    outcomes: Mapping[str, int]
    shed: Mapping[str, int]
    tier_shed: Mapping[str, bool]
    classes: Mapping[str, Backlog]
    waits: Mapping[str, Histogram]
    busy: Mapping[PartitionKey, BusyCounts]
    thresholds: tuple[BusyThresholdView, ...]
    engine_readings: Mapping[tuple[PartitionKey, Rank], EngineReading]
    engine_stale: int


def admission_report(
    gate: Gate, partitions: Mapping[PartitionKey, Partition], now: float
) -> Generator[None, None, AdmissionReport]:
    """The numbers of now, in steps.  Costs O(ranks + waiting classes)."""
    tally, tiers, rules = gate.tally, gate.tiers, gate.rules
    busy = yield from _busy(gate, partitions)
    readings, stale = yield from _engines(gate, partitions, now)
    outcomes = tally.outcomes()
    models = {key.model_name for key in partitions}
    return AdmissionReport(
        issued=sum(outcomes.values()) + gate.waiting.requests,
        rejected=tally.rejected,
        waiting=Backlog(gate.waiting.requests, gate.waiting.isl_tokens),
        bounds=NO_BOUND if rules is None else Backlog(*rules.bounds),
        outcomes=outcomes,
        shed={tier: tally.shed_tiers[tier] for tier in tiers.names},
        tier_shed={tier: tier in tiers.shed_names for tier in tiers.names},
        classes=gate.by_class(),
        waits={name: waits.copy() for name, waits in tally.waits.items()},
        busy=busy,
        thresholds=tuple(gate.judge.thresholds.views(models)),
        engine_readings=readings,
        engine_stale=stale,
    )


def _engines(
    gate: Gate, partitions: Mapping[PartitionKey, Partition], now: float
) -> Generator[None, None, tuple[dict[tuple[PartitionKey, Rank], EngineReading], int]]:
    """Fresh readings, and how many are stale."""
    engines = gate.judge.engines
    fresh, stale = {}, 0
    for key, partition in list(partitions.items()) if engines else ():
        for number, rank in enumerate(partition.table.ranks(), 1):
            heard = engines.last(rank)
            if heard is not None and engines.is_fresh(heard, now):
                fresh[(key, rank)] = heard.reading
            else:
                stale += heard is not None
            if number % RANKS_PER_STEP == 0:
                yield
        yield
    return fresh, stale


def _busy(
    gate: Gate, partitions: Mapping[PartitionKey, Partition]
) -> Generator[None, None, dict[PartitionKey, BusyCounts]]:
    """Empty when nobody is judged."""
    found: dict[PartitionKey, BusyCounts] = {}
    if gate.judge.thresholds.off:
        return found
    for key, partition in list(partitions.items()):
        if partitions.get(key) is partition:
            found[key] = gate.judge.counts(partition)
            yield
    return found
