"""Tests of the work per verb: few records where few suffice, and a bounded part in a turn."""

from functools import partial
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from indexer import zmq_endpoints
from indexer.index import prefix_index
from indexer.index.prefix_index import PrefixIndex
from indexer.index.slot_writer import SlotWriter
from select_service.base.errors import CapacityExceeded
from select_service.core.admission import admission_report, engine_readings, worker_admission
from select_service.core.load.ledger import MANY_BLOCKS
from select_service.core.registry.fleet import fleet as fleets
from select_service.core.selector_builder import SelectorConfig, build_selector
from select_service.core.views import rank_views as ranks_view
from select_service.core.views import state_report
from select_service.core.views.registration_hints import RANKS_MAX
from select_service.core.workers import worker_catalog as catalog
from select_service.core.workers.engine_load import EngineReading
from select_service.core.workers.taint_bits import TaintBits
from select_service.schemas.admission import BusyThresholdChange
from select_service.schemas.common import RANKS_PER_WORKER_MAX
from select_service.schemas.workers import WorkerPatch
from tests.builders import a_reservation, a_selector, a_worker
from tests.builders.selector_scenes import KEY
from tests.builders.steps import lines_of, longest_step, result_of

METRICS = "http://10.0.0.1:8000/metrics"
READING = EngineReading(0.5, 0, 0)


def a_fleet_of(workers, **fields):
    selector = a_selector()
    for worker_id in range(workers):
        selector.register_worker(a_worker(worker_id, metrics_endpoint=METRICS, **fields))
    return selector


def read_engines(selector, now):
    for worker_id in selector.engine_readings.workers_to_read():
        selector.engine_readings.accept_readings(
            selector.engine_readings.find_target(worker_id), {0: READING}, now
        )


def usage_of(selector, worker_id):
    partition = selector.fleet.partitions[KEY]
    (slot,) = partition.table.slots_of(worker_id)
    return partition.table.columns.kv_usage[slot]


def test_verbs_that_need_few_records_do_not_look_at_the_catalog():
    costs = []
    for workers in (3, 300):
        selector = a_fleet_of(workers)
        read_engines(selector, 0.0)
        change = BusyThresholdChange(model="m", active_decode_blocks_threshold=0.9)
        verbs = {
            "thresholds": selector.list_thresholds,
            "set": lambda s=selector, c=change: s.set_thresholds(c),
            "admission": selector.get_admission_state,
            "target": lambda s=selector: s.engine_readings.find_target(1),
            "engines": lambda s=selector: s.engine_readings.expire_stale(1.0),
            "tick": lambda s=selector: s.gate.run_every_second(1.0),
        }
        costs.append({name: lines_of(verb) for name, verb in verbs.items()})
    few, many = costs
    assert few == many


def test_stale_readings_of_many_engines_are_dropped_a_budget_per_turn(monkeypatch):
    monkeypatch.setattr(engine_readings, "STALE_PER_TURN_MAX", 4)
    selector = a_fleet_of(10)
    read_engines(selector, 0.0)
    selector.engine_readings.accept_readings(
        selector.engine_readings.find_target(0), {0: READING}, 1.0
    )
    stale_s = selector.gate.busy_check.engines.stale_s
    assert not selector.engine_readings.expire_stale(stale_s - 0.001)
    believed = []
    while selector.engine_readings.expire_stale(stale_s):
        selector.check_invariants()
        believed.append(sum(usage_of(selector, w) == 0.5 for w in range(10)))
    assert believed == [6, 2]
    assert [usage_of(selector, w) == 0.5 for w in range(10)] == [True] + [False] * 9


def test_a_changed_worker_keeps_its_readings_unless_its_metrics_endpoint_changes():
    selector = a_fleet_of(1)
    read_engines(selector, 0.0)
    selector.register_worker(a_worker(0, metrics_endpoint=METRICS, model_name="other"))
    selector.register_worker(a_worker(0, metrics_endpoint=METRICS))
    assert usage_of(selector, 0) == 0.5
    selector.register_worker(a_worker(0, metrics_endpoint=METRICS + "2"))
    assert usage_of(selector, 0) != 0.5
    selector.check_invariants()


def test_models_are_known_while_there_is_a_record_of_them():
    selector = a_selector()
    selector.register_worker(a_worker(1))
    selector.register_worker(a_worker(2, model_name="other"))
    selector.register_worker(a_worker(2, model_name="third"))
    assert set(selector.fleet.catalog.models) == {"m", "third"}
    selector.delete_worker(1, 0.0)
    assert set(selector.fleet.catalog.models) == {"m", "third"}
    selector.check_invariants()


def test_recovered_blocks_are_handed_out_some_ranks_a_turn(monkeypatch):
    monkeypatch.setattr(fleets, "CLAIMS_PER_TURN_MAX", 2)
    selector = a_fleet_of(5)
    selector.register_worker(a_worker(9, model_name="other"))
    monkeypatch.setattr(selector.fleet.recovered_blocks, "may_have_blocks", lambda key: key == KEY)
    assert sum(1 for _ in selector.fleet.claim_recovered_blocks()) == 3


def test_taints_cost_once_per_worker_and_not_per_rank():
    def cost_of(ranks, taints):
        given = a_worker(1, data_parallel_size=ranks, taints=[f"t{n}" for n in range(taints)])
        selector = a_selector()
        selector.register_worker(a_worker(2))
        return lines_of(lambda: selector.register_worker(given))

    few, many = (cost_of(ranks, 100) - cost_of(ranks, 0) for ranks in (2, 64))
    assert many == few


def test_a_worker_without_memory_for_its_taints_changes_nothing(monkeypatch):
    selector = a_selector()
    selector.register_worker(a_worker(1, taints=["a"]))
    real, left = TaintBits._add_name, [2]

    def add(names, name, number):
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError
        real(names, name, number)

    with monkeypatch.context() as patch:
        patch.setattr(TaintBits, "_add_name", add)
        for worker_id in (1, 2):
            left[0] = 2
            with pytest.raises(CapacityExceeded):
                selector.register_worker(a_worker(worker_id, taints=["b", "c", "d"]))
            selector.check_invariants()
    assert selector.register_worker(a_worker(2, taints=["b", "c", "d"])).lifecycle == "schedulable"
    selector.delete_worker(1, 0.0)
    selector.check_invariants()


def a_wide_fleet(partitions, ranks):
    """Return a selector of this many partitions with one rank, and one with many ranks."""
    selector = a_selector()
    for number in range(partitions):
        selector.register_worker(
            a_worker(number, model_name=f"m{number}", metrics_endpoint=METRICS)
        )
    selector.register_worker(a_worker(9999, data_parallel_size=ranks))
    return selector


def report_of(selector):
    parts = selector.fleet, selector.ledger, selector.replay.pending
    return state_report.build_state_report(*parts, 8)


def test_loads_and_metrics_are_made_in_steps_that_do_not_grow_with_the_fleet(monkeypatch):
    monkeypatch.setattr(ranks_view, "ROWS_PER_STEP", 8)
    monkeypatch.setattr(admission_report, "RANKS_PER_STEP", 8)
    costs = []
    for partitions, ranks in ((3, 16), (100, 160)):
        selector = a_wide_fleet(partitions, ranks)
        selector.set_thresholds(BusyThresholdChange(model="m1", active_decode_blocks_threshold=1.0))
        read_engines(selector, 0.0)
        reporting = admission_report.admission_report
        steps = {
            "loads": selector.inspection.partition_loads(),
            "report": report_of(selector),
            "admission": reporting(selector.gate, selector.fleet.partitions, 0.0),
        }
        costs.append({name: longest_step(found) for name, found in steps.items()})
    few, many = costs
    # Names of partitions are collected and sorted at once: a line or two for each of 97 more.
    assert all(many[name] <= few[name] + 3 * 97 for name in few), costs


def test_a_partition_that_leaves_while_others_are_shown_is_left_out():
    selector = a_wide_fleet(3, 1)
    loads = selector.inspection.partition_loads()
    reporting = report_of(selector)
    assert next(loads).model_name == "m"
    next(reporting)
    selector.delete_worker(1, 0.0)
    assert [view.model_name for view in loads] == ["m0", "m2"]
    assert [p.model_name for p in result_of(reporting).partitions] == ["m0", "m2", "m"]


def test_a_worker_of_many_ranks_is_shown_in_steps_that_do_not_grow_with_it(monkeypatch):
    monkeypatch.setattr(worker_admission, "RANKS_PER_STEP", 4)
    costs = []
    for ranks in (8, 64):
        selector = a_selector()
        selector.register_worker(a_worker(1, data_parallel_size=ranks, metrics_endpoint=METRICS))
        scene, worker = selector.admission_scene(KEY, 0.0), selector.get_worker(1)
        steps = worker_admission.make_worker_admission(scene, worker)
        next(steps)
        costs.append(lines_of(lambda s=steps: next(s)))
        assert len(result_of(steps).ranks) == ranks
    assert costs[0] == costs[1]


def test_endpoints_of_a_worker_of_many_ranks_are_looked_at_in_turns_and_then_known(monkeypatch):
    looked_at = []
    monkeypatch.setattr(zmq_endpoints, "_tcp_fault", lambda address: looked_at.append(address))
    zmq_endpoints._cached_fault.cache_clear()
    ends = {rank: f"tcp://engine:{5000 + rank}" for rank in range(RANKS_PER_WORKER_MAX)}
    given = a_worker(1, data_parallel_size=len(ends), kv_events_endpoints=ends)
    selector = a_selector(use_kv_events=True)
    making_room = selector.fleet.prepare_room(selector.fleet.catalog.preview_registration(given))
    steps = [0, *(len(looked_at) for _ in making_room), len(looked_at)]
    assert max(after - before for before, after in pairwise(steps)) <= catalog.RANKS_PER_STEP
    assert len(looked_at) == len(ends)
    assert selector.register_worker(given).lifecycle == "schedulable"
    assert len(looked_at) == len(ends)
    zmq_endpoints._cached_fault.cache_clear()


def test_a_rank_of_a_worker_with_many_costs_a_few_lines_where_it_registers_or_changes():
    """Check the lines per rank in a turn of the event loop, without operations on whole arrays."""
    costs = []
    for ranks in (RANKS_MAX, RANKS_PER_WORKER_MAX):
        ends = {rank: f"tcp://engine:{5000 + rank}" for rank in range(ranks)}
        given = a_worker(2, data_parallel_size=ranks, kv_events_endpoints=ends)
        selector = a_selector(use_kv_events=True)
        selector.register_worker(a_worker(1, kv_events_endpoint="tcp://other:5000"))
        verbs = {
            "register": lambda s=selector, g=given: s.register_worker(g),
            "patch": lambda s=selector: s.patch_worker(2, WorkerPatch(taints=["x"])),
        }
        costs.append({name: lines_of(verb) for name, verb in verbs.items()})
    few, many = costs
    more = RANKS_PER_WORKER_MAX - RANKS_MAX
    assert many["register"] - few["register"] <= 9 * more
    assert many["patch"] - few["patch"] <= 5 * more


def test_room_for_many_blocks_is_prepared_in_turns_that_request_the_next():
    asked = []
    new = partial(PrefixIndex, 4096)
    selector = build_selector(
        SelectorConfig(use_kv_events=False), new, rng=Random(0), wake=lambda: asked.append(1)
    )
    selector.register_worker(a_worker(1))
    selector.reserve(a_reservation("few", tokens=4 * 8), 0.0)
    assert not asked
    selector.reserve(a_reservation("many", tokens=4 * MANY_BLOCKS), 0.0)
    turns = 0
    while asked:
        asked.clear()
        selector.run_pending(0.0)
        turns += 1
    assert turns > 3
    selector.check_invariants()


def test_all_users_of_a_rank_share_one_object():
    selector = a_selector()
    selector.register_worker(a_worker(1, data_parallel_size=2))
    worker = selector.fleet.catalog.get_worker(1)
    table = selector.fleet.partitions[worker.key].table
    for rank in worker.list_ranks():
        assert table.row_at(table.find_slot(rank)).rank is rank
        assert next(known for known in table.sorted_ranks() if known == rank) is rank


def test_the_writers_of_many_ranks_are_made_in_turns_before_the_worker_is_put(monkeypatch):
    made, real = [], SlotWriter.__init__

    def init(writer, *given):
        made.append(writer)
        real(writer, *given)

    monkeypatch.setattr(SlotWriter, "__init__", init)

    def prepared(worker):
        """Return the writers created in each step before a change, and in the change."""
        steps = [0, *(len(made) for _ in selector.fleet.prepare_room(worker)), len(made)]
        return [after - before for before, after in pairwise(steps)]

    ends = {rank: f"tcp://engine:{5000 + rank}" for rank in range(RANKS_PER_WORKER_MAX)}
    given = a_worker(2, data_parallel_size=len(ends), kv_events_endpoints=ends)
    moved = {rank: f"tcp://other:{5000 + rank}" for rank in ends} | {0: ends[0]}
    patch = WorkerPatch(kv_events_endpoints=moved)
    selector = a_selector(use_kv_events=True)
    selector.register_worker(a_worker(1, kv_events_endpoint="tcp://other:4000"))
    catalog = selector.fleet.catalog
    for worker_of, verb, count in (
        (
            lambda: catalog.preview_registration(given),
            lambda: selector.register_worker(given),
            len(ends),
        ),
        (
            lambda: catalog.preview_patch(2, patch),
            lambda: selector.patch_worker(2, patch),
            len(ends) - 1,
        ),
    ):
        made.clear()
        steps = prepared(worker_of())
        assert max(steps) <= prefix_index.WRITERS_PER_STEP
        assert sum(steps) == count
        verb()
        assert len(made) == count
    selector.check_invariants()


def test_writers_that_were_made_ahead_in_vain_serve_the_next_worker():
    selector = a_selector()
    selector.register_worker(a_worker(1))
    fleet, wide = selector.fleet, a_worker(2, data_parallel_size=RANKS_PER_WORKER_MAX)
    for _ in range(2):
        for _ in fleet.prepare_room(fleet.catalog.preview_registration(wide)):
            pass
    (partition,) = fleet.partitions.values()
    assert len(partition.index._spare) == RANKS_PER_WORKER_MAX
    selector.register_worker(wide)
    assert not partition.index._spare
    selector.check_invariants()


@pytest.mark.parametrize("block_size", [4, 8])
def test_the_first_worker_of_a_partition_has_its_writers_made_ahead(monkeypatch, block_size):
    made = []
    monkeypatch.setattr(prefix_index, "SlotWriter", lambda *_: made.append(1) or SlotWriter(*_))
    selector = a_selector()
    fleet, wide = selector.fleet, a_worker(2, data_parallel_size=RANKS_PER_WORKER_MAX)
    steps = [
        0,
        *(len(made) for _ in fleet.prepare_room(fleet.catalog.preview_registration(wide))),
        len(made),
    ]
    assert max(np.diff(steps)) <= prefix_index.WRITERS_PER_STEP
    assert not fleet.partitions
    made.clear()
    selector.register_worker(
        a_worker(2, data_parallel_size=RANKS_PER_WORKER_MAX, block_size=block_size)
    )
    assert len(made) == (0 if block_size == 4 else RANKS_PER_WORKER_MAX)
    assert fleet._draft is None
    selector.check_invariants()
