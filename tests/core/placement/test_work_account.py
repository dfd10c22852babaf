"""Tests of `work` against its naive twin: engines compute, evict and leave under reservations.

Peers book, too, and report their progress.
"""

from statistics import median

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from indexer.tiers import Tier
from select_service.base.errors import Conflict, NoEligibleRank
from select_service.core.identity import Rank
from select_service.core.load.compiled.load_layout import REPORTED_SHARE, REQUESTS
from select_service.core.placement.placement_kernels import NO_SLOT
from select_service.core.placement.prompt import Prompt
from select_service.core.placement.router_config import RouterConfig
from select_service.core.replication import prefill_progress as replica_progress
from select_service.core.replication.load_events import ReservationAdmitted
from select_service.core.replication.prefill_progress import PrefillProgress, ProgressMessage
from tests.builders import a_reservation, a_select_and_reserve, a_selector, a_worker
from tests.builders.hypothesis_profiles import explored
from tests.builders.refusals import is_refused
from tests.models.cost_model import weighted_cost
from tests.models.work_model import Prefill, RankState, WorkModel, cost, own_work

SIZE = 4
BLOCKS = 40
TTL_S = 50.0
WORKERS = st.integers(0, 2)
NAMES = st.sampled_from("abcdefgh")
TIERS = st.sampled_from([Tier.GPU, Tier.GPU, Tier.CPU, Tier.EXTERNAL])
SPEEDS = [(None,) * 3, (100.0,) * 3, (100.0, 250.5, None), (30.0, 10.0, 70.0)]
PEER = 7
PATHS = [tuple(range(1, 1 + BLOCKS)), (*range(1, 11), *range(100, 70 + BLOCKS + 20))]
PROMPTS = st.tuples(st.sampled_from(PATHS), st.integers(1, BLOCKS), st.integers(0, SIZE - 1))


def hashes(blocks):
    return np.array(blocks, np.uint64)


def engine_hash(prefix):
    """Return a unique name for each block after its prefix."""
    return hash(prefix) % 2**64


class WorkMatchesModel(RuleBasedStateMachine):
    @initialize(
        seed=st.integers(0, 99),
        memory=st.sampled_from([None, 12, 60]),
        speeds=st.sampled_from(SPEEDS),
        options=st.sampled_from([(), (), ("copy-price",), ("decode-sensitive", "copy-price")]),
    )
    def start(self, seed, memory, speeds, options):
        self.config = RouterConfig(policy="work", policy_options=options, host_cache_hit_weight=0.5)
        self.selector = a_selector(self.config, seed=seed, ttl_s=TTL_S)
        self.model, self.memory = WorkModel(SIZE), float(memory or np.inf)
        self.kv_blocks, self.now, self.outside = memory, 0.0, set()
        self.weights = dict.fromkeys(range(3), 1.0)
        self.speeds, declared = speeds, [speed for speed in speeds if speed]
        self.usual_speed = median(declared) if declared else None
        for worker_id in range(3):
            self.join(worker_id)

    def join(self, worker_id):
        self.selector.register_worker(
            a_worker(
                worker_id,
                block_size=SIZE,
                total_kv_blocks=self.kv_blocks,
                prefill_tokens_per_s=self.speeds[worker_id],
            )
        )
        (self.partition,) = self.selector.fleet.partitions.values()
        self.weights[worker_id] = 1.0

    def slot(self, worker_id):
        return self.partition.table.find_slot(Rank(worker_id, 0))

    # --- callers

    def ranks(self, path):
        """Yield (slot, RankState) of all ranks, for the prompt placed last."""
        load, scratch = self.partition.load, self.partition.placer.scratch
        active = load.compute_active_blocks().tolist()
        for rank, slot in sorted(self.partition.table.iterate_slots()):
            gpu, cpu, _, external = self.partition.index.match(hashes(path))[slot].tolist()
            booked = self.model.booked(slot)
            yield (
                slot,
                RankState(
                    device=gpu,
                    host=cpu - gpu,
                    disk=external - cpu,
                    leading_run=int(scratch.leading[slot]),
                    left=booked - self.model.done(slot),
                    booked=booked,
                    requests=self.model.requests(slot),
                    active_blocks=active[slot],
                    kv_blocks=self.memory,
                    outside=slot in self.outside,
                    speed=self.speeds[rank.worker_id],
                    held=len(self.model.tier(slot, Tier.GPU)),
                ),
            )

    def costs(self, path, isl):
        shared = isl, len(path), SIZE, self.config, self.model.reported, self.usual_speed
        weights = {self.slot(worker_id): weight for worker_id, weight in self.weights.items()}
        ranks = dict(self.ranks(path))
        own = [
            own_work(rank, isl, SIZE, self.config) for slot, rank in ranks.items() if weights[slot]
        ]
        shared = *shared, min(own, default=0)
        return {
            slot: weighted_cost(cost(rank, *shared), weights[slot], SIZE)
            for slot, rank in ranks.items()
        }

    @rule(worker_id=WORKERS, weight=st.sampled_from([1.0, 1.0, 0.5, 0.3, 0.0]))
    def weigh(self, worker_id, weight):
        self.selector.fleet.set_weight(Rank(worker_id, 0), weight, "unhealthy")
        self.weights[worker_id] = weight

    @rule(outside=st.sets(WORKERS))
    def peers_come_or_go(self, outside):
        slots = {worker_id: self.slot(worker_id) for worker_id in range(3)}
        self.outside = {slots[worker_id] for worker_id in outside}
        others = np.array([slot in self.outside for slot in slots.values()], np.bool_)
        self.partition.table.set_outside(list(slots.values()), others)

    @rule(prompt=PROMPTS)
    def place(self, prompt):
        path, isl = prompt[0][: prompt[1]], prompt[1] * SIZE + prompt[2]
        asked = Prompt(hashes(path), hashes(path), isl)
        everybody, placing = self.partition.table.open_slots, self.partition.placer
        slot = placing.place_prompt(asked, self.config, everybody)
        expected = self.costs(path, isl)
        costs = {slot: float(placing.scratch.costs[slot]) for slot in expected}
        if set(self.weights.values()) == {1.0}:
            assert costs == expected, "to the last bit"
        assert costs == pytest.approx(expected, rel=1e-12)
        assert (slot == NO_SLOT) == (not any(self.weights.values()))
        assert slot == NO_SLOT or costs[slot] == min(costs.values()) < np.inf
        terms = placing.cost_terms(asked, self.config, everybody)
        names = placing.policy.term_names
        for slot in expected:
            row = dict(zip(names, terms[:, slot].tolist(), strict=True))
            assert row["cost"] == costs[slot]
            assert row["booked_work"] == self.model.booked(slot)
            if self.model.reported >= 0.5:
                assert row["progress"] == self.model.done(slot)

    @rule(name=NAMES, prompt=PROMPTS)
    def select_and_reserve(self, name, prompt):
        if self.model.find(name) is not None:
            return
        path, isl = prompt[0][: prompt[1]], prompt[1] * SIZE + prompt[2]
        body = {"token_ids": None, "block_hashes": list(path), "sequence_hashes": list(path)}
        before = {slot: self.model.there(slot, path) for slot in range(8)}
        request = a_select_and_reserve(reservation_id=name, isl_tokens=isl, **body)
        if not any(self.weights.values()):
            is_refused(NoEligibleRank, self.selector.select_and_reserve, request, self.now)
            return
        worker_id = self.selector.select_and_reserve(request, self.now).selection.worker_id
        slot = self.slot(worker_id)
        matched = self.partition.index.match(hashes(path))[slot]
        assert matched[3] <= before[slot]
        (booked,) = (b for b in self.selector.ledger.reservations if b.reservation_id == name)
        leading = self.leading(slot, path)
        rank = RankState(
            *(int(matched[0]), int(matched[1] - matched[0]), int(matched[3] - matched[1])),
            *(leading, 0, 0, 0, 0),
        )
        work = own_work(rank, isl, SIZE, self.config)
        assert booked.prefill_work == work
        self.model.prefills.append(Prefill(name, slot, work, int(matched[3]), path))

    def leading(self, slot, path):
        """Return the number of leading blocks in live reservations of the slot."""
        live = {p.path[:n] for p in self.model.prefills if p.slot == slot for n in range(99)}
        n = 0
        while n < len(path) and path[: n + 1] in live:
            n += 1
        return n

    @rule(name=NAMES, worker_id=WORKERS, tokens=st.integers(1, 60))
    def reserve(self, name, worker_id, tokens):
        request = a_reservation(name, worker_id, tokens)
        if self.model.find(name) is not None:
            is_refused(Conflict, self.selector.reserve, request, self.now)
        elif not self.weights[worker_id]:
            is_refused(NoEligibleRank, self.selector.reserve, request, self.now)
        else:
            self.selector.reserve(request, self.now)
            (booked,) = (b for b in self.selector.ledger.reservations if b.reservation_id == name)
            assert 0 < booked.prefill_work <= tokens
            path = tuple(range(10_000, 10_000 + tokens // SIZE))  # not shared with others
            self.model.prefills.append(
                Prefill(name, self.slot(worker_id), booked.prefill_work, 0, path)
            )

    # --- peers

    @rule(
        name=NAMES,
        worker_id=WORKERS,
        tokens=st.integers(1, 60),
        work=st.none() | st.integers(1, 60),
    )
    def peer_admits(self, name, worker_id, tokens, work):
        """Admit a reservation of a peer; for a booked name the event is a move."""
        old, slot = self.model.find(name), self.slot(worker_id)
        path = tuple(range(20_000, 20_000 + tokens // SIZE))  # not shared with others
        event = ReservationAdmitted(
            model_name="m",
            tenant_id="default",
            block_size=SIZE,
            reservation_id=name,
            rank=Rank(worker_id, 0),
            router_id=PEER,
            sequence_hashes=hashes(path),
            prefill_tokens_hint=tokens,
            work=work,
        )
        refused = self.selector.followers.replicas.apply_event(event, self.now)
        if old is not None and old.slot == slot:
            assert refused == "known"
            return
        assert refused is None
        if old is not None:
            self.model.end(name, tells=False)
        work = tokens if work is None else work
        self.model.prefills.append(Prefill(name, slot, work, 0, path, of_peer=True))

    @rule(
        rows=st.lists(st.tuples(NAMES, st.integers(0, 70)), max_size=4),
        sender=st.sampled_from([PEER, PEER, PEER + 1]),
    )
    def a_peer_sends_progress(self, rows, sender):
        told = ProgressMessage(
            router_id=sender, rows=[PrefillProgress(name, done) for name, done in rows]
        )
        assert self.selector.followers.replicas.progress.apply_progress(told)
        for name, done in rows:
            prefill = self.model.find(name)
            if prefill is not None and prefill.of_peer and sender == PEER:
                self.model.record_report(name, done)

    @rule()
    def progress_is_sent_to_peers(self):
        self.selector.followers.replicas.liveness.record_digest(PEER, self.now)
        said = []
        assert not self.selector.followers.replicas.progress.run_turn(self.now, said.append)
        rows = [row for payload in said for row in replica_progress.decode_progress(payload).rows]
        slots = [slot for _, slot in self.partition.table.iterate_slots()]
        assert sorted((row.reservation_id, row.done) for row in rows) == sorted(
            self.model.take_reports(slots).items()
        )

    @rule(name=NAMES)
    def prefill_complete(self, name):
        if self.model.find(name) is not None:
            self.selector.complete_prefill(name, self.now)
            self.model.complete(name)

    @rule(name=NAMES)
    def free(self, name):
        if self.model.find(name) is not None:
            self.selector.free_reservation(name, self.now)
            self.model.end(name)

    @rule(name=NAMES, times=st.integers(1, 40))
    def reservations_end_without_reports(self, name, times):
        """Book and end reservations without reports."""
        if self.weights[0] and self.model.find(name) is None:
            for _ in range(times):
                self.selector.reserve(a_reservation(name, 0, 3), self.now)
                self.selector.free_reservation(name, self.now)
                self.model.reported -= self.model.reported / 64

    @rule()
    def all_expire(self):
        self.now += TTL_S + 1
        ended = []
        while True:
            turn = self.selector.expire_reservations(self.now)
            ended += turn.ended_ids
            if not turn.has_more:
                break
        for name in ended:
            self.model.end(name)

    # --- engines

    @rule(worker_id=WORKERS, path=st.sampled_from(PATHS), tier=TIERS, n=st.integers(1, 20))
    def compute(self, worker_id, path, tier, n):
        slot = self.slot(worker_id)
        held = self.model.tier(slot, tier)
        first = 0
        while first < len(path) and path[: first + 1] in held:
            first += 1
        end = first
        while end < min(first + n, len(path)) and path[: end + 1] not in held:
            end += 1
        if end > first:
            names = hashes([engine_hash(path[: k + 1]) for k in range(first, end)])
            parent = engine_hash(path[:first]) if first else None
            writer = self.partition.table.writer_of(Rank(worker_id, 0))
            writer.store(tier, parent, hashes(path[first:end]), names)
            held.update(path[: k + 1] for k in range(first, end))

    @rule(worker_id=WORKERS, tier=TIERS, number=st.integers(0, 99))
    def forget(self, worker_id, tier, number):
        held = self.model.tier(self.slot(worker_id), tier)
        if held:
            prefix = sorted(held)[number % len(held)]
            writer = self.partition.table.writer_of(Rank(worker_id, 0))
            writer.remove(tier, hashes([engine_hash(prefix)]))
            held.remove(prefix)

    @rule(worker_id=WORKERS)
    def clear(self, worker_id):
        self.partition.table.writer_of(Rank(worker_id, 0)).clear()
        self.model.held.pop(self.slot(worker_id), None)

    @rule(worker_id=WORKERS)
    def leave_and_join_again(self, worker_id):
        slot, before = self.slot(worker_id), self.model.reported
        self.selector.delete_worker(worker_id, self.now)
        while self.selector.drain_removed_ranks(self.now):
            pass
        for writer in self.selector.fleet.take_changes().retired:
            writer.close()
        self.model.held.pop(slot, None)
        self.outside.discard(slot)
        for prefill in [p for p in self.model.prefills if p.slot == slot]:
            self.model.end(prefill.name, tells=False)
        assert self.model.reported == before
        self.join(worker_id)

    @invariant()
    def they_agree(self):
        load = self.partition.load
        assert float(load.header.view(np.float64)[REPORTED_SHARE]) == self.model.reported
        for _, slot in self.partition.table.iterate_slots():
            assert load.prefills.work_booked[slot] == self.model.booked(slot)
            assert load.totals[slot, REQUESTS] == self.model.requests(slot)
        self.selector.check_invariants()


TestWork = explored(WorkMatchesModel)
