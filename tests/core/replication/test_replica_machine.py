"""Tests of replica events against a naive twin: lost, repeated, reordered, between local calls."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from select_service.core.identity import Rank
from select_service.core.replication.load_events import (
    PrefillCompleted,
    ReservationAdmitted,
    ReservationFreed,
)
from tests.builders import a_reservation, a_selector, a_worker
from tests.builders.hypothesis_profiles import explored
from tests.builders.ticks import ticked
from tests.models.replica_model import ReplicaModel

TTL_S = 300.0
NAMES = st.sampled_from(["a", "b", "c", "d/é"])
RANKS = st.sampled_from([Rank(1, 0), Rank(1, 1), Rank(2, 0), Rank(9, 0)])
HERE = [Rank(1, 0), Rank(1, 1), Rank(2, 0), Rank(2, 1)]
HASHES = st.lists(st.integers(0, 5), max_size=4)
PEERS = st.sampled_from([7, 8])
WORK = st.none() | st.integers(0, 9)


def admitted_work(event):
    """Return the own work that an admission's readers book."""
    return max(1, event.prefill_tokens if event.work is None else event.work)


class ReplicaStateMatchesModel(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.said = []
        self.selector = a_selector(ttl_s=TTL_S)
        for worker_id in (1, 2):
            self.selector.register_worker(a_worker(worker_id, data_parallel_size=2))
        self.selector.followers.replicas.start_sending(self.said.append)
        self.model = ReplicaModel(self.selector.followers.replicas.router_id, HERE, TTL_S)
        self.now = 0.0

    def event(self, kind, name, rank, peer, **fields):
        return kind(
            model_name="m",
            tenant_id="default",
            block_size=4,
            reservation_id=name,
            rank=rank,
            router_id=peer,
            **fields,
        )

    def apply(self, event):
        return self.selector.followers.replicas.apply_event(event, self.now)

    @rule(name=NAMES, rank=RANKS, hashes=HASHES, tokens=st.integers(0, 9), peer=PEERS, work=WORK)
    def admitted(self, name, rank, hashes, tokens, peer, work):
        fields = {
            "sequence_hashes": np.array(hashes, np.uint64),
            "prefill_tokens_hint": tokens,
            "work": work,
        }
        event = self.event(ReservationAdmitted, name, rank, peer, **fields)
        got = self.apply(event)
        own = admitted_work(event)
        assert got == self.model.admitted(name, rank, hashes, tokens, peer, self.now, own)

    @rule(name=NAMES, rank=RANKS, peer=PEERS)
    def on_prefill_completed(self, name, rank, peer):
        got = self.apply(self.event(PrefillCompleted, name, rank, peer))
        assert got == self.model.prefilled(name, peer, self.now)

    @rule(name=NAMES, rank=RANKS, peer=PEERS)
    def record_freed(self, name, rank, peer):
        got = self.apply(self.event(ReservationFreed, name, rank, peer))
        assert got == self.model.record_freed(name, peer, self.now)

    @rule(name=NAMES, rank=st.sampled_from(HERE), hashes=HASHES, tokens=st.integers(0, 7))
    def reserve_here(self, name, rank, hashes, tokens):
        if name in self.model.held:
            return
        request = a_reservation(
            name,
            rank.worker_id,
            token_ids=None,
            sequence_hashes=hashes,
            isl_tokens=7,
            dp_rank=rank.dp_rank,
            effective_prefill_tokens=tokens,
        )
        self.selector.reserve(request, self.now)
        event = self.expect_sent(ReservationAdmitted, name)
        self.model.local(name, rank, hashes, tokens, self.now, admitted_work(event))

    @rule(name=NAMES)
    def free_here(self, name):
        if name in self.model.held:
            self.selector.free_reservation(name, self.now)
            self.model.record_freed(name, self.model.own, self.now)
            self.expect_sent(ReservationFreed, name)

    @rule(name=NAMES)
    def complete_here(self, name):
        if name in self.model.held:
            self.selector.complete_prefill(name, self.now)
            self.model.prefilled(name, self.model.own, self.now)
            self.expect_sent(PrefillCompleted, name)

    @rule(seconds=st.sampled_from([0.0, 1.0, 59.0, 61.0, 299.0, 700.0]))
    def time_passes(self, seconds):
        self.now += seconds
        ticked(self.selector, self.now)
        self.model.expire(self.now)

    @rule(name=NAMES)
    def an_own_event_comes_back(self, name):
        before = list(self.selector.inspection.partition_loads())
        event = self.event(
            ReservationFreed, name, Rank(1, 0), self.selector.followers.replicas.router_id
        )
        assert self.apply(event) == "own"
        assert list(self.selector.inspection.partition_loads()) == before

    def expect_sent(self, kind, name):
        (event,) = self.said
        self.said.clear()
        assert (type(event), event.reservation_id) == (kind, name)
        assert event.router_id == self.selector.followers.replicas.router_id
        return event

    @invariant()
    def nothing_is_sent_for_other_replicas(self):
        assert self.said == []

    @invariant()
    def bookings_agree(self):
        got = {
            b.reservation_id: (b.rank, b.prefill_tokens, b.is_prefilling, b.origin, b.prefill_work)
            for b in self.selector.ledger.reservations
        }
        assert got == {
            name: (b["rank"], b["tokens"], b["prefilling"], b["origin"], b["work"])
            for name, b in self.model.held.items()
        }

    @invariant()
    def loads_agree(self):
        (partition,) = self.selector.inspection.partition_loads()
        got = {
            Rank(row.worker_id, row.dp_rank): (
                row.potential_prefill_tokens,
                row.potential_decode_blocks,
                row.active_requests,
            )
            for row in partition.loads
        }
        assert got == self.model.loads()
        self.selector.check_invariants()


TestReplicaStateMatchesModel = explored(ReplicaStateMatchesModel)
