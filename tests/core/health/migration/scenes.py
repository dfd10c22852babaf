"""Selector with a mover, and turns by hand."""

from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.health.checks.canary_prompts import default_prompts
from select_service.core.health.checks.check_state import CheckedWorker
from select_service.core.health.health_kinds import CheckKind, RankHealthState, RequestOutcome
from select_service.core.health.health_monitor import HealthMonitor
from select_service.core.health.health_rules import HealthRules
from select_service.core.health.migration.booking_observer import BookingObserver
from select_service.core.health.migration.migrator import Migrator, MovableBookings
from select_service.core.health.outcome_trust import OutcomeReport
from select_service.core.identity import Rank
from select_service.core.load.compiled import load_layout as layout
from select_service.core.load.move_constraints import MoveConstraintStore
from tests.builders import a_reservation, a_selector, a_worker
from tests.builders.selector_scenes import KEY


def make_suspicious(monitor, table, worker_id):
    """Let checks of the worker fail; the worker still serves with half of its weight."""
    rank = Rank(worker_id, 0)
    worker = CheckedWorker(worker_id, KEY, range(1), f"http://{worker_id}")
    monitor.register_worker(worker, 0.0)
    report = OutcomeReport(rank, RequestOutcome.FAILURE, times=3)
    monitor.process_report(report, True, 0.0)
    assert monitor.record_of(rank).state is RankHealthState.SUSPICIOUS
    table.set_weight(table.find_slot(rank), 0.5, "suspicious")


class Scene:
    def __init__(self, workers=3, kv_layout=None, blocks_max=4096, seed=0, **fields):
        """Create workers 1, 2, ... with health states from the monitor; see `suspect`."""
        self.selector = a_selector(blocks_max=blocks_max, seed=seed)
        self.is_woken = False
        self.touched = touched = DirtyPartitions(self._wake)
        self.learnt = BookingObserver(MoveConstraintStore())
        self.selector.decisions.keeps_move_constraints = True
        self.selector.ledger.add_listener(self.learnt, needs_moves=False)
        self.monitor = HealthMonitor(
            HealthRules(), lambda key: default_prompts(), lambda rank: 0, touched
        )
        self.mover = Migrator(
            self.monitor,
            MovableBookings(self.selector.fleet.partitions, self.selector.ledger, touched),
            self.learnt,
            lambda key, worker_id: kv_layout,
        )
        for worker_id in range(1, workers + 1):
            self.selector.register_worker(a_worker(worker_id, **fields))

    def _wake(self):
        self.is_woken = True

    @property
    def partition(self):
        return self.selector.fleet.partitions[KEY]

    def reserve(self, name, worker_id=1, tokens=8, now=0.0, **fields):
        self.selector.reserve(a_reservation(name, worker_id, tokens, **fields), now)

    def leave(self, worker_id=1, cause=CheckKind.OPERATOR):
        table = self.partition.table
        table.set_weight(table.find_slot(Rank(worker_id, 0)), 0.0, "draining")
        self.mover.start_migration(KEY, Rank(worker_id, 0), cause)

    def suspect(self, worker_id):
        make_suspicious(self.monitor, self.partition.table, worker_id)

    def serve(self, worker_id=1):
        """Make the worker eligible again."""
        table = self.partition.table
        table.set_weight(table.find_slot(Rank(worker_id, 0)), 1.0, "healthy")

    def drain(self, worker_id=1, cause=CheckKind.OPERATOR, now=1.0):
        """Leave the worker and run turns until no work is left; return the number of turns."""
        self.leave(worker_id, cause)
        return self.turns(now)

    def turns(self, now=1.0):
        turns = 0
        while self.mover.is_busy:
            assert self.is_woken  # each turn is requested
            self.is_woken, turns = False, turns + 1
            self.touched.begin_turn()
            self.mover.run_turn(now)
        return turns

    def rank_of(self, name):
        return self.selector.ledger.reservations.get_reservation(name).rank

    def totals(self):
        """Return (prefill tokens, requests, blocks) of the partition."""
        load = self.partition.load
        totals = load.totals.sum(axis=0)
        tokens, requests = totals[[layout.PREFILL_TOKENS, layout.REQUESTS]].tolist()
        return tokens, requests, int(load.compute_active_blocks().sum())

    def events(self, after=0):
        return self.mover.move_log.events_after(after, 1000).events

    def check(self):
        self.mover.check_invariants()
        self.selector.check_invariants()
