"""Tests of rejections and updates in parts, during which tiers, ranks and whole partitions change.

The twin knows the state alone, and checks each outcome on arrival.
"""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from select_service.base.errors import SelectError
from select_service.core.admission import partition_queue, turn_budget
from tests.builders import a_patch
from tests.builders.hypothesis_profiles import explored
from tests.core.admission.scenes import Scene, a_class, classes, where

TIERS = ("premium", "standard", "best_effort")
WORKERS = (1, 2, 3)
CLASSES = ("a", "b")
SERVED_MAX, REFUSED_MAX = 2, 3
TURNS_MAX = 200
"""Bound above the number of queued requests."""


class WaitingPart:
    """Needs of a waiting request: tier, workers, their taint, and their block size."""

    def __init__(self, tier, workers, taint, block_size):
        self.tier, self.workers, self.taint = TIERS.index(tier), workers, taint
        self.block_size = block_size


class QueuesInParts(RuleBasedStateMachine):
    """Machine of one partition, two classes, and turns of little work."""

    def __init__(self):
        super().__init__()
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(turn_budget, "SERVED_PER_TURN_MAX", SERVED_MAX)
        self.patched.setattr(
            turn_budget, "REFUSE_WORK", SERVED_MAX * turn_budget.SERVE_WORK // REFUSED_MAX
        )
        self.patched.setattr(turn_budget, "SWEEP_WORK", 1)
        self.patched.setattr(partition_queue, "CLASS_WORK", 1)
        self.patched.setattr(partition_queue, "REFRESHED_PER_TURN_MAX", 1)
        self.patched.setattr(partition_queue, "REBOUND_PER_TURN_MAX", 1)

    def teardown(self):
        try:
            self.settle()
        finally:
            self.patched.undo()

    @initialize()
    def start(self):
        policies = (a_class("a", quantum=5), a_class("b", quantum=9))
        self.scene = Scene(classes(*policies, family="a"), workers=0)
        self.waiting, self.tickets, self.running, self.seen = {}, {}, {}, set()
        self.workers, self.shed_from, self.block_size, self.count = {}, len(TIERS), 4, 0
        self.n_departed = 0
        for worker_id in WORKERS[:2]:
            self.register(worker_id)

    def register(self, worker_id):
        self.scene.register(worker_id, taints=["x"], block_size=self.block_size)
        self.workers[worker_id] = True
        self.running[worker_id] = set()

    # --- the twin

    def candidates(self, part):
        """Return the workers that may serve a request, busy or not."""
        there = part.workers & self.workers.keys()
        return {each for each in there if self.workers[each] or not part.taint}

    def has_room(self, part):
        return any(not self.running[each] for each in self.candidates(part))

    def is_shed(self, part):
        return part.tier >= self.shed_from

    def judge(self, name, outcome):
        """Check that an outcome is right at this moment, and the only outcome of its request."""
        assert name not in self.seen
        self.seen.add(name)
        self.n_departed += 1
        part = self.waiting.pop(name)
        if not isinstance(outcome, SelectError):
            assert not self.is_shed(part)
            assert part.block_size == self.block_size
            assert self.has_room(part)
            assert where(outcome)[0] in self.candidates(part)
            self.running[where(outcome)[0]].add(name)
            return
        reasons = {
            "CapacityShed": self.is_shed(part),
            "NoWorkers": not self.workers or part.block_size != self.block_size,
            "NoEligibleRank": not self.candidates(part),
            "QueueTimeout": True,
        }
        assert reasons[type(outcome).__name__]

    # --- requests

    @rule(
        tier=st.sampled_from(TIERS),
        workers=st.sets(st.sampled_from(WORKERS), min_size=1),
        taint=st.booleans(),
        header=st.sampled_from(CLASSES),
        flow=st.sampled_from([None, "f", "g"]),
        times=st.integers(1, 6),
    )
    def ask(self, tier, workers, taint, header, flow, times):
        for _ in range(times):
            self.count += 1
            name, part = f"r{self.count}", WaitingPart(tier, workers, taint, self.block_size)
            self.waiting[name] = part
            outcome = self.scene.ask(
                name,
                header=header,
                priority_tier=tier,
                allowed_worker_ids=sorted(workers),
                fairness_id=flow,
                routing_constraints={"required_taints": ["x"] if taint else []},
            )
            if name in self.scene.tickets:
                outcome.on_settled = lambda name=name, it=outcome: self.judge(name, it.outcome)
                self.scene.tickets.pop(name)
                self.tickets[name] = outcome
            else:
                self.judge(name, outcome)

    @precondition(lambda self: self.waiting)
    @rule(number=st.integers(0, 99))
    def give_up(self, number):
        name = list(self.waiting)[number % len(self.waiting)]
        self.scene.gate.remove_disconnected(self.tickets[name])

    @rule(worker_id=st.sampled_from(WORKERS))
    def free(self, worker_id):
        running = self.running.get(worker_id, set())
        while running:
            self.scene.free(running.pop())

    # --- changes meanwhile

    @rule(tier=st.sampled_from([None, *TIERS]), freed=st.none() | st.sampled_from(WORKERS))
    def shed(self, tier, freed):
        self.shed_from = len(TIERS) if tier is None else TIERS.index(tier)
        self.n_departed = 0
        self.scene.selector.set_shed_tier(tier)
        assert self.n_departed <= REFUSED_MAX // 2
        self.free(freed)

    @rule(worker_id=st.sampled_from(WORKERS), tainted=st.booleans())
    def change_rank(self, worker_id, tainted):
        if worker_id not in self.workers:
            self.register(worker_id)
        self.scene.selector.patch_worker(worker_id, a_patch(taints=["x"] if tainted else []))
        self.workers[worker_id] = tainted

    @rule(worker_id=st.sampled_from(WORKERS))
    def delete_worker(self, worker_id):
        if worker_id in self.workers:
            self.scene.selector.delete_worker(worker_id, self.scene.now)
            self.scene.selector.drain_removed_ranks(self.scene.now)
            del self.workers[worker_id], self.running[worker_id]

    @rule(block_size=st.sampled_from([4, 4, 4, 8]), workers=st.sets(st.sampled_from(WORKERS)))
    def replace_partition(self, block_size, workers):
        for worker_id in WORKERS:
            self.delete_worker(worker_id)
        self.block_size = block_size
        for worker_id in sorted(workers):
            self.register(worker_id)

    # --- turns

    @rule()
    def run_turn(self):
        self.n_departed = 0
        self.scene.wakes = 0
        self.scene.serve()
        # Rejections cost less than services, so no mixture of both exceeds the larger number.
        assert self.n_departed <= REFUSED_MAX

    @rule()
    def settle(self):
        turns = 0
        while self.scene.wakes:
            self.run_turn()
            turns += 1
            assert turns <= TURNS_MAX
        for part in self.waiting.values():
            assert not self.is_shed(part)
            assert self.candidates(part)
            assert part.block_size == self.block_size
            assert not self.has_room(part)
        bound = {t.placement_request.partition for t in self.scene.gate.waiting}
        assert bound <= set(self.scene.selector.fleet.partitions.values())

    @invariant()
    def nothing_is_lost(self):
        there = {ticket.placement_request.reservation_id for ticket in self.scene.gate.waiting}
        assert there == self.waiting.keys()
        self.scene.selector.check_invariants()


TestQueuesInParts = explored(QueuesInParts)
