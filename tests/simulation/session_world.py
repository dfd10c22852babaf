"""Replicas with sessions, over the network and clocks of `World`."""

from itertools import count

from select_service.core.replication.repair import UnexpectedProcess
from select_service.core.replication.session_events import decode_session_event
from select_service.core.replication.session_exchange import decode_session_digest
from select_service.core.replication.session_repair import (
    SessionAgreement,
    SessionListAnswer,
    SessionRepair,
)
from select_service.core.sessions.session_settings import SessionSettings
from tests.builders import a_select_and_reserve, a_selector
from tests.builders.selector_scenes import KEY
from tests.simulation.world import Node, World

EPOCH_S = 1.8e9


class SessionNode(Node):
    """Selector that also exchanges its sessions."""

    def __init__(self, world, number, n_workers, ttl_s):
        super().__init__(world, number, n_workers, ttl_s)
        self.session_agreements, self.reading = {}, set()
        self.session_repairs = 0
        self.exchange = self.selector.followers.sessions
        self.exchange.start_sending(
            self.selector.ledger, lambda payload: world.broadcast(self, "session", payload)
        )

    def new_selector(self, seed, ttl_s):
        settings = SessionSettings(
            self.world.session_ttl_s, is_hard=True, epoch_s=EPOCH_S - self.clock_ahead_s
        )
        return a_selector(seed=seed, ttl_s=ttl_s, sessions=settings)

    def tick(self):
        super().tick()
        self.world.broadcast(self, "session_digest", self.exchange.make_digest(self.now()))
        for peer, agreement in self.session_agreements.items():
            due = agreement.due_repair(self.now())
            if due is not None and peer not in self.reading:
                self.read_sessions(peer, agreement, *due)

    def receive(self, sender, kind, payload):
        if kind == "session":
            self.exchange.apply_event(decode_session_event(payload), self.now())
        elif kind == "session_digest":
            agreement = self.session_agreements.setdefault(sender, SessionAgreement())
            agreement.record_digest(decode_session_digest(payload), self.exchange, self.now())
        else:
            super().receive(sender, kind, payload)

    def read_sessions(self, peer, agreement, key, parts):
        self.reading.add(peer)
        self.session_repairs += 1
        repair = SessionRepair(self.exchange, agreement.router_id, key, parts)
        walk = repair.run_repair()

        def ended(result):
            self.reading.discard(peer)
            agreement.record_repair(key, result, self.now())

        def ask(wanted):
            self.world.request_sessions(
                self,
                peer,
                wanted._replace(limit=7),
                lambda page: arrived(SessionListAnswer(page, self.now())),
                lambda: ended(None),
            )

        def arrived(answer):
            try:
                wanted = walk.send(answer)
                while wanted is None:
                    wanted = walk.send(None)
            except StopIteration:
                ended(repair.result)
            except UnexpectedProcess:
                ended(None)
            else:
                ask(wanted)

        ask(next(walk))

    def bindings(self):
        """Return rank and version of every session."""
        directory = self.exchange.directory
        table = directory.find_table(KEY)
        if table is None:
            return {}
        states = (table.read_row(row) for row in table.live_rows().tolist())
        return {
            s.session_id: (s.binding.rank, s.binding.version)
            for s in states
            if directory.find_session(KEY, s.session_id, self.now()) is not None
        }


class SessionWorld(World):
    """World of conversations with turns that arrive in order at random nodes."""

    def __init__(self, seed, n_nodes=3, session_ttl_s=1000.0, ttl_s=3600.0):
        self.session_ttl_s = session_ttl_s
        self.first_ranks = {}
        self._turns = count()
        super().__init__(seed, n_nodes, ttl_s=ttl_s)

    def new_node(self, number):
        return SessionNode(self, number, self._n_workers, self._ttl_s)

    def request_sessions(self, asking, peer, wanted, arrived, failed):
        """Request a page of a peer's list of sessions, as `request` does."""
        self.request(asking, peer, wanted, arrived, failed)

    def page_of(self, node, wanted):
        if hasattr(wanted, "parts"):
            return node.selector.session_views.list_page(wanted, node.now())
        return super().page_of(node, wanted)

    def converse(self, session, turns, pause_s=0.5):
        """Run the turns in order, each at a random node, with a pause between turns."""
        if not turns:
            return
        life_s = self.rng.expovariate(1 / 3.0)
        name = f"turn-{next(self._turns)}"
        node = self.rng.choice(self.nodes)
        request = a_select_and_reserve(8, session_id=session, reservation_id=name)
        selection = node.selector.select_and_reserve(request, node.now()).selection
        self.first_ranks.setdefault(session, (selection.worker_id, selection.dp_rank))
        self.running[name] = node.number
        self.at(life_s, lambda: self.end(name))
        self.at(life_s + pause_s, lambda: self.converse(session, turns - 1, pause_s))

    def start_conversations(self, n, turns, over_s):
        for number in range(n):
            self.at(
                self.rng.uniform(0, over_s), lambda k=number: self.converse(f"session-{k}", turns)
            )

    def sessions_agree(self):
        first, *others = (node.bindings() for node in self.nodes)
        return all(other == first for other in others)
