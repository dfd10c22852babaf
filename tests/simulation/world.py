"""Several selectors in virtual time, connected by a network with all kinds of faults.

Everything follows from one seed. The selectors, the bytes of events and digests, and the course
of a repair are the service's own; sockets and clocks are simulated. Every selector has its own
clock, with a different time.
"""

import heapq
from itertools import count
from random import Random

import numpy as np

from indexer.tiers import Tier
from select_service.base.errors import NotFound
from select_service.core.load.reservations import ReservationFilter
from select_service.core.placement.router_config import RouterConfig
from select_service.core.replication import digest as replica_digest
from select_service.core.replication import load_events as replica_events
from select_service.core.replication import prefill_progress as replica_progress
from select_service.core.replication.peer_agreement import PeerAgreement
from select_service.core.replication.repair import Repair, ReservationPageAnswer, UnexpectedProcess
from tests.builders import a_select_and_reserve, a_selector, a_worker
from tests.builders.ticks import ticked

REQUEST_S = 5.0
"""Longest time in s until the requester of a page gives up."""


DIGEST_S = 1.0


class Network:
    """Network between nodes.

    loss, repeat: probabilities per message
    delay_s: mean delay, in s
    cut: pairs (from, to) that carry no messages
    """

    def __init__(self, loss=0.0, repeat=0.0, delay_s=0.001):
        self.loss, self.repeat, self.delay_s = loss, repeat, delay_s
        self.cut = set()

    def delays(self, link, rng):
        """Return the delays of the arriving copies; independent delays reorder messages."""
        if link in self.cut or rng.random() < self.loss:
            return []
        copies = 2 if rng.random() < self.repeat else 1
        return [rng.expovariate(1 / self.delay_s) for _ in range(copies)]

    def heal(self):
        self.__init__()


class Node:
    """Selector process."""

    def __init__(self, world, number, n_workers, ttl_s):
        self.world, self.number = world, number
        self.clock_ahead_s = world.rng.uniform(0, 1e5)
        self.sent = self.digests = self.repairs = 0
        self.agreements = {}
        self.encode = replica_events.LoadEventEncoder().encode_event
        self.repairing = set()
        self.selector = self.new_selector(world.rng.getrandbits(64), ttl_s)
        self.selector.followers.replicas.start_sending(self.publish_event)
        for worker in self.workers(n_workers):
            self.selector.register_worker(worker)

    def new_selector(self, seed, ttl_s):
        return a_selector(RouterConfig(policy="work"), seed=seed, ttl_s=ttl_s)

    def workers(self, n_workers):
        """Return the workers that are registered at the start."""
        return [a_worker(worker_id, data_parallel_size=2) for worker_id in range(n_workers)]

    def now(self):
        return self.world.time + self.clock_ahead_s

    def publish_event(self, event):
        self.sent += 1
        self.world.broadcast(self, "event", self.encode(event))

    def tick(self):
        ticked(self.selector, self.now())
        self.digests += 1
        digest = self.selector.followers.replicas.make_digest(self.digests, self.sent, 1, None)
        self.world.broadcast(self, "digest", replica_digest.encode_digest(digest))
        for peer, agreement in self.agreements.items():
            if agreement.is_repair_due(self.now()) and peer not in self.repairing:
                self.start_repair(peer, agreement)

    def send_progress(self):
        def broadcast(payload):
            self.world.broadcast(self, "progress", payload)

        while self.selector.followers.replicas.progress.run_turn(self.now(), broadcast):
            pass

    def compute(self, rank, blocks):
        """Store blocks in the index, as after an engine's event about computed blocks."""
        (partition,) = self.selector.fleet.partitions.values()
        partition.table.writer_of(rank).store(Tier.GPU, None, blocks, blocks)

    def receive(self, sender, kind, payload):
        if kind == "progress":
            self.selector.followers.replicas.progress.apply_progress(
                replica_progress.decode_progress(payload)
            )
            return
        agreement = self.agreements.setdefault(sender, PeerAgreement())
        if kind == "event":
            event = replica_events.decode_event(payload)
            agreement.count_event(event.router_id)
            self.selector.followers.replicas.apply_event(event, self.now())
        else:
            digest = replica_digest.decode_digest(payload)
            self.selector.followers.replicas.compare_digest(digest, agreement, self.now())

    def start_repair(self, peer, agreement):
        self.repairing.add(peer)
        self.repairs += 1
        repair = Repair(self.selector.followers.replicas, agreement.router_id, self.now())
        walk = repair.run_repair()

        def ended(is_complete):
            self.repairing.discard(peer)
            if is_complete:
                agreement.record_repair(repair.result.has_progress, self.now())
            else:
                agreement.record_failed_repair(self.now())

        def ask(wanted):
            asked_at = self.now()
            self.world.request(
                self,
                peer,
                wanted._replace(limit=4),
                lambda page: arrived(ReservationPageAnswer(page, asked_at, self.now())),
                lambda: ended(False),
            )

        def arrived(answer):
            try:
                wanted = walk.send(answer)
                while wanted is None:
                    wanted = walk.send(None)
            except StopIteration:
                ended(True)
            except UnexpectedProcess:
                ended(False)
            else:
                ask(wanted)

        ask(next(walk))


class World:
    """Nodes, network, the clients' running requests, and the time in seconds."""

    def __init__(self, seed, n_nodes=3, n_workers=3, ttl_s=3600.0):
        self.rng = Random(seed)
        self.time = 0.0
        self.network = Network()
        self.running = {}
        self._n_workers, self._ttl_s = n_workers, ttl_s
        self._due, self._order, self._names = [], count(), count()
        self.nodes = [self.new_node(number) for number in range(n_nodes)]
        self.lives = [0] * n_nodes
        for number in range(n_nodes):
            self.at(self.rng.uniform(0, DIGEST_S), lambda n=number: self._tick(n))
            self.at(self.rng.uniform(0, DIGEST_S), lambda n=number: self._send_progress(n))

    def new_node(self, number):
        return Node(self, number, self._n_workers, self._ttl_s)

    # --- time

    def at(self, delay_s, action):
        heapq.heappush(self._due, (self.time + delay_s, next(self._order), action))

    def run(self, seconds):
        end = self.time + seconds
        while self._due and self._due[0][0] <= end:
            self.time, _, action = heapq.heappop(self._due)
            action()
        self.time = end

    def _tick(self, number):
        self.nodes[number].tick()
        self.at(DIGEST_S, lambda: self._tick(number))

    def _send_progress(self, number):
        self.nodes[number].send_progress()
        self.at(replica_progress.PROGRESS_S, lambda: self._send_progress(number))

    # --- network

    def broadcast(self, sender, kind, payload):
        for number in range(len(self.nodes)):
            if number != sender.number:
                self._carry(
                    (sender.number, number),
                    lambda n=number: self.nodes[n].receive(sender.number, kind, payload),
                )

    def _carry(self, link, action):
        for delay_s in self.network.delays(link, self.rng):
            self.at(delay_s, action)

    def request(self, asking, peer, wanted: ReservationFilter, arrived, failed):
        """Request a page of a peer's list: send the request, read the page, and send the page back.

        The page may be lost on the way.
        """
        open_calls = [True]

        def once(action, *arguments):
            # A restarted process has forgotten its request.
            if open_calls and self.nodes[asking.number] is asking:
                open_calls.clear()
                action(*arguments)

        def answer():
            node = self.nodes[peer]
            page = self.page_of(node, wanted)
            self._carry((peer, asking.number), lambda: once(arrived, page))

        self._carry((asking.number, peer), answer)
        self.at(REQUEST_S, lambda: once(failed))

    def page_of(self, node, wanted):
        return node.selector.inspection.list_reservations(wanted, node.now())

    # --- clients

    def arrivals(self, per_s, until_s, life_s):
        """Let requests arrive at random nodes until `until_s`, with `life_s` as mean lifetime."""
        if self.time < until_s:
            self.at(self.rng.expovariate(per_s), lambda: self.arrivals(per_s, until_s, life_s))
            self._arrive(life_s)

    def _arrive(self, life_s):
        name = f"r{next(self._names)}"
        self.book(name, self.rng.choice(self.nodes))
        self.at(self.rng.expovariate(2 / life_s), lambda: self.anywhere(name, "complete_prefill"))
        self.at(self.rng.expovariate(1 / life_s), lambda: self.end(name))

    def book(self, name, node):
        start = self.rng.randrange(20)
        hashes = list(range(start, start + self.rng.randrange(1, 6)))
        node.selector.select_and_reserve(
            a_select_and_reserve(
                token_ids=None,
                block_hashes=hashes,
                sequence_hashes=hashes,
                isl_tokens=4 * len(hashes),
                reservation_id=name,
            ),
            node.now(),
        )
        self.running[name] = node.number
        rank = node.selector.ledger.reservations.get_reservation(name).rank
        computed = np.array(hashes[: self.rng.randrange(len(hashes) + 1)], np.uint64)
        if len(computed):
            self.at(self.rng.uniform(0, 1), lambda: self._computed(rank, computed))

    def _computed(self, rank, blocks):
        for node in self.nodes:
            node.compute(rank, blocks)

    def end(self, name):
        if name in self.running and self.anywhere(name, "free_reservation"):
            del self.running[name]

    def anywhere(self, name, verb):
        """Call a random node, then the node of the booking, then all, until a node knows the id."""
        if name not in self.running:
            return False
        first = [self.rng.choice(self.nodes), self.nodes[self.running[name]]]
        for node in [*first, *self.nodes]:
            try:
                getattr(node.selector, verb)(name, node.now())
            except NotFound:
                continue
            return True
        # No node knows the id, because a node died with the reservation.
        return verb == "free_reservation"

    def restart(self, number):
        """Replace the process by a new process, which is empty and has another router id."""
        self.nodes[number] = self.new_node(number)

    # --- comparison

    def reservations_by_node(self):
        """Return every reservation of each node, with rank, prefill tokens and own work."""
        return [
            {
                b.reservation_id: (
                    *(b.key, b.rank, b.prefill_tokens, b.prefill_work),
                    sorted(b.sequence_hashes),
                )
                for b in node.selector.ledger.reservations
            }
            for node in self.nodes
        ]

    def agree(self):
        first, *others = self.reservations_by_node()
        return all(other == first for other in others)

    def check_invariants(self):
        for node in self.nodes:
            node.selector.check_invariants()
