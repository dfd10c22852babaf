"""The capacity of each model, its level of degradation, and the brakes of the gate that follow."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from select_service.bodies.health import CapacityView
from select_service.core.admission.brakes import Brake
from select_service.core.admission.gate import Gate
from select_service.core.arrays import Floats
from select_service.core.degrading.trial import Trial
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

T = TypeVar("T")
WHOLE = 1.05
"""What counts for a fleet of which nothing is missing where nothing is promised: its ratio is never
above 1, and would not be enough for the best level with its margin."""
_CHANGES = StateChanged | WeightChanged | Promoted
RANKS_PER_TURN = 1024
"""So much is looked at before others get their turn, in ranks with a rate, some 0.5 us each."""
RANKS_PER_STEP = 256
WORKER_RANKS = 8
"""What looking at a worker is worth."""
PARTITION_RANKS = 128
"""What looking at a partition is worth, whatever it holds."""
Looking = Generator[int, None, T]
"""Yields after some work how much it was, in ranks."""


_SOMETHING = (None,)


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
    trial: Trial = field(default_factory=Trial)

    @property
    def view(self) -> CapacityView:
        """As people read it."""
        shown = CapacityView(level=self.degradation.level, ratio=self.ratio)
        if self.capacity is not None:
            shown.effective_rps = self.capacity.effective_rps
            shown.by_cache_rps = self.capacity.by_cache_rps
            shown.by_prefill_rps = self.capacity.by_prefill_rps
            shown.by_decode_rps = self.capacity.by_decode_rps
        if self.trial.is_on:
            shown.on_trial = True
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
        self._looks: list[Looking[None]] = []
        """The one that is not at its end, if there is one."""
        self._now = 0.0

    def follow(self, effect: Effect, now: float) -> None:
        """Weights may be others now."""
        if isinstance(effect, _CHANGES):
            self._has_changed = True

    def tick(self, now: float) -> None:
        """Look at every model, in this turn and those that follow."""
        self._has_changed = True
        self.settle(now)

    def settle(self, now: float) -> None:
        """After all effects of a turn: one turn of a look at every model, if one of them matters.

        What changes while it goes on is seen by another one behind it.
        """
        self._now, left = now, RANKS_PER_TURN
        if self._has_changed and not self._looks:
            self._has_changed = False
            self._looks.append(self._look_at_all())
        while self._looks and left > 0:
            done = next(self._looks[0], None)
            left -= done or 0
            if done is None:
                self._looks.clear()
        if self.is_looking:
            self._monitor.touched.wake_if(_SOMETHING)

    def _look_at_all(self) -> Looking[None]:
        keys: dict[str, list[PartitionKey]] = {}
        for key in self._partitions:
            keys.setdefault(key.model_name, []).append(key)
        for gone in self.models.keys() - keys.keys():
            del self.models[gone]
            self._let_go(gone)
        for key in self._declared.keys() - self._partitions.keys():
            del self._declared[key]
        for model_name, own in keys.items():
            yield from self._look(model_name, own)

    @property
    def is_looking(self) -> bool:
        """Is there something for further turns?"""
        return bool(self._looks) or self._has_changed

    def of(self, key: PartitionKey) -> CapacityView | None:
        """For the list of the fleet; None: before the first look."""
        known = self.models.get(key.model_name)
        return None if known is None else known.view

    def _look(self, model_name: str, keys: list[PartitionKey]) -> Looking[None]:
        known = self.models.setdefault(model_name, ModelCapacity())
        promised, found = self._promises.get(model_name), None
        if promised is not None:
            ranks = yield from self._ranks(keys)
            found = capacity(ranks, promised, self._pace.means(model_name, self._now))
        known.capacity = found if found is not None and found.effective_rps > 0.0 else None
        if known.capacity is not None:
            known.ratio = known.capacity.ratio
        else:
            known.ratio = yield from self._ratio_of_weights(keys)
        known.partitions, before = len(keys), known.partitions
        enough = known.ratio
        self._try(model_name, known)
        if known.trial.is_on:
            enough = max(enough, (yield from self._ratio_of_weights(keys)))
        if (known.trial.is_on or known.capacity is None) and enough >= 1.0:
            enough = max(enough, WHOLE)
        if known.degradation.update(enough, self._now) or before != len(keys):
            self._brake(model_name, known.degradation)
            yield PARTITION_RANKS

    def _try(self, model_name: str, known: ModelCapacity) -> None:
        """Does the estimate count?"""
        booked_at, ended_at = self._pace.last_seen(model_name)
        sheds = known.capacity is not None and known.degradation.effects.shed is not Shed.NONE
        known.trial.look(sheds=sheds, booked_at=booked_at, ended_at=ended_at, now=self._now)

    def _ratio_of_weights(self, keys: list[PartitionKey]) -> Looking[float]:
        weights, serving = [], 0
        for key in keys:
            partition, checked = self._partitions.get(key), self._monitor.partition(key)
            if partition is not None and checked is not None:
                serving += checked.health.roster.serving
                weights.append(float(_weights(partition).sum()))
            yield PARTITION_RANKS
        return ratio_of_weights(weights, serving) if serving else 1.0

    def _ranks(self, keys: list[PartitionKey]) -> Looking[list[RankCapacity]]:
        """Each partition as if it were one rank that has all of it."""
        found = []
        for key in keys:
            partition = self._partitions.get(key)
            if partition is not None:
                declared = yield from self._decode_of(key, partition)
                prefill = yield from self._prefill_of(key, partition)
                found.append(_as_one(partition, prefill, declared))
            yield PARTITION_RANKS
        return found

    def _prefill_of(self, key: PartitionKey, partition: Partition) -> Looking[Floats]:
        """Learnt, else declared."""
        rates = partition.table.columns.speed.copy()
        ranks = self._pace.ranks(key)
        for begin in range(0, len(ranks), RANKS_PER_STEP):
            for rank in ranks[begin : begin + RANKS_PER_STEP]:
                slot, rate = partition.table.find(rank), self._pace.learnt(rank)
                if slot is None:
                    self._pace.forget(rank)
                elif rate and slot < len(rates):
                    rates[slot] = rate
            yield RANKS_PER_STEP
        return rates

    def _decode_of(self, key: PartitionKey, partition: Partition) -> Looking[Floats]:
        table, known = partition.table, self._declared.get(key)
        if known is None or known.version != table.version:
            version, speeds = table.version, np.zeros(table.n_slots)
            for worker_id in table.workers():
                at = np.array(table.slots_of(worker_id), np.intp)
                if len(at):
                    given = table.row(int(at[0])).worker.given
                    speeds[at[at < len(speeds)]] = given.decode_tokens_per_s or 0.0
                yield WORKER_RANKS
            known = self._declared[key] = _Declared(version, speeds)
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


def _as_one(partition: Partition, prefill: Floats, decode: Floats) -> RankCapacity:
    """prefill, decode: tokens/s, of the slots that there were when they were made"""
    columns, weights = partition.table.columns, _weights(partition)
    blocks = np.where(np.isfinite(columns.kv_blocks), columns.kv_blocks, 0.0)
    return RankCapacity(
        1.0,
        int(weights @ blocks),
        partition.block_size,
        float(weights[: len(prefill)] @ prefill),
        float(weights[: len(decode)] @ decode),
    )


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
