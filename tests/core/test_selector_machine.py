"""Tests of the whole core against its naive twin: workers change under live reservations."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from select_service.base.errors import Conflict, NoEligibleRank, NotFound, NoWorkers
from select_service.core.load.reservations import ReservationFilter
from select_service.schemas.reservations import ReservationRequest
from tests.builders import a_patch, a_select_and_reserve, a_selector, a_worker
from tests.builders.hypothesis_profiles import explored
from tests.builders.refusals import is_refused
from tests.builders.ticks import ticked
from tests.models.selector_model import ModelWorker, SelectorModel

TTL_S = 50.0
KEYS = [("m", "default"), ("m", "gold"), ("n", "default")]
WORKER_IDS = st.sampled_from([0, 1, 2, 2**64 - 1])
NAMES = st.sampled_from(["", "a", "b", "c/d", "é"])
ID_FIELDS = st.sampled_from(["reservation_id", "selection_id"])
HASH_LISTS = st.lists(st.sampled_from([0, 1, 2, 3, 2**64 - 1]), max_size=5)
ENDPOINTS = st.sampled_from(["http://a", "http://b", ""])


def scope(key):
    return {"model_name": key[0], "tenant_id": key[1]}


class SelectorMatchesModel(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed):
        self.selector = a_selector(ttl_s=TTL_S, seed=seed)
        self.model = SelectorModel(TTL_S)
        self.now = 0.0

    @rule(
        worker_id=WORKER_IDS,
        key=st.sampled_from(KEYS),
        endpoint=ENDPOINTS,
        block_size=st.sampled_from([4, 4, 4, 8, None]),
        dp_size=st.integers(0, 3),
        kind=st.sampled_from([None, None, "agg"]),
    )
    def register(self, worker_id, key, endpoint, block_size, dp_size, kind):
        record = self.selector.register_worker(
            a_worker(
                worker_id,
                endpoint=endpoint,
                block_size=block_size,
                data_parallel_size=dp_size,
                router_hint_worker_type=kind,
                **scope(key),
            )
        )
        self.model.put(worker_id, ModelWorker(key, block_size, endpoint, dp_size))
        self.selector.run_pending(self.now)
        assert record.lifecycle == self.model.workers[worker_id].lifecycle

    @rule(
        worker_id=WORKER_IDS,
        endpoint=st.none() | ENDPOINTS,
        block_size=st.sampled_from([None, 4, 8]),
        dp_size=st.none() | st.integers(1, 3),
        kind=st.sampled_from([None, "", "agg"]),
    )
    def patch(self, worker_id, endpoint, block_size, dp_size, kind):
        change = a_patch(
            endpoint=endpoint,
            block_size=block_size,
            data_parallel_size=dp_size,
            router_hint_worker_type=kind,
        )
        old = self.model.workers.get(worker_id)
        if old is None:
            is_refused(NotFound, self.selector.patch_worker, worker_id, change)
            return
        record = self.selector.patch_worker(worker_id, change)
        self.selector.run_pending(self.now)
        new = ModelWorker(
            old.key,
            old.block_size if block_size is None else block_size,
            old.endpoint if endpoint is None else endpoint,
            old.dp_size if dp_size is None else dp_size,
        )
        self.model.put(worker_id, new)
        assert record.lifecycle == new.lifecycle

    @rule(worker_id=WORKER_IDS)
    def delete_worker(self, worker_id):
        if worker_id not in self.model.workers:
            is_refused(NotFound, self.selector.delete_worker, worker_id, self.now)
            return
        assert self.selector.delete_worker(worker_id, 0.0).lifecycle == "unschedulable"
        self.selector.run_pending(self.now)
        self.model.delete_worker(worker_id)

    @rule(
        name=NAMES,
        field=ID_FIELDS,
        key=st.sampled_from(KEYS),
        hashes=HASH_LISTS,
        isl_tokens=st.sampled_from([1, 7, 40]),
        allowed=st.none() | st.lists(WORKER_IDS, max_size=3),
        repeat=st.booleans(),
    )
    def select_and_reserve(self, name, field, key, hashes, isl_tokens, allowed, repeat):
        request = a_select_and_reserve(
            token_ids=None,
            block_hashes=hashes,
            sequence_hashes=hashes,
            isl_tokens=isl_tokens,
            allowed_worker_ids=allowed,
            repeat=repeat,
            **{field: name},
            **scope(key),
        )
        workers = self.model.schedulable(key)
        if not workers:
            is_refused(NoWorkers, self.selector.select_and_reserve, request, self.now)
        elif name in self.model.held:
            held = self.repeated(request) if repeat else None
            if held is None:
                is_refused(Conflict, self.selector.select_and_reserve, request, self.now)
            else:
                selection = self.selector.select_and_reserve(request, self.now).selection
                assert (selection.worker_id, selection.dp_rank) == held.rank
                assert selection.effective_prefill_tokens == held.prefill_tokens
                assert selection.block_size == workers[held.rank[0]].block_size
        elif allowed is not None and not workers.keys() & set(allowed):
            is_refused(NoEligibleRank, self.selector.select_and_reserve, request, self.now)
        else:
            selection = self.selector.select_and_reserve(request, self.now).selection
            rank = (selection.worker_id, selection.dp_rank)
            assert rank[1] < workers[rank[0]].dp_size
            assert allowed is None or rank[0] in allowed
            assert selection.effective_prefill_tokens == isl_tokens
            assert selection.selection_id == selection.reservation_id == name
            potential = self.model.potential_blocks(key, rank, hashes, isl_tokens)
            assert selection.potential_decode_blocks == potential
            self.model.reserve(name, key, rank, hashes, isl_tokens, isl_tokens, self.now)

    @rule(
        name=NAMES,
        field=ID_FIELDS,
        key=st.sampled_from(KEYS),
        worker_id=WORKER_IDS,
        dp_rank=st.integers(0, 3),
        hashes=HASH_LISTS,
        tokens=st.none() | st.integers(0, 7),
        repeat=st.booleans(),
    )
    def reserve(self, name, field, key, worker_id, dp_rank, hashes, tokens, repeat):
        request = ReservationRequest(
            worker_id=worker_id,
            token_ids=None,
            sequence_hashes=hashes,
            isl_tokens=7,
            dp_rank=dp_rank,
            effective_prefill_tokens=tokens,
            repeat=repeat,
            **{field: name},
            **scope(key),
        )
        workers = self.model.schedulable(key)
        if not workers:
            is_refused(NoWorkers, self.selector.reserve, request, self.now)
        elif repeat and name in self.model.held and (held := self.repeated(request)) is not None:
            answer = self.selector.reserve(request, self.now)
            assert (answer.worker_id, answer.dp_rank) == held.rank
        elif repeat and name in self.model.held:
            is_refused(Conflict, self.selector.reserve, request, self.now)
        elif worker_id not in workers or dp_rank >= workers[worker_id].dp_size:
            is_refused(NotFound, self.selector.reserve, request, self.now)
        elif name in self.model.held:
            is_refused(Conflict, self.selector.reserve, request, self.now)
        else:
            self.selector.reserve(request, self.now)
            booked = 7 if tokens is None else tokens
            self.model.reserve(name, key, (worker_id, dp_rank), hashes, booked, 7, self.now)

    def repeated(self, request):
        key, hashes = (request.model_name, request.tenant_id), request.sequence_hashes
        name = request.booking_id
        return self.model.repeated(name, key, hashes, request.isl_tokens, self.now)

    @rule(name=NAMES)
    def prefill_complete(self, name):
        if self.lifecycle(name, self.selector.complete_prefill, name, self.now):
            self.model.held[name].prefill_tokens = 0

    @rule(name=NAMES, fraction=st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0]))
    def output_block(self, name, fraction):
        if self.lifecycle(name, self.selector.add_output_block, name, fraction, self.now):
            self.model.output_block(name, fraction)

    @rule(name=NAMES)
    def renew(self, name):
        self.lifecycle(name, self.selector.renew_reservation, name, self.now)

    @rule(name=NAMES)
    def free(self, name):
        if self.lifecycle(name, self.selector.free_reservation, name, self.now):
            self.model.free(name)

    @rule(seconds=st.floats(0, 2 * TTL_S))
    def time_passes(self, seconds):
        self.now += seconds
        ended = set(ticked(self.selector, self.now))
        assert ended == set(self.model.expire(self.now))

    def lifecycle(self, name, verb, *arguments):
        if name not in self.model.held:
            is_refused(NotFound, verb, *arguments)
            return False
        verb(*arguments)
        self.model.held[name].renewed_at = self.now
        return True

    @invariant()
    def loads_agree(self):
        got = {
            (p.model_name, p.tenant_id, row.worker_id, row.dp_rank): (
                row.potential_prefill_tokens,
                row.potential_decode_blocks,
                row.active_requests,
            )
            for p in self.selector.inspection.partition_loads()
            for row in p.loads
        }
        assert got == self.model.loads()

    @invariant()
    def reservations_agree(self):
        rows = self.selector.inspection.list_reservations(
            ReservationFilter(), self.now
        ).reservations
        assert {
            row.reservation_id: (row.worker_id, row.dp_rank, row.prefill_tokens, row.output_blocks)
            for row in rows
        } == {
            name: (*held.rank, held.prefill_tokens, len(held.output))
            for name, held in self.model.held.items()
        }

    @invariant()
    def nothing_is_kept_of_removed_workers(self):
        schedulable = {w.key for w in self.model.workers.values() if w.lifecycle == "schedulable"}
        assert set(self.selector.fleet.partitions) == schedulable
        assert not self.selector.fleet.leaving
        for writer in self.selector.fleet.take_changes().retired:
            writer.close()
        self.selector.check_invariants()


TestSelectorMatchesModel = explored(SelectorMatchesModel)
