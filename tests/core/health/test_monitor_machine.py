"""Tests of any events in any order: reported states stay right, and no check gets lost."""

from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.health.checks.canary_prompts import default_prompts
from select_service.core.health.checks.check_state import CheckedWorker
from select_service.core.health.health_effects import StateChanged, WeightChanged
from select_service.core.health.health_kinds import RequestOutcome
from select_service.core.health.health_monitor import HealthMonitor
from select_service.core.health.health_rules import HealthRules
from select_service.core.health.outcome_trust import OutcomeReport
from select_service.core.identity import PartitionKey, Rank
from tests.builders.fleet_scene import Engine
from tests.builders.hypothesis_profiles import explored

KEYS = [PartitionKey("a", "t"), PartitionKey("b", "t")]
WORKERS = st.integers(0, 7)
FAULTS = st.sampled_from(
    ["", "", "", "wrong", "drift", "nan", "connect", "hang", "500", "busy", "refuses", "slow"]
)
RULES = HealthRules(interval_s=5.0)


class AnythingHappens(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now, self.booked, self.rng = 0.0, {}, Random(0)
        self.monitor = HealthMonitor(
            RULES,
            lambda key: default_prompts(),
            self.count_reservations,
            DirtyPartitions(lambda: None),
        )
        self.workers, self.faults, self.orders = {}, {}, []
        self.weights, self.states = {}, {}

    def count_reservations(self, rank):
        return self.booked.get(rank, 0)

    @rule(
        worker_id=WORKERS,
        key=st.sampled_from(KEYS),
        ranks=st.integers(1, 3),
        is_spare=st.booleans(),
        has_endpoint=st.sampled_from([True, True, False]),
    )
    def join(self, worker_id, key, ranks, is_spare, has_endpoint):
        endpoint = f"http://{worker_id}" if has_endpoint else None
        worker = CheckedWorker(worker_id, key, range(ranks), endpoint, is_spare)
        old = self.workers.get(worker_id)
        kept = set(old.list_ranks()) & set(worker.list_ranks()) if old and old.key == key else set()
        for rank in {*worker.list_ranks(), *(old.list_ranks() if old else ())} - kept:
            self.weights.pop(rank, None)
        self.workers[worker_id] = worker
        self.monitor.register_worker(worker, self.now)

    @rule(worker_id=WORKERS)
    def leave(self, worker_id):
        self.monitor.remove_worker(worker_id)
        worker = self.workers.pop(worker_id, None)
        for rank in worker.list_ranks() if worker else ():
            self.weights.pop(rank, None)

    @rule(worker_id=WORKERS, fault=FAULTS, model=st.sampled_from([1, 1, 2]))
    def spoil(self, worker_id, fault, model):
        self.faults[worker_id] = Engine(self.rng, fault=fault, model=model)

    @rule(seconds=st.sampled_from([0.1, 0.5, 2.0, 5.0]))
    def ask(self, seconds):
        self.now += seconds
        while (order := self.monitor.next_due_check(self.now)) is not None:
            self.orders.append(order)

    @rule(n=st.integers(1, 40), newest=st.booleans())
    def answer(self, n, newest):
        for _ in range(min(n, len(self.orders))):
            order = self.orders.pop(-1 if newest else 0)
            assert self.monitor.may_continue(order)
            engine = self.faults.setdefault(order.rank.worker_id, Engine(self.rng))
            _, attempt = engine.attempt(order.prompt, self.now, order.seed)
            if self.monitor.process_attempt(order, attempt, self.now) is not None:
                self.orders.append(order)

    @rule(seconds=st.sampled_from([1.0, 60.0, 300.0, 600.0]))
    def pass_time(self, seconds):
        self.now += seconds
        self.monitor.advance_timers(self.now)

    @rule(worker_id=WORKERS, count=st.integers(0, 3))
    def book(self, worker_id, count):
        self.booked[Rank(worker_id, 0)] = count

    @rule(worker_id=WORKERS, outcome=st.sampled_from(RequestOutcome), believed=st.booleans())
    def report(self, worker_id, outcome, believed):
        report = OutcomeReport(Rank(worker_id, 0), outcome, times=2)
        self.monitor.process_report(report, believed, self.now)

    @rule(worker_id=WORKERS, verb=st.sampled_from(["drain_ranks", "undrain_ranks", "check_worker"]))
    def operate(self, worker_id, verb):
        getattr(self.monitor, verb)(worker_id, self.now)

    @rule()
    def forget_references(self):
        self.monitor.forget_references("a")

    @invariant()
    def effects_agree_with_the_records(self):
        self.monitor.check_invariants()
        for effect in self.monitor.take_effects():
            if isinstance(effect, WeightChanged):
                self.weights[effect.rank] = effect.weight
            elif isinstance(effect, StateChanged):
                self.states[effect.rank] = effect.state
        for worker in self.workers.values():
            for rank in worker.list_ranks():
                record = self.monitor.record_of(rank)
                assert self.weights.get(rank, 1.0) == record.published_weight
                assert not record.is_drained_by_operator or self.monitor.next_check_at(rank) is None
        assert len({order.number for order in self.orders}) == len(self.orders) <= 32


TestAnythingHappens = explored(AnythingHappens)
