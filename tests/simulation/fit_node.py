"""Selector of the simulated world with all features of `--health-checks on`.

Health, admission, moves and levels are the service's own, joined as in the service. The edge is
simulated: checks reach simulated engines, and pending work of core methods runs in the next
turn.
"""

from random import Random

from indexer.index.prefix_index import PrefixIndex
from select_service.base.errors import Conflict, NotFound
from select_service.core.admission.admission_settings import AdmissionSettings
from select_service.core.admission.policy_classes import QueueRules, single_class_profile
from select_service.core.health.checks.canary_prompts import default_prompts
from select_service.core.health.checks.check_state import Attempt
from select_service.core.health.degradation.capacity_watch import CapacityWatch, ModelCapacity
from select_service.core.health.degradation.degradation_levels import DegradationLevel
from select_service.core.health.fleet_health.health_service import HealthService
from select_service.core.health.health_kinds import AttemptResult
from select_service.core.health.health_rules import HealthRules
from select_service.core.health.migration.booking_observer import BookingObserver
from select_service.core.health.migration.migrator import Migrator, MovableBookings
from select_service.core.health.migration.rank_snapshot import CacheLayouts
from select_service.core.load.move_constraints import MoveConstraintStore
from select_service.core.placement.router_config import RouterConfig
from select_service.core.selector_builder import SelectorConfig, build_selector
from select_service.schemas.health import OutcomeRequest
from tests.simulation.fit_rules import HealthTwin
from tests.simulation.world import Node

RULES = HealthRules(
    recovery_s=20.0, recovery_s_max=60.0, drain_s=60.0, dead_after_s=120.0, dead_probe_s=60.0
)
"""Rules with the usual fault detection, but shorter waits."""
ADMISSION = AdmissionSettings(queue=QueueRules(single_class_profile("fcfs", 4.0), timeout_s=10.0))


TURN_S = 0.02
"""Longest time in s until pending work gets its turn."""


class RecordedLevels(DegradationLevel):
    """Degradation level that records each update.

    looks: (time, ratio, level) of each update
    """

    def __init__(self):
        super().__init__()
        self.looks = []

    def update_level(self, ratio, now):
        has_changed = super().update_level(ratio, now)
        self.looks.append((now, ratio, self.level))
        return has_changed


class FitNode(Node):
    """Selector process."""

    def __init__(self, world, number, ttl_s):
        self.born = world.time
        super().__init__(world, number, 0, ttl_s)

    # --- parts

    def new_selector(self, seed, ttl_s):
        prompts = default_prompts()
        selector = build_selector(
            SelectorConfig(
                RouterConfig(policy="work"), ADMISSION, use_kv_events=False, reservation_ttl_s=ttl_s
            ),
            lambda: PrefixIndex(4096),
            rng=Random(seed),
            wake=lambda: self.soon(self.world.rng.uniform(0.0, TURN_S), self.settle),
            make_health=lambda fleet, ledger: HealthService(
                RULES, lambda key: prompts, fleet, ledger, fleet.dirty
            ),
        )
        self.health, fleet, ledger = selector.health, selector.fleet, selector.ledger
        monitor, learnt = self.health.monitor, BookingObserver(MoveConstraintStore())
        selector.decisions.keeps_move_constraints = True
        ledger.add_listener(learnt, needs_moves=False)
        layouts = CacheLayouts(fleet.catalog)
        self.mover = selector.health.mover = Migrator(
            monitor,
            MovableBookings(fleet.partitions, ledger, fleet.dirty),
            learnt,
            layouts.layout_of,
            first_number=int(1000.0 * self.born),
        )
        self.watch = CapacityWatch(
            *(monitor, fleet.partitions, learnt.speeds, self.world.promises, selector.gate)
        )
        self.levels = RecordedLevels()
        self.watch.models["m"] = ModelCapacity(self.levels)
        self.twin = HealthTwin(self, RULES)
        ledger.add_listener(self.twin)
        self.health.listeners += [self.mover, self.watch, self.twin]
        return selector

    def workers(self, n_workers):
        """Return the workers in the catalog of the peers."""
        return list(self.world.catalog.values())

    # --- turns

    @property
    def is_running(self):
        return self.world.nodes[self.number] is self

    def soon(self, delay_s, action):
        """Run `action` in a later turn, unless the process ends before that turn."""
        self.world.at(delay_s, lambda: self.is_running and action())

    def settle(self):
        self.selector.run_pending(self.now())

    # --- checks

    def look(self):
        """Start the checks that are due."""
        while (order := self.health.next_due_check(self.now())) is not None:
            self._ask(order, order.seed)

    def _ask(self, order, seed):
        seconds, attempt = 5.0, Attempt(AttemptResult.TIMEOUT)
        if (self.number, order.rank.worker_id) not in self.world.unreachable:
            engine = self.world.engines.get(order.rank)
            if engine is None:  # the engine was deleted meanwhile
                seconds, attempt = 0.001, Attempt(AttemptResult.CONNECT)
            else:
                seconds, attempt = engine.attempt(order.prompt, self.now(), seed)
        self.soon(seconds, lambda: self._attempt_and_report(order, attempt, seed))

    def _attempt_and_report(self, order, attempt, seed):
        pause_s = self.health.process_attempt(order, attempt, self.now())
        if pause_s is not None:
            self.soon(pause_s, lambda: self._resume_position(order, seed + 1))

    def _resume_position(self, order, seed):
        if self.health.may_continue(order):
            self._ask(order, seed)
        else:
            self.soon(0.02, lambda: self._resume_position(order, seed))

    # --- callers

    def report(self, rank, outcome, reservation_id=None, status=None):
        given = OutcomeRequest(
            dp_rank=rank.dp_rank, outcome=outcome, reservation_id=reservation_id, status=status
        )
        try:
            self.health.process_report(rank.worker_id, given, False, self.now())
        except (NotFound, Conflict):
            return False
        return True

    def free(self, name, outcome):
        """Handle DELETE /reservations/{reservation_id}?outcome=. May raise NotFound."""
        rank = self.selector.ledger.reservations.get_reservation(name).rank
        self.selector.free_reservation(name, self.now())
        self.health.process_outcome(name, rank, outcome, self.now())
