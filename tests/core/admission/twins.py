"""Selector and naive twin side by side.

The module has their start, changes of workers, and the comparison after every step.
"""

from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from select_service.base.errors import SelectError
from select_service.core.admission import flow_clock, turn_budget
from select_service.core.admission.admission_settings import AdmissionSettings
from select_service.core.admission.busy_thresholds import BusyThresholds
from select_service.core.admission.policy_classes import (
    PolicyClassProfile,
    PolicyDocument,
    QueueBounds,
    QueueRules,
    single_class_profile,
)
from select_service.core.identity import PartitionKey, Rank
from select_service.core.placement.router_config import RouterConfig
from select_service.core.selector_builder import SelectorConfig, build_selector
from select_service.core.workers.engine_load import EngineReading, EngineTarget
from tests.builders import a_patch, a_worker
from tests.core.admission.cases import ANY, DP_RANKS, ONE_CLASS, PATHS, SHAPES, URLS, WORKERS
from tests.models.admission import AdmissionModel, Machine, names

TTL_S, STALE_S = 50.0, 5.0
MEDIA = {"gpu": Tier.GPU, "cpu": Tier.CPU, "disk": Tier.DISK}


class Twins(RuleBasedStateMachine):
    """Machine of one class, first come first served."""

    document = ONE_CLASS
    profile = single_class_profile("fcfs", 0.5)
    keys = (("m", "default"), ("n", "gold"))
    thresholds = (None, None)
    timeout_s = 0.0
    bounds = (100, 10_000)
    turn_max = 64
    burst_of_rank = 4
    ttl_s, stale_s = TTL_S, STALE_S
    policy = "reference"  # the policy with the model's costs
    model_class = AdmissionModel

    # --- selector and twin

    def __init__(self):
        super().__init__()
        self.patched = pytest.MonkeyPatch()
        self.limit_turns()
        self.patched.setattr(flow_clock, "BURST_TOKENS", self.burst_of_rank)

    def limit_turns(self):
        """Limit a turn by the served requests alone, as the twin does."""
        for name in ("REFUSE_WORK", "REFRESH_WORK", "REBIND_WORK", "SWEEP_WORK"):
            self.patched.setattr(turn_budget, name, 1)
        # Room for the rejections, less than for one more request.
        work = (self.turn_max + 1) * turn_budget.SERVE_WORK - 1
        self.patched.setattr(
            turn_budget.TurnBudget, "__init__", lambda budget: setattr(budget, "left", work)
        )

    def teardown(self):
        self.patched.undo()

    @initialize(seed=st.integers(0, 2**32), shapes=st.tuples(SHAPES, SHAPES))
    def start(self, seed, shapes):
        self.now, self.woken = 0.0, False
        self.count, self.tickets, self.log = 0, {}, []
        queueing = self.document is not None
        self.selector = build_selector(
            SelectorConfig(
                RouterConfig(policy=self.policy),
                admission=AdmissionSettings(
                    thresholds=BusyThresholds(*self.thresholds),
                    queue=self.queue_rules() if queueing else None,
                    engine_stale_s=self.stale_s,
                ),
                use_kv_events=False,
                reservation_ttl_s=self.ttl_s,
            ),
            lambda: PrefixIndex(64),
            rng=Random(seed),
            wake=self.wake,
        )
        self.model = self.model_class(
            self.document,
            ttl_s=self.ttl_s,
            stale_s=self.stale_s,
            turn_max=self.turn_max,
            timeout_s=self.timeout_s,
            bounds=self.bounds,
        )
        self.model.default = self.thresholds
        self.model.burst_of_rank = self.burst_of_rank
        for worker_id, shape in enumerate(shapes, 1):
            shape = {**shape, "batch_tokens": shape["batch_tokens"] or 8}
            self.register(worker_id, self.keys[0], shape, 4, "http://e:1/metrics")

    def queue_rules(self):
        profile = self.profile or PolicyClassProfile(msgspec.convert(self.document, PolicyDocument))
        return QueueRules(profile, timeout_s=self.timeout_s, bounds=QueueBounds(*self.bounds))

    def wake(self):
        self.woken = True

    def record_outcome(self, name):
        outcome = self.tickets.pop(name).outcome
        error = type(outcome).__name__ if isinstance(outcome, SelectError) else "served"
        self.log.append((name, error))
        if error == "served":
            self.pass_choice(name, outcome)
            assert outcome.queue_wait.seconds >= 0.0

    def pass_choice(self, name, decision):
        """Pass on to the twin which of equally good ranks was chosen."""
        chosen = decision.selection
        rank = (chosen.worker_id, chosen.dp_rank)
        reservation_id = chosen.reservation_id or None
        self.model.told[name] = (rank, reservation_id, chosen.effective_prefill_tokens)

    def agree_on_departures(self):
        """Check equal orders of service per partition, and equal rejections with equal reasons."""
        expected, self.model.log = self.model.log, []
        got, self.log = self.log, []
        assert sorted(got) == sorted(expected)
        for key in self.keys:
            assert self.served_of(key, got) == self.served_of(key, expected)

    def served_of(self, key, log):
        return [name for name, error in log if error == "served" and name.startswith(key[0])]

    def refusal(self, verb, *arguments):
        try:
            verb(*arguments)
        except SelectError as error:
            return type(error).__name__
        return None

    # --- workers

    @rule(
        worker_id=WORKERS,
        key=st.integers(0, 3),
        shape=SHAPES,
        block_size=st.sampled_from([4, 4, 4, 8]),
        url=st.none() | URLS,
    )
    def register_worker(self, worker_id, key, shape, block_size, url):
        self.register(worker_id, self.keys[key == 0 and len(self.keys) - 1], shape, block_size, url)

    def register(self, worker_id, key, shape, block_size, url):
        record = self.selector.register_worker(
            a_worker(
                worker_id,
                model_name=key[0],
                tenant_id=key[1],
                block_size=block_size,
                data_parallel_size=shape["dp_size"],
                max_num_batched_tokens=shape["batch_tokens"],
                total_kv_blocks=shape["kv_blocks"],
                taints=sorted(shape["taints"]),
                metrics_endpoint=url,
            )
        )
        self.selector.drain_removed_ranks(self.now)
        queueing = self.document is not None
        new = Machine(key, block_size, "http://w", **shape, url=url, queueing=queueing)
        self.model.put(worker_id, new)
        assert record.lifecycle == new.lifecycle

    @rule(
        worker_id=WORKERS,
        dp_size=st.sampled_from([None, 1, 2, 3]),
        batch_tokens=st.sampled_from([None, 0, 4, 16]),
        kv_blocks=st.sampled_from([None, 3, 10]),
        taints=st.none() | st.sampled_from([frozenset(), frozenset("a"), frozenset("ab")]),
        url=st.none() | URLS,
    )
    def patch(self, worker_id, dp_size, batch_tokens, kv_blocks, taints, url):
        old = self.model.workers.get(worker_id)
        change = a_patch(
            data_parallel_size=dp_size,
            max_num_batched_tokens=batch_tokens,
            total_kv_blocks=kv_blocks,
            taints=None if taints is None else sorted(taints),
            metrics_endpoint=url,
        )
        if old is None:
            assert self.refusal(self.selector.patch_worker, worker_id, change) == "NotFound"
            return
        record = self.selector.patch_worker(worker_id, change)
        self.selector.drain_removed_ranks(self.now)
        new = Machine(
            old.key,
            old.block_size,
            old.endpoint,
            dp_size or old.dp_size,
            batch_tokens=old.batch_tokens if batch_tokens is None else batch_tokens,
            kv_blocks=kv_blocks or old.kv_blocks,
            taints=old.taints if taints is None else taints,
            url=url or old.url,
            queueing=old.queueing,
        )
        self.model.put(worker_id, new)
        assert record.lifecycle == new.lifecycle

    @precondition(lambda self: len(self.ranks()) > 2 or len(self.tickets) > 1)
    @rule(worker_id=WORKERS, all_of_them=st.booleans())
    def delete_worker(self, worker_id, all_of_them):
        for gone in [1, 2, 3] if all_of_them and self.tickets else [worker_id]:
            if gone in self.model.workers:
                self.selector.delete_worker(gone, 0.0)
                self.selector.drain_removed_ranks(self.now)
                self.model.delete_worker(gone)

    def ranks(self):
        return [(rank, key) for key in self.keys for rank in self.model.ranks(key)]

    def some_rank(self, number):
        """Return any schedulable rank with its partition, or None."""
        there = sorted(self.ranks())
        return there[number % len(there)] if there else None

    @rule(number=ANY, medium=st.sampled_from(sorted(MEDIA)), path=PATHS)
    def blocks_are_stored(self, number, medium, path):
        found = self.some_rank(number)
        if found and path:
            rank, key = found
            writer = self.selector.fleet.partitions[PartitionKey(*key)].table.writer_of(Rank(*rank))
            hashes = np.array(path, np.uint64), np.array(names(path), np.uint64)
            writer.store(MEDIA[medium], None, *hashes, counted=False)
            self.model.store(rank, medium, path)

    @rule(number=ANY, medium=st.sampled_from(sorted(MEDIA)), path=PATHS)
    def a_block_is_removed(self, number, medium, path):
        found = self.some_rank(number)
        if found and path:
            rank, key = found
            writer = self.selector.fleet.partitions[PartitionKey(*key)].table.writer_of(Rank(*rank))
            writer.remove(MEDIA[medium], np.array(names(path)[-1:], np.uint64))
            self.model.drop(rank, medium, path)

    @rule(
        worker_id=WORKERS,
        other=st.none() | st.none() | URLS,
        usages=st.dictionaries(DP_RANKS, st.sampled_from([0.9, 0.5, 0.3, 0.0, None])),
    )
    def engine_is_read(self, worker_id, other, usages):
        """Read an engine at the worker's present URL, or at a former or unknown URL."""
        asked = self.model.workers.get(worker_id)
        url = other or (asked and asked.url) or "http://e:1/metrics"
        readings = {d: EngineReading(usage, None, None) for d, usage in usages.items()}
        self.selector.engine_readings.accept_readings(
            EngineTarget(worker_id, url, (0,)), readings, self.now
        )
        worker = self.model.workers.get(worker_id)
        if worker is not None and worker.lifecycle == "schedulable" and worker.url == url:
            self.model.read_engine(worker_id, usages, self.now)

    @rule(number=ANY, weight=st.sampled_from([1.0, 1.0, 1.0, 0.5, 0.25, 0.0]))
    def a_rank_is_weighed(self, number, weight):
        found = self.some_rank(number)
        if found:
            self.selector.fleet.set_weight(Rank(*found[0]), weight, "unhealthy")
            self.model.health[found[0]] = weight

    # --- after every step

    @invariant()
    def the_same_requests_wait_in_the_same_order(self):
        tickets = {id(ticket): name for name, ticket in self.tickets.items()}
        got = list(self.selector.gate.waiting)
        assert sorted(tickets[id(t)] for t in got) == sorted(self.tickets)
        got.sort(key=lambda ticket: ticket.order)
        for key in self.keys:
            for policy in (self.document or {"policy_classes": []})["policy_classes"]:
                mine = [
                    tickets[id(t)]
                    for t in got
                    if (t.placement_request.partition.key, t.policy_class) == (key, policy["name"])
                ]
                assert mine == [w.asked.name for w in self.model.line.of(key, policy["name"])]

    @invariant()
    def the_queue_is_woken_if_a_request_may_leave(self):
        assert self.woken or not self.model.may_leave()

    @invariant()
    def loads_agree(self):
        got, pending = {}, {}
        for p in self.selector.inspection.partition_loads():
            key = (p.model_name, p.tenant_id)
            pending[key] = (p.pending_count, p.pending_isl_tokens)
            for row in p.loads:
                got[(*key, row.worker_id, row.dp_rank)] = (
                    row.potential_prefill_tokens,
                    row.potential_decode_blocks,
                    row.active_requests,
                )
        assert got == self.model.loads()
        for key, waiting in pending.items():
            there = self.model.line.of(key)
            assert waiting == (len(there), sum(w.asked.isl for w in there))

    @invariant()
    def the_same_ranks_and_workers_are_busy(self):
        for key, partition in self.selector.fleet.partitions.items():
            counts = self.selector.gate.busy_check.count_busy(partition)
            busy = self.model.busy(key)
            assert counts == (len(busy), len(self.model.busy_workers(key)))

    @invariant()
    def outcomes_are_counted(self):
        got = self.selector.gate.tally.outcome_counts()
        assert got == {outcome: self.model.tally[outcome] for outcome in got}

    @invariant()
    def the_selector_is_in_order(self):
        for writer in self.selector.fleet.take_changes().retired:
            writer.close()
        self.selector.check_invariants()
