"""Selector with an admission stage, a clock and a record of requested wake-ups, for tests."""

from random import Random

import msgspec
import numpy as np

from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from select_service.base.errors import SelectError
from select_service.core.admission.admission_settings import AdmissionSettings
from select_service.core.admission.busy_thresholds import BusyThresholds
from select_service.core.admission.policy_classes import (
    PolicyClassProfile,
    PolicyDocument,
    QueueBounds,
    QueueRules,
    single_class_profile,
)
from select_service.core.decision_maker import PlacementDecision
from select_service.core.identity import PartitionKey, Rank
from select_service.core.selector_builder import SelectorConfig, build_selector
from select_service.core.workers.engine_load import EngineReading, EngineTarget
from select_service.schemas.admission import BusyThresholdChange
from tests.builders import a_reservation, a_select, a_select_and_reserve, a_worker
from tests.builders.ticks import ticked

KEY = PartitionKey("m", "default")
METRICS = "http://w1:8000/metrics"


def one_class(policy="fcfs", frac=0.0, **rules):
    """Return rules by which a rank has room without active prefill tokens, or below `frac`."""
    return QueueRules(single_class_profile(policy, frac), **rules)


def classes(*policies, buckets=((0, "all"),), family="main", **rules):
    """Return the rules of a policy document."""
    document = {
        "default_policy_family": family,
        "uncached_isl_buckets": [{"min_tokens": n, "bucket": name} for n, name in buckets],
        "policy_classes": list(policies),
    }
    return QueueRules(PolicyClassProfile(msgspec.convert(document, PolicyDocument)), **rules)


def a_class(name="main", **fields):
    """Return a class for a family and a bucket, with the same room as `one_class`."""
    place = {"policy_family": name, "cache_bucket": "all", "prefill_busy_threshold": 0}
    return {"name": name, **place, **fields}


class Scene:
    """Requests by name.

    served: names of the requests with a rank, in the order of service
    """

    def __init__(self, queue=None, *, decode=None, prefill=None, workers=1, ttl_s=3600.0, **shape):
        self.now, self.wakes = 0.0, 0
        self.served, self.outcomes = [], {}
        self.tickets = {}
        self.selector = build_selector(
            SelectorConfig(
                admission=AdmissionSettings(
                    thresholds=BusyThresholds(decode, prefill), queue=queue
                ),
                use_kv_events=False,
                reservation_ttl_s=ttl_s,
            ),
            lambda: PrefixIndex(256),
            rng=Random(0),
            wake=self.wake,
        )
        for worker_id in range(1, workers + 1):
            self.register(worker_id, **shape)

    @property
    def gate(self):
        return self.selector.gate

    @property
    def partition(self):
        return self.selector.fleet.partitions[KEY]

    def wake(self):
        self.wakes += 1

    def register(self, worker_id=1, **shape):
        shape = {"max_num_batched_tokens": 16, **shape}
        return self.selector.register_worker(a_worker(worker_id, **shape))

    def ask(self, name, tokens=8, header=None, **fields):
        """Call select_and_reserve under this name; return the immediate outcome."""
        return self._submit(
            name, self.selector.select_and_reserve, header,
            a_select_and_reserve(tokens, reservation_id=name, **fields),
        )  # fmt: skip

    def look(self, name, tokens=8, **fields):
        """Call select under this name, without a booking."""
        return self._submit(name, self.selector.select, None, a_select(tokens, **fields))

    def _submit(self, name, verb, header, request):
        try:
            outcome = verb(request, self.now, header)
        except SelectError as error:
            self.outcomes[name] = error
            return error
        if isinstance(outcome, PlacementDecision):
            self._record_outcome(name, outcome)
        else:
            self.tickets[name] = outcome
            outcome.on_settled = lambda: self._record_outcome(name, outcome.outcome)
        return outcome

    def _record_outcome(self, name, outcome):
        self.outcomes[name] = outcome
        self.tickets.pop(name, None)
        if isinstance(outcome, PlacementDecision):
            self.served.append(name)

    def fill(self, worker_id=1, tokens=16, name=None, **fields):
        """Book load of a caller that has chosen the worker."""
        name = name or f"load{worker_id}"
        self.selector.reserve(a_reservation(name, worker_id, tokens, **fields), self.now)

    def free(self, name):
        self.selector.free_reservation(name, self.now)

    def free_and_serve(self, name):
        self.free(name)
        self.serve()

    def serve(self):
        self.selector.run_pending(self.now)
        self.selector.check_invariants()

    def tick(self, seconds=1.0):
        self.now += seconds
        ticked(self.selector, self.now)
        self.selector.check_invariants()

    def set_thresholds(self, model="m", **changes):
        names = {
            "decode": "active_decode_blocks_threshold",
            "prefill": "active_prefill_tokens_threshold",
        }
        fields = {names[name]: value for name, value in changes.items()}
        return self.selector.set_thresholds(
            msgspec.convert({"model": model, **fields}, BusyThresholdChange)
        )

    def report_usage(self, usage, worker_id=1, dp_rank=0, url=METRICS):
        self.selector.engine_readings.accept_readings(
            EngineTarget(worker_id, url, (dp_rank,)),
            {dp_rank: EngineReading(usage, 3, 4)},
            self.now,
        )

    def run_down(self):
        """Free served requests in turn until none waits; return the names in order of service."""
        while self.gate.waiting.requests:
            self.free_and_serve(self.served[-1])
        return self.served


def where(outcome):
    return (outcome.selection.worker_id, outcome.selection.dp_rank)


def pinned(worker_id, dp_rank=0):
    return {"pinned_worker": {"worker_id": worker_id, "dp_rank": dp_rank}}


def bounds(requests=100, tokens=10_000):
    return QueueBounds(requests, tokens)


def hashes(blocks, isl_tokens):
    """Return the fields of a prompt given as block hashes."""
    return {
        "token_ids": None,
        "block_hashes": blocks,
        "sequence_hashes": blocks,
        "isl_tokens": isl_tokens,
    }


def store(scene, worker_id, blocks):
    """Store these blocks on the GPU of rank 0 of a worker."""
    array = np.array(blocks, np.uint64)
    scene.partition.table.writer_of(Rank(worker_id, 0)).store(Tier.GPU, None, array, array)
