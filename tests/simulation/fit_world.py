"""Replicas with health, admission and moves over engines with all kinds of faults.

Everything follows from one seed. Engines turn corrupt, hang, break off, refuse, slow down, crash
and return as new processes. Operators drain, change and delete workers. Selectors crash, and lose
contact with other selectors and engines. Callers follow the moves of their requests, or vanish.
"""

from random import Random

import msgspec

from select_service.core.health.capacity_estimate import ServiceObjective
from select_service.core.identity import Rank
from tests.builders import a_patch, a_worker
from tests.builders.fleet_scene import Engine
from tests.simulation import fit_rules
from tests.simulation.fit_callers import Gateway
from tests.simulation.fit_node import FitNode
from tests.simulation.fit_rules import causes_of
from tests.simulation.world import World

LOOK_S = 0.2
TTL_S = 300.0
AFTERMATH_S = 70.0
"""Time in s after a fault in which a rank may still be blamed.

Three consecutive checks, of which the last were neutral, or callers that noticed late, may blame
the rank.
"""
DP_SIZES = (2, 1, 1, 2, 1, 1)
SPARE = 5
CORRUPT = ("wrong", "drift", "nan")
FAULTS = (*CORRUPT, "hang", "500", "truncated", "busy", "slow", "refuses")
CORRUPT_MAX, FAULTY_MAX = 2, 4
"""Largest numbers of corrupt and of faulty ranks at a time, of eight ranks.

Two thirds of the answers that arrive must be right.
"""
POLLS_S = (1.0, 4.0, 650.0)
"""Poll intervals of the gateways, in s; the last gateway misses events that expire meanwhile."""
PROMISED = ServiceObjective(ttft_ms=500.0, itl_ms=20.0, rps=10.0)
LAYOUT = {"layers": 2, "kv_heads": 2, "head_dim": 8}


class Trouble:
    """Fault of some ranks during a time.

    nodes: selectors that the fault concerns; None means all selectors
    """

    def __init__(self, world, fault, ranks, nodes=None):
        self.fault, self.ranks, self.nodes = fault, set(ranks), nodes
        self.begin, self.end = world.time, float("inf")

    def explains(self, node, rank, cause, now):
        concerns = rank in self.ranks and (self.nodes is None or node.number in self.nodes)
        return concerns and cause in causes_of(self.fault) and now <= self.end + AFTERMATH_S


class FitWorld(World):
    """World of selectors, engines, gateways and operators.

    catalog: workers that operators have registered, by worker id
    stays: workers with reservations that must not move
    corrupt: corrupt ranks, with the time since when
    uncertain: time when a process last could not see all ranks
    unreachable: pairs of process and worker
    vanished: reservations that no client will free
    promises: objectives by model; half of all seeds have an objective
    """

    def __init__(self, seed, n_nodes=3):
        self.catalog = {}
        for worker_id, size in enumerate(DP_SIZES):
            self.catalog[worker_id] = _worker(worker_id, size)
        self.engines, self._lives, self.troubles, self.model = {}, {}, [], 1
        self.stays, self.corrupt, self.uncertain = set(), {}, {}
        self.unreachable, self.vanished = set(), set()
        self.processes, self.promises = [], {"m": PROMISED} if seed % 2 else {}
        super().__init__(seed, n_nodes, ttl_s=TTL_S)
        for worker_id in self.catalog:
            self._start_engines(worker_id)
        self.gateways = [Gateway(self, number, poll_s) for number, poll_s in enumerate(POLLS_S)]
        for number in range(n_nodes):
            self.run_course(self._looking(number))
        for gateway in self.gateways:
            self.run_course(gateway.polling())
        self.run_course(self._checking())

    def new_node(self, number):
        node = FitNode(self, number, self._ttl_s)
        self.processes.append(node)
        return node

    def run_course(self, process):
        """Run a process, which is a generator of sleeping times in s."""

        def step():
            pause_s = next(process, None)
            if pause_s is not None:
                self.at(pause_s, step)

        self.at(0.0, step)

    def _looking(self, number):
        while True:
            self.nodes[number].look()
            yield LOOK_S

    # --- true state

    def ranks_of(self, worker_id):
        return [rank for rank in self.engines if rank.worker_id == worker_id]

    def is_spare(self, rank):
        return rank.worker_id == SPARE

    def life(self, rank):
        """Return the number of the process behind a rank."""
        return self._lives.get(rank.worker_id)

    def explains(self, node, rank, cause):
        """Return whether any trouble justifies ejecting a rank for this cause."""
        return any(trouble.explains(node, rank, cause, self.time) for trouble in self.troubles)

    def _start_engines(self, worker_id):
        self._lives[worker_id] = self._lives.get(worker_id, 0) + 1
        given = self.catalog[worker_id]
        for dp_rank in range(given.data_parallel_size):
            rank = Rank(worker_id, dp_rank)
            self.engines[rank] = Engine(Random(self.rng.random()), self.model)
            self.corrupt.pop(rank, None)

    # --- faults

    def troubling(self, until_s):
        """Start troubles of random kinds at random times; each trouble has its own duration."""
        kinds = {
            self._fault: 8,
            self._crash: 3,
            self._cut_from_engines: 2,
            self._cut_from_peers: 2,
            self._restart_node: 1,
            self._drain: 2,
            self._readdress: 1,
            self._replace: 1,
            self._small_verbs: 2,
        }
        while self.time + (pause_s := self.rng.expovariate(1 / 12.0)) < until_s:
            yield pause_s
            (kind,) = self.rng.choices(list(kinds), list(kinds.values()))
            self.run_course(kind())

    def _duration(self):
        return self.rng.choice([10.0, 60.0, 200.0]) * self.rng.uniform(0.5, 1.0)

    def _may_fail(self, ranks):
        faulty = {rank for rank, engine in self.engines.items() if engine.fault}
        return not faulty & set(ranks) and len(faulty) + len(ranks) <= FAULTY_MAX

    def _fault(self):
        rank, fault = self.rng.choice(list(self.engines)), self.rng.choice(FAULTS)
        is_corrupt = fault in CORRUPT
        if not self._may_fail([rank]) or (is_corrupt and len(self.corrupt) >= CORRUPT_MAX):
            return
        trouble, life = self._begin(fault, [rank]), self.life(rank)
        if is_corrupt:
            self.corrupt[rank] = self.time
        yield self._duration()
        trouble.end = self.time
        if self.life(rank) == life and rank in self.engines:
            self.engines[rank].fault = ""
            self.corrupt.pop(rank, None)

    def _begin(self, fault, ranks):
        trouble = Trouble(self, fault, ranks)
        self.troubles.append(trouble)
        for rank in ranks:
            self.engines[rank].fault = fault
        return trouble

    def _crash(self):
        worker_id = self.rng.choice(list(self.catalog))
        ranks = self.ranks_of(worker_id)
        if not ranks or not self._may_fail(ranks):
            return
        trouble, life = self._begin("connect", ranks), self._lives[worker_id]
        yield self._duration()
        trouble.end = self.time
        if worker_id in self.catalog and self._lives[worker_id] == life:
            self._start_engines(worker_id)

    def _cut_from_engines(self):
        number = self.rng.randrange(len(self.nodes))
        lost = self.rng.sample(list(self.catalog), self.rng.choice([1, 2, len(self.catalog)]))
        links = {(number, worker_id) for worker_id in lost}
        if any(n == number for n, _ in self.unreachable):
            return
        ranks = [rank for rank in self.engines if rank.worker_id in lost]
        trouble = Trouble(self, "cut", ranks, {number})
        self.troubles.append(trouble)
        self.unreachable |= links
        for _ in range(int(self._duration())):
            self.uncertain[number] = self.time
            yield 1.0
        self.unreachable -= links
        trouble.end = self.uncertain[number] = self.time

    def _cut_from_peers(self):
        rng, numbers = self.rng, range(len(self.nodes))
        lonely = rng.choice(numbers)
        links = {(lonely, n) for n in numbers if n != lonely}
        if rng.random() < 0.5:
            links |= {(b, a) for a, b in links}
        network = self.network
        network.loss, network.repeat = rng.choice([0.0, 0.1]), rng.choice([0.0, 0.1])
        network.delay_s = rng.choice([0.001, 0.05])
        network.cut |= links
        yield self._duration() / 2
        if self.network is network:
            network.cut -= links

    def _restart_node(self):
        self.restart(self.rng.randrange(len(self.nodes)))
        yield 0.0

    # --- operators, which notify every selector

    def _call_all(self, tell):
        for node in self.nodes:
            try:
                tell(node)
            except fit_rules.REFUSED:
                continue

    def _drain(self):
        worker_id, moves = self.rng.choice(list(self.catalog)), self.rng.random() < 0.8
        if not moves:
            self.stays.add(worker_id)
        self._call_all(lambda node: node.health.drain_worker(worker_id, moves, node.now()))
        yield self._duration()
        self._call_all(lambda node: node.health.undrain_worker(worker_id, node.now()))
        self.stays.discard(worker_id)

    def _readdress(self):
        """Move a worker to another endpoint and process."""
        worker_id = self.rng.choice(list(self.catalog))
        patch = a_patch(endpoint=f"http://w{worker_id}-{self.rng.randrange(10**6)}:8000")
        given = self.catalog[worker_id]
        self.catalog[worker_id] = msgspec.structs.replace(given, endpoint=patch.endpoint)
        self._begin("connect", self.ranks_of(worker_id)).end = self.time
        self._start_engines(worker_id)
        self._call_all(lambda node: node.selector.patch_worker(worker_id, patch))
        yield 0.0

    def _replace(self):
        """Delete a worker, and register the same worker again later."""
        if len(self.catalog) < len(DP_SIZES):
            return
        worker_id = self.rng.choice(list(self.catalog))
        given = self.catalog.pop(worker_id)
        trouble = self._begin("connect", self.ranks_of(worker_id))
        for rank in self.ranks_of(worker_id):
            del self.engines[rank]
            self.corrupt.pop(rank, None)
        self._call_all(lambda node: node.selector.delete_worker(worker_id, node.now()))
        yield self.rng.uniform(3.0, 30.0)
        self.catalog[worker_id], trouble.end = given, self.time
        self._start_engines(worker_id)
        self._call_all(lambda node: node.selector.register_worker(given))

    def _small_verbs(self):
        """Change settings for a short time, and report failures without any call."""
        worker_id = self.rng.choice(list(self.catalog))
        self._call_all(lambda node: node.health.check_worker(worker_id, node.now()))
        shed = self.rng.choice([None, "best_effort", "standard"])
        self._call_all(lambda node: node.selector.set_shed_tier(shed))
        for _ in range(5):
            yield 0.5
            rank, node = self.rng.choice(list(self.engines)), self.rng.choice(self.nodes)
            node.report(rank, "failure", self.rng.choice([None, "not-one-of-mine"]))
            node.report(rank, None, status=self.rng.choice([400, 404, 429, 503]))
        self._call_all(lambda node: node.selector.set_shed_tier(None))

    def update_model(self):
        """Give all engines other weights at the same time, for which no engine may be blamed."""
        self.model += 1
        for engine in self.engines.values():
            engine.model = self.model

    def calm(self):
        """Repair all faults; no requests arrive any more."""
        self.network.heal()
        self.unreachable.clear()
        for trouble in self.troubles:
            trouble.end = min(trouble.end, self.time)
        for worker_id in range(len(DP_SIZES)):
            for rank in self.ranks_of(worker_id):
                if self.engines[rank].fault == "connect":
                    self._start_engines(worker_id)
            self._call_all(lambda node, w=worker_id: node.health.undrain_worker(w, node.now()))
        for engine in self.engines.values():
            engine.fault = ""
        self.corrupt.clear()

    # --- permanent checks

    def _checking(self):
        while True:
            yield 1.0
            for node in self.nodes:
                now = node.now()
                fit_rules.check_loads(node)
                fit_rules.check_ranks_out(node, now)
                fit_rules.check_deaths(node, now)
                fit_rules.check_corrupt(node)
            if int(self.time) % 20 == 0:
                self.check_invariants()

    def check_invariants(self):
        for node in self.nodes:
            node.selector.check_invariants()
            node.mover.check_invariants()
            node.watch.check_invariants()

    def check_moves_were_received(self):
        for gateway in self.gateways:
            for node in self.processes:
                fit_rules.check_received(node, gateway)


def _worker(worker_id, size):
    fields = {
        "data_parallel_size": size,
        "max_num_batched_tokens": 64,
        "kv_layout": LAYOUT,
        "prefill_tokens_per_s": 4096.0,
    }
    if worker_id == SPARE:
        fields["spare"] = True
    if worker_id % 2:
        fields["total_kv_blocks"] = 60
    if worker_id % 3 == 0:
        fields["kv_transfer_domain"] = "island"
    return a_worker(worker_id, **fields)
