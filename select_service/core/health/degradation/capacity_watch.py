"""Capacity and degradation level of each model, and the resulting rules of the admission gate."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from select_service.core.admission.admission_gate import AdmissionGate
from select_service.core.admission.load_shed_rule import LoadShedRule
from select_service.core.array_types import Floats
from select_service.core.health.capacity_estimate import (
    CapacityEstimate,
    RankCapacity,
    ServiceObjective,
    estimate_capacity,
    serving_share,
)
from select_service.core.health.degradation.capacity_probation import CapacityProbation
from select_service.core.health.degradation.degradation_levels import (
    DegradationLevel,
    DegradationRules,
    LevelEffects,
    LoadShedding,
)
from select_service.core.health.health_effects import (
    HealthEffect,
    SparePromoted,
    StateChanged,
    WeightChanged,
)
from select_service.core.health.health_monitor import HealthMonitor
from select_service.core.health.migration.speed_estimates import SpeedEstimates
from select_service.core.identity import PartitionKey
from select_service.core.registry.fleet.partition import Partition
from select_service.schemas.health import CapacityView

T = TypeVar("T")
COMPLETE_FLEET_RATIO = 1.05
"""Ratio of a complete fleet without an SLO.

Its computed ratio never exceeds 1, which would not suffice for level 0 with the margin.
"""
_CHANGES = StateChanged | WeightChanged | SparePromoted
RANKS_PER_TURN = 1024
"""Work per turn, in ranks with a learnt rate, about 0.5 us each."""
RANKS_PER_STEP = 256
WORKER_RANKS = 8
"""Cost of examining a worker, in ranks."""
PARTITION_RANKS = 128
"""Cost of examining a partition of any size, in ranks."""
EvaluationSteps = Generator[int, None, T]
"""Generator that yields the amount of work done so far, in ranks."""


_SOMETHING = (None,)


class _Declared(NamedTuple):
    """Declared decode speeds of a version of the rank table.

    decode: by slot, tokens/s; 0 means not declared
    """

    version: int
    decode: Floats


@dataclass(slots=True)
class ModelCapacity:
    """Capacity of a model over all tenants.

    capacity: None without an SLO or without known resources
    """

    degradation: DegradationLevel = field(default_factory=DegradationLevel)
    ratio: float = 1.0
    capacity: CapacityEstimate | None = None
    partitions: int = 0
    probation: CapacityProbation = field(default_factory=CapacityProbation)

    @property
    def to_view(self) -> CapacityView:
        """Capacity as in API responses."""
        shown = CapacityView(level=self.degradation.level, ratio=self.ratio)
        if self.capacity is not None:
            shown.effective_rps = self.capacity.effective_rps
            shown.by_cache_rps = self.capacity.by_cache_rps
            shown.by_prefill_rps = self.capacity.by_prefill_rps
            shown.by_decode_rps = self.capacity.by_decode_rps
        if self.probation.is_active:
            shown.on_trial = True
        return shown


class CapacityWatch:
    """Listener of health effects that computes capacities."""

    def __init__(
        self,
        monitor: HealthMonitor,
        partitions: Mapping[PartitionKey, Partition],
        speeds: SpeedEstimates,
        objectives: Mapping[str, ServiceObjective],
        gate: AdmissionGate | None,
        rules: DegradationRules | None = None,
    ) -> None:
        """Create the watch.

        gate: admission gate with rules that follow the level; None means monitoring only
        """
        self._monitor = monitor
        self._partitions = partitions
        self._pace = speeds
        self._promises = objectives
        self._gate = gate
        self._rules = rules or DegradationRules()
        self.models: dict[str, ModelCapacity] = {}
        """Capacities by model name, read-only."""
        self._declared: dict[PartitionKey, _Declared] = {}
        self._has_changed = False
        self._looks: list[EvaluationSteps[None]] = []
        """Evaluation in progress, if any."""
        self._now = 0.0

    def on_effect(self, effect: HealthEffect, now: float) -> None:
        """Record that weights may have changed."""
        if isinstance(effect, _CHANGES):
            self._has_changed = True

    def run_every_second(self, now: float) -> None:
        """Evaluate every model, in this turn and the following turns."""
        self._has_changed = True
        self.run_turn(now)

    def run_turn(self, now: float) -> None:
        """Continue the evaluation of all models for one turn, if a relevant effect occurred.

        Changes during an evaluation cause another evaluation after it.
        """
        self._now, left = now, RANKS_PER_TURN
        # One evaluation at a time; effects during an evaluation only set the flag for the next.
        if self._has_changed and not self._looks:
            self._has_changed = False
            self._looks.append(self._evaluate_all())
        while self._looks and left > 0:
            done = next(self._looks[0], None)
            left -= done or 0
            if done is None:
                self._looks.clear()
        if self.is_evaluating:
            self._monitor.touched.request_turn_if(_SOMETHING)

    def _evaluate_all(self) -> EvaluationSteps[None]:
        keys: dict[str, list[PartitionKey]] = {}
        for key in self._partitions:
            keys.setdefault(key.model_name, []).append(key)
        for gone in self.models.keys() - keys.keys():
            del self.models[gone]
            self._remove_shed_rule(gone)
        for key in self._declared.keys() - self._partitions.keys():
            del self._declared[key]
        for model_name, own in keys.items():
            yield from self._evaluate_model(model_name, own)

    @property
    def is_evaluating(self) -> bool:
        """Whether work is left for further turns."""
        return bool(self._looks) or self._has_changed

    def capacity_of(self, key: PartitionKey) -> CapacityView | None:
        """Return the capacity for the fleet report; None before the first evaluation."""
        model = self.models.get(key.model_name)
        return None if model is None else model.to_view

    def _evaluate_model(self, model_name: str, keys: list[PartitionKey]) -> EvaluationSteps[None]:
        model = self.models.get(model_name)
        if model is None:
            model = self.models[model_name] = ModelCapacity(DegradationLevel(self._rules))
        promised, found = self._promises.get(model_name), None
        if promised is not None:
            ranks = yield from self._combined_ranks(keys)
            found = estimate_capacity(
                ranks, promised, self._pace.mean_request(model_name, self._now)
            )
        model.capacity = found if found is not None and found.effective_rps > 0.0 else None
        if model.capacity is not None:
            model.ratio = model.capacity.ratio
        else:
            model.ratio = yield from self._ratio_of_weights(keys)
        yield from self._share_capacity(model, keys)
        model.partitions, before = len(keys), model.partitions
        enough = model.ratio
        self._update_probation(model_name, model)
        if model.probation.is_active:
            enough = max(enough, (yield from self._ratio_of_weights(keys)))
        # Weights alone never exceed 1: without this a recovered fleet could not leave level 1.
        if (model.probation.is_active or model.capacity is None) and enough >= 1.0:
            enough = max(enough, COMPLETE_FLEET_RATIO)
        if model.degradation.update_level(enough, self._now) or before != len(keys):
            self._apply_shed_rule(model_name, model.degradation)
            yield PARTITION_RANKS

    def _update_probation(self, model_name: str, model: ModelCapacity) -> None:
        """Update the probation of the estimate."""
        booked_at, ended_at = self._pace.last_request_times(model_name)
        sheds = (
            model.capacity is not None
            and model.degradation.current_effects.shed is not LoadShedding.NONE
        )
        model.probation.update_state(
            is_shedding=sheds, booked_at=booked_at, ended_at=ended_at, now=self._now
        )

    def _ratio_of_weights(self, keys: list[PartitionKey]) -> EvaluationSteps[float]:
        weights, serving = [], 0
        for key in keys:
            partition, checked = self._partitions.get(key), self._monitor.find_partition(key)
            if partition is not None and checked is not None:
                serving += checked.health.registry.n_serving
                weights.append(float(_weights_by_slot(partition).sum()))
            yield PARTITION_RANKS
        # No monitored rank: without health data there is no reason to shed load.
        return serving_share(weights, serving) if serving else 1.0

    def _share_capacity(
        self, model: ModelCapacity, keys: list[PartitionKey]
    ) -> EvaluationSteps[None]:
        """Publish the capacity of a rank of full weight to the state machines."""
        total, known = 0.0, []
        for key in keys:
            partition, checked = self._partitions.get(key), self._monitor.find_partition(key)
            if partition is not None and checked is not None:
                known.append(checked.health.registry)
                total += float(_weights_by_slot(partition).sum())
            yield PARTITION_RANKS
        per_rank = model.ratio / total if model.capacity is not None and total > 0.0 else None
        for registry in known:
            registry.capacity_per_rank = per_rank

    def _combined_ranks(self, keys: list[PartitionKey]) -> EvaluationSteps[list[RankCapacity]]:
        """Return each partition as one combined rank."""
        found = []
        for key in keys:
            partition = self._partitions.get(key)
            if partition is not None:
                declared = yield from self._decode_of(key, partition)
                prefill = yield from self._prefill_of(key, partition)
                found.append(_combine_partition(partition, prefill, declared))
            yield PARTITION_RANKS
        return found

    def _prefill_of(self, key: PartitionKey, partition: Partition) -> EvaluationSteps[Floats]:
        """Return prefill rates: learnt, else declared."""
        rates = partition.table.columns.speed.copy()
        ranks = self._pace.ranks_with_samples(key)
        for begin in range(0, len(ranks), RANKS_PER_STEP):
            for rank in ranks[begin : begin + RANKS_PER_STEP]:
                slot, rate = partition.table.find_slot(rank), self._pace.learnt_rate(rank)
                if slot is None:
                    # The rank left the partition; its learnt speed would otherwise stay forever.
                    self._pace.forget_rank(rank)
                # The table may have grown since the copy was made: steps interleave with
                # registrations.
                elif rate and slot < len(rates):
                    rates[slot] = rate
            yield RANKS_PER_STEP
        return rates

    def _decode_of(self, key: PartitionKey, partition: Partition) -> EvaluationSteps[Floats]:
        table, model = partition.table, self._declared.get(key)
        # Declared speeds change only with registrations, hence the cache per table version.
        if model is None or model.version != table.version:
            version, speeds = table.version, np.zeros(table.n_slots)
            for worker_id in table.worker_ids():
                at = np.array(table.slots_of(worker_id), np.intp)
                if len(at):
                    given = table.row_at(int(at[0])).worker.registration
                    speeds[at[at < len(speeds)]] = given.decode_tokens_per_s or 0.0
                yield WORKER_RANKS
            model = self._declared[key] = _Declared(version, speeds)
        return model.decode

    def _apply_shed_rule(self, model_name: str, degradation: DegradationLevel) -> None:
        if self._gate is None:
            return
        if not degradation.level:
            self._remove_shed_rule(model_name)
            return
        brake = _shed_rule_of(
            degradation.level, degradation.current_effects, len(self._gate.shedding.tiers.names)
        )
        self._gate.set_load_shed_rule(model_name, brake)

    def _remove_shed_rule(self, model_name: str) -> None:
        if self._gate is not None:
            self._gate.set_load_shed_rule(model_name, None)

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        if self._gate is not None:
            braked = {name for name, each in self.models.items() if each.degradation.level}
            assert braked == self._gate.shedding.rules.keys()


def _combine_partition(partition: Partition, prefill: Floats, decode: Floats) -> RankCapacity:
    """Combine a partition into one rank.

    prefill, decode: tokens/s by slot, for the slots that existed when they were computed
    """
    columns, weights = partition.table.columns, _weights_by_slot(partition)
    blocks = np.where(np.isfinite(columns.kv_blocks), columns.kv_blocks, 0.0)
    return RankCapacity(
        1.0,
        int(weights @ blocks),
        partition.block_size,
        float(weights[: len(prefill)] @ prefill),
        float(weights[: len(decode)] @ decode),
    )


def _shed_rule_of(level: int, effects: LevelEffects, n_tiers: int) -> LoadShedRule:
    shed_from = {
        LoadShedding.NONE: None,
        LoadShedding.LOWEST_TIER: n_tiers - 1,
        LoadShedding.ALL: 0,
    }[effects.shed]
    return LoadShedRule(
        level,
        shed_from,
        effects.refuses_new,
        effects.batch_multiplier,
        effects.latency_multiplier,
    )


def _weights_by_slot(partition: Partition) -> Floats:
    """Return float64[n_slots]: weights of ranks, 0 for empty slots."""
    table = partition.table
    return np.where(table.occupied_slots(), table.columns.weight, 0.0)
