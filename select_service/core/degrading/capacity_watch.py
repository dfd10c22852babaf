"""The capacity of each model, its level of degradation, and the brakes of the gate that follow."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from select_service.bodies.health import CapacityView
from select_service.core.admission.brakes import Brake
from select_service.core.admission.gate import Gate
from select_service.core.arrays import Floats
from select_service.core.fleet.partition import Partition
from select_service.core.health.capacity import (
    Capacity,
    RankCapacity,
    Slo,
    capacity,
    ratio_of_weights,
)
from select_service.core.health.degradation import Degradation, LevelEffects, Shed
from select_service.core.health.effects import Effect, Promoted, StateChanged, WeightChanged
from select_service.core.health.monitor import HealthMonitor
from select_service.core.identity import PartitionKey
from select_service.core.moving.pace import Pace

WHOLE = 1.05
"""What counts for a fleet of which nothing is missing where nothing is promised: its ratio is never
above 1, and would not be enough for the best level with its margin."""
_CHANGES = StateChanged | WeightChanged | Promoted


class _Declared(NamedTuple):
    """Speeds that workers declare, by slot, of one version of their table; 0: none."""

    version: int
    decode: Floats


@dataclass(slots=True)
class ModelCapacity:
    """Of one model, over all its tenants.  capacity: None: nothing was promised, or is known"""

    degradation: Degradation = field(default_factory=Degradation)
    ratio: float = 1.0
    capacity: Capacity | None = None
    partitions: int = 0

    @property
    def view(self) -> CapacityView:
        """As people read it."""
        shown = CapacityView(level=self.degradation.level, ratio=self.ratio)
        if self.capacity is not None:
            shown.effective_rps = self.capacity.effective_rps
            shown.by_cache_rps = self.capacity.by_cache_rps
            shown.by_prefill_rps = self.capacity.by_prefill_rps
            shown.by_decode_rps = self.capacity.by_decode_rps
        return shown


class CapacityWatch:
    """Follows the health of ranks."""

    def __init__(
        self,
        monitor: HealthMonitor,
        partitions: Mapping[PartitionKey, Partition],
        pace: Pace,
        promises: Mapping[str, Slo],
        gate: Gate | None,
    ) -> None:
        """gate: whose brakes follow the level; None: nothing does"""
        self._monitor = monitor
        self._partitions = partitions
        self._pace = pace
        self._promises = promises
        self._gate = gate
        self.models: dict[str, ModelCapacity] = {}
        """To be read only."""
        self._declared: dict[PartitionKey, _Declared] = {}
        self._has_changed = False

    def follow(self, effect: Effect, now: float) -> None:
        """Weights may be others now."""
        if isinstance(effect, _CHANGES):
            self._has_changed = True

    def settle(self, now: float) -> None:
        """After all effects of a turn, if one of them matters."""
        if self._has_changed:
            self.tick(now)

    def tick(self, now: float) -> None:
        """Look at every model.  O(ranks)"""
        self._has_changed = False
        keys: dict[str, list[PartitionKey]] = {}
        for key in self._partitions:
            keys.setdefault(key.model_name, []).append(key)
        for gone in self.models.keys() - keys.keys():
            del self.models[gone]
            self._let_go(gone)
        for key in self._declared.keys() - self._partitions.keys():
            del self._declared[key]
        for model_name, own in keys.items():
            self._look(model_name, own, now)

    def of(self, key: PartitionKey) -> CapacityView | None:
        """For the list of the fleet; None: before the first look."""
        known = self.models.get(key.model_name)
        return None if known is None else known.view

    def _look(self, model_name: str, keys: list[PartitionKey], now: float) -> None:
        known = self.models.setdefault(model_name, ModelCapacity())
        known.capacity, promised = None, self._promises.get(model_name)
        if promised is not None:
            means = self._pace.means(model_name, now)
            found = capacity(self._ranks(keys), promised, means)
            known.capacity = found if found.effective_rps > 0.0 else None
        if known.capacity is not None:
            known.ratio = known.capacity.ratio
        else:
            known.ratio = self._ratio_of_weights(keys)
        known.partitions, before = len(keys), known.partitions
        enough = known.ratio
        if known.capacity is None and known.ratio >= 1.0:
            enough = WHOLE
        if known.degradation.update(enough, now) or before != len(keys):
            self._brake(model_name, known.degradation)

    def _ratio_of_weights(self, keys: list[PartitionKey]) -> float:
        own = set(keys)
        parts = [part for key, part in self._monitor.partitions() if key in own]
        serving = sum(part.health.roster.serving for part in parts)
        weights = [float(_weights(self._partitions[key]).sum()) for key in keys]
        return ratio_of_weights(weights, serving) if serving else 1.0

    def _ranks(self, keys: list[PartitionKey]) -> Iterator[RankCapacity]:
        """Each partition as if it were one rank that has all of it."""
        for key in keys:
            partition = self._partitions[key]
            columns, weights = partition.table.columns, _weights(partition)
            blocks = np.where(np.isfinite(columns.kv_blocks), columns.kv_blocks, 0.0)
            decode = self._decode_of(key, partition)
            yield RankCapacity(
                1.0,
                int(weights @ blocks),
                partition.block_size,
                float(weights @ self._prefill_of(partition)),
                float(weights @ decode),
            )

    def _prefill_of(self, partition: Partition) -> Floats:
        """Learnt, else declared."""
        rates = partition.table.columns.speed.copy()
        for rank, slot in partition.table.slots():
            rate = self._pace.learnt(rank)
            if rate is not None:
                rates[slot] = rate
        return rates

    def _decode_of(self, key: PartitionKey, partition: Partition) -> Floats:
        table, known = partition.table, self._declared.get(key)
        if known is None or known.version != table.version:
            speeds = np.zeros(table.n_slots)
            for _, slot in table.slots():
                speeds[slot] = table.row(slot).worker.given.decode_tokens_per_s or 0.0
            known = self._declared[key] = _Declared(table.version, speeds)
        return known.decode

    # --- the gate

    def _brake(self, model_name: str, degradation: Degradation) -> None:
        if self._gate is None:
            return
        if not degradation.level:
            self._let_go(model_name)
            return
        brake = _brake_of(degradation.level, degradation.effects, len(self._gate.tiers.names))
        self._gate.brake(model_name, brake)

    def _let_go(self, model_name: str) -> None:
        if self._gate is not None:
            self._gate.brake(model_name, None)

    def check_invariants(self) -> None:
        """For tests."""
        if self._gate is not None:
            braked = {name for name, each in self.models.items() if each.degradation.level}
            assert braked == self._gate.brakes.keys()


def _brake_of(level: int, effects: LevelEffects, n_tiers: int) -> Brake:
    shed_from = {Shed.NONE: None, Shed.LOWEST_TIER: n_tiers - 1, Shed.ALL: 0}[effects.shed]
    return Brake(
        level,
        shed_from,
        effects.refuses_new,
        effects.batch_multiplier,
        effects.latency_multiplier,
    )


def _weights(partition: Partition) -> Floats:
    """float64[n_slots]: those of ranks, 0 where there is none."""
    table = partition.table
    return np.where(table.standing(), table.columns.weight, 0.0)
