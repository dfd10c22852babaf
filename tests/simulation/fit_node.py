"""A selector of the simulated world with everything that `--health-checks on` brings.

Health, admission, moves and levels are the real ones, joined as the service joins them; the edge is
played: checks reach simulated engines, and what verbs leave to do is done in the next turn.
"""

from random import Random

from indexer.index.prefix_index import PrefixIndex
from select_service.bodies.health import OutcomeRequest
from select_service.core.admission.policy_classes import QueueRules, single_class
from select_service.core.admission.rules import AdmissionRules
from select_service.core.decide.router_config import RouterConfig
from select_service.core.degrading.capacity_watch import CapacityWatch, ModelCapacity
from select_service.core.fitness.fitness import Fitness
from select_service.core.health.canary_prompts import default_prompts
from select_service.core.health.checked import Attempt
from select_service.core.health.degradation import Degradation
from select_service.core.health.kinds import Came
from select_service.core.health.rules import HealthRules
from select_service.core.load.move_wishes import KeptWishes
from select_service.core.moving.learnt import Learnt
from select_service.core.moving.mover import Mover
from select_service.core.moving.targets import Layouts
from select_service.core.selector import Selector, SelectorConfig
from select_service.errors import Conflict, NotFound
from tests.simulation.fit_rules import HealthTwin
from tests.simulation.world import Node

RULES = HealthRules(
    recovery_s=20.0,
    recovery_s_max=60.0,
    drain_s=60.0,
    dead_after_s=120.0,
    dead_probe_s=60.0,
)
"""As usual where it is about finding faults; where it is about waiting, sooner."""
ADMISSION = AdmissionRules(queue=QueueRules(single_class("fcfs", 4.0), timeout_s=10.0))


TURN_S = 0.02
"""Until what verbs have left to do gets its turn, at the longest."""


class RecordedLevels(Degradation):
    """looks: (time, ratio, level) of each look at the model"""

    def __init__(self):
        super().__init__()
        self.looks = []

    def update(self, ratio, now):
        has_changed = super().update(ratio, now)
        self.looks.append((now, ratio, self.level))
        return has_changed


class FitNode(Node):
    """One process."""

    def __init__(self, world, number, ttl_s):
        self.born = world.time
        super().__init__(world, number, 0, ttl_s)

    # --- its parts

    def new_selector(self, seed, ttl_s):
        selector = Selector(
            SelectorConfig(
                RouterConfig(policy="work"), ADMISSION, use_kv_events=False, reservation_ttl_s=ttl_s
            ),
            lambda: PrefixIndex(4096),
            rng=Random(seed),
            wake=lambda: self.soon(self.world.rng.uniform(0.0, TURN_S), self.settle),
        )
        prompts, (fleet, ledger) = default_prompts(), (selector.fleet, selector.ledger)
        self.fitness = selector.fitness = Fitness(
            RULES, lambda key: prompts, fleet, ledger, selector.touched
        )
        monitor, learnt = self.fitness.monitor, Learnt(KeptWishes())
        selector.decisions.keeps_wishes = True
        ledger.follow(learnt, tells_moves=False)
        layouts = Layouts(fleet.catalog)
        self.mover = selector.mover = Mover(
            *(monitor, fleet.partitions, ledger, learnt, layouts.of, selector.touched),
            begin=int(1000.0 * self.born),
        )
        self.watch = CapacityWatch(
            *(monitor, fleet.partitions, learnt.pace, self.world.promises, selector.gate)
        )
        self.levels = RecordedLevels()
        self.watch.models["m"] = ModelCapacity(self.levels)
        self.twin = HealthTwin(self, RULES)
        ledger.follow(self.twin)
        self.fitness.followers += [self.mover, self.watch, self.twin]
        return selector

    def workers(self, n_workers):
        """Whom it finds in the catalog of its peers."""
        return list(self.world.catalog.values())

    # --- turns

    @property
    def is_running(self):
        return self.world.nodes[self.number] is self

    def soon(self, delay_s, action):
        """In a later turn, unless the process ends before it."""
        self.world.at(delay_s, lambda: self.is_running and action())

    def settle(self):
        self.selector.settle(self.now())

    # --- checks

    def look(self):
        """Begin the checks that are due."""
        while (order := self.fitness.due(self.now())) is not None:
            self._ask(order, order.seed)

    def _ask(self, order, seed):
        seconds, attempt = 5.0, Attempt(Came.TIMEOUT)
        if (self.number, order.rank.worker_id) not in self.world.unreachable:
            engine = self.world.engines.get(order.rank)
            if engine is None:  # it was deleted meanwhile
                seconds, attempt = 0.001, Attempt(Came.CONNECT)
            else:
                seconds, attempt = engine.attempt(order.prompt, self.now(), seed)
        self.soon(seconds, lambda: self._attempted(order, attempt, seed))

    def _attempted(self, order, attempt, seed):
        pause_s = self.fitness.attempted(order, attempt, self.now())
        if pause_s is not None:
            self.soon(pause_s, lambda: self._resumed(order, seed + 1))

    def _resumed(self, order, seed):
        if self.fitness.resumes(order):
            self._ask(order, seed)
        else:
            self.soon(0.02, lambda: self._resumed(order, seed))

    # --- callers

    def report(self, rank, outcome, reservation_id=None, status=None):
        given = OutcomeRequest(
            dp_rank=rank.dp_rank, outcome=outcome, reservation_id=reservation_id, status=status
        )
        try:
            self.fitness.reported(rank.worker_id, given, False, self.now())
        except (NotFound, Conflict):
            return False
        return True

    def free(self, name, outcome):
        """DELETE /reservations/{reservation_id}?outcome=.  Raises NotFound."""
        rank = self.selector.held.get(name).rank
        self.selector.free(name, self.now())
        self.fitness.ended(name, rank, outcome, self.now())
