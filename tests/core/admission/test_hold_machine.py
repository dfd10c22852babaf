"""Tests of requests held back by the remaining work on ranks, against a naive twin."""

import msgspec
import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from select_service.core.admission import drain_rate
from select_service.core.admission.policy_classes import PolicyClassProfile, PolicyDocument
from select_service.core.load.compiled.load_layout import REPORTED_SHARE
from tests.builders.hypothesis_profiles import explored
from tests.core.admission.cases import ANY, PATHS, SHAPES, with_policy
from tests.core.admission.test_admission_machine import AdmissionMatchesModel
from tests.core.admission.twins import MEDIA
from tests.models.hold import TOKEN_S, HoldModel

HELD = {"queue_policy": "work", "prefill_busy_threshold": 6, "prefill_busy_threshold_frac": 0.5}


class HoldMatchesModel(AdmissionMatchesModel):
    """One class; a rank has room for 6 remaining tokens, or half a batch."""

    document = with_policy(HELD)
    profile = PolicyClassProfile(msgspec.convert(document, PolicyDocument))
    keys = (("m", "default"),)
    policy = "work"
    model_class = HoldModel
    partition = None

    def __init__(self):
        super().__init__()
        for name in ("TOKEN_S", "TOKEN_S_MIN", "TOKEN_S_MAX"):
            self.patched.setattr(drain_rate, name, TOKEN_S)

    @initialize(
        seed=st.integers(0, 2**32),
        shapes=st.tuples(SHAPES, SHAPES),
        share=st.sampled_from([1.0, 1.0, 0.52, 0.51]),
        some=st.integers(2, 6),
    )
    def start(self, seed, shapes, share, some):
        """share: fraction of earlier prefills with a reported end"""
        super().start(seed, shapes)
        (self.partition,) = self.selector.fleet.partitions.values()
        self.partition.load.header.view(np.float64)[REPORTED_SHARE] = share
        self.model.reported = share
        for number in range(some):
            self.a_caller_reserves_where_it_went(number, (1,), 9, "new")

    @rule(
        number=ANY, path=PATHS, tokens=st.integers(0, 9), own_id=st.sampled_from(["new", "taken"])
    )
    def a_caller_reserves_where_it_went(self, number, path, tokens, own_id):
        found = self.some_rank(number)
        if found:
            rank, key = found
            self.model.upcoming = self.model.callers_work(key, rank, path, 9, tokens)
        super().a_caller_reserves_where_it_went(number, path, tokens, own_id)
        self.model.upcoming = None

    def goes_on(self, name, verb):
        super().goes_on(name, verb)
        if verb == "complete_prefill":
            self.model.ends(name, True)

    @precondition(lambda self: self.ranks())
    @rule(number=ANY, medium=st.sampled_from(sorted(MEDIA)), path=PATHS)
    def blocks_are_stored(self, number, medium, path):
        super().blocks_are_stored(number, medium, path)
        self.selector.gate.wake_by_progress(self.now)

    @precondition(lambda self: any(p.path for p in self.model.unfinished))
    @rule(number=ANY, blocks=st.integers(1, 4))
    def an_engine_computes(self, number, blocks):
        """Store a part of a prompt that the rank received."""
        sent = [p for p in self.model.unfinished if p.path]
        prefill = sent[number % len(sent)]
        at = sorted(self.ranks()).index((prefill.rank, prefill.key))
        self.blocks_are_stored(at, "gpu", prefill.path[: prefill.cached + blocks])

    @invariant()
    def a_new_partition_resets_the_reported_share(self):
        """Reset the reported share after all workers of a model were replaced by others."""
        found = next(iter(self.selector.fleet.partitions.values()), None)
        if self.partition is not None and found is not self.partition:
            self.model.reported = 1.0
        self.partition = found

    @invariant()
    def immediate_requests_find_the_same_ranks(self):
        for key, partition in self.selector.fleet.partitions.items():
            free = self.selector.gate.ranks_without_waiting(partition)
            if free is not None:
                ranks = [tuple(partition.table.row_at(slot).rank) for slot in np.flatnonzero(free)]
                assert not self.model.line.of(key)
                assert set(ranks) == self.model.open_ranks(key) - self.model.busy(key)
                (policy,) = self.model.document["policy_classes"]
                assert set(ranks) & self.model.unloaded(key, policy)


class ByBatchesWithThresholds(HoldMatchesModel):
    """Room below one batch of remaining work, beside busy thresholds; small turns."""

    document = with_policy({**HELD, "prefill_busy_threshold": 0, "prefill_busy_threshold_frac": 1})
    profile = PolicyClassProfile(msgspec.convert(document, PolicyDocument))
    thresholds = (0.9, 40)
    timeout_s = 2.0
    turn_max = 2


TestHold = explored(HoldMatchesModel)
TestByBatchesWithThresholds = explored(ByBatchesWithThresholds)
