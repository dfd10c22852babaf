"""Tests of busy thresholds: busy ranks, rejected requests, and their display by GET /workers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.base.errors import CapacityExceeded, NotFound, Overloaded
from select_service.core.admission import busy_kernels
from select_service.core.admission.busy_check import BUSY_TEXT, RankLoadLimits
from select_service.core.admission.busy_thresholds import BusyThresholds, ThresholdTable
from select_service.core.admission.worker_admission import make_worker_admission
from select_service.core.array_types import store_pointer
from select_service.core.decision_maker import PlacementDecision
from select_service.core.load.compiled import load_layout as layout
from select_service.core.workers import rank_table_layout
from select_service.schemas.admission import BusyThresholdChange
from select_service.schemas.prompts import PromptQuery
from tests.builders import a_patch
from tests.builders.steps import result_of
from tests.core.admission.scenes import METRICS, Scene, hashes, pinned, store, where


def admissions_of(scene, now):
    found = {}
    for worker in scene.selector.list_workers():
        if worker.is_schedulable:
            at = scene.selector.admission_scene(worker.key, now)
            found[worker.worker_id] = result_of(make_worker_admission(at, worker))
    return {worker_id: admission for worker_id, admission in found.items() if admission}


def passes(outcome):
    assert isinstance(outcome, PlacementDecision | Overloaded), outcome
    return isinstance(outcome, PlacementDecision)


def test_a_rank_is_busy_above_the_prefill_threshold_not_at_it():
    scene = Scene(prefill=16)
    scene.fill(1, 16)
    assert passes(scene.look("at it"))
    scene.fill(1, 1, name="one more")
    assert not passes(scene.look("above it"))


@pytest.mark.parametrize(("blocks", "free"), [(29, True), (30, False)])
def test_a_rank_is_busy_above_its_part_of_the_cache_not_at_it(blocks, free):
    scene = Scene(decode=0.29, total_kv_blocks=100)
    scene.fill(1, 4 * blocks)
    assert passes(scene.look("a")) == free


def test_a_threshold_of_zero_lets_an_idle_rank_work():
    scene = Scene(decode=0.0, prefill=0, total_kv_blocks=100)
    assert passes(scene.ask("a"))
    assert not passes(scene.ask("b"))


def test_faded_blocks_count_as_the_rounded_sum_that_loads_shows():
    scene = Scene(decode=0.5, total_kv_blocks=4)
    scene.fill(1, 4 * 3, name="a")
    assert not passes(scene.look("full"))
    scene.selector.add_output_block("a", 0.5, scene.now)
    assert next(scene.selector.inspection.partition_loads()).loads[0].potential_decode_blocks == 2
    assert passes(scene.look("faded"))


def test_everything_passes_while_no_threshold_is_set():
    scene = Scene(total_kv_blocks=1)
    scene.fill(1, 4000)
    assert passes(scene.look("a"))


def test_a_busy_rank_is_no_candidate_even_when_it_has_the_whole_prompt_cached():
    scene = Scene(prefill=0, workers=2)
    store(scene, 1, [1, 2])
    assert where(scene.look("a", **hashes([1, 2], 8))) == (1, 0)
    scene.fill(1)
    assert where(scene.look("b", **hashes([1, 2], 8))) == (2, 0)


def test_a_rejected_client_gets_a_retry_after():
    scene = Scene(prefill=0)
    scene.fill(1)
    error = scene.look("a")
    assert (error.status, error.code, str(error)) == (503, "service_unavailable", BUSY_TEXT)
    assert BUSY_TEXT == (
        "Service temporarily unavailable: All workers are busy, please retry later"
    )
    assert error.retry_after_s >= 1
    assert scene.gate.tally.outcome_counts()["busy"] == 1


def test_a_refused_request_changes_nothing():
    scene = Scene(prefill=0)
    scene.fill(1)
    before = list(scene.selector.inspection.partition_loads())
    scene.ask("a")
    assert list(scene.selector.inspection.partition_loads()) == before
    scene.free("load1")
    assert passes(scene.ask("a"))


def test_only_the_candidates_of_a_request_are_judged():
    scene = Scene(prefill=0, workers=2)
    scene.fill(1)
    assert not passes(scene.look("a", allowed_worker_ids=[1]))
    assert passes(scene.look("b", allowed_worker_ids=[1, 2]))


def test_a_worker_is_busy_only_when_all_its_ranks_are():
    scene = Scene(prefill=0, data_parallel_size=2)
    scene.fill(1)
    assert scene.gate.busy_check.count_busy(scene.partition) == (1, 0)
    scene.fill(1, dp_rank=1, name="other")
    assert scene.gate.busy_check.count_busy(scene.partition) == (2, 1)


def test_a_pinned_request_is_judged_for_its_worker():
    scene = Scene(prefill=0, data_parallel_size=2)
    scene.fill(1)
    assert where(scene.look("rank busy, worker not", **pinned(1, 0))) == (1, 0)
    scene.fill(1, dp_rank=1, name="other")
    assert not passes(scene.look("worker busy", **pinned(1, 0)))


def test_reservations_and_questions_are_never_judged():
    scene = Scene(prefill=0, decode=0.0, total_kv_blocks=1)
    scene.fill(1)
    assert not passes(scene.look("a"))
    scene.fill(1, name="one more")
    query = PromptQuery(model_name="m", token_ids=list(range(8)))
    assert next(scene.selector.inspection.potential_loads(query)).active_requests == 2
    assert len(list(scene.selector.inspection.overlap_scores(query)[1])) == 1


def test_null_clears_a_threshold_and_absent_ones_stay():
    scene = Scene(decode=0.5, prefill=10)
    view = scene.set_thresholds(prefill=None)
    assert view.active_decode_blocks_threshold == 0.5
    assert view.active_prefill_tokens_threshold is None
    assert scene.set_thresholds(decode=0.9).active_prefill_tokens_threshold is None
    view = scene.set_thresholds(decode=None)
    assert scene.selector.list_thresholds().thresholds == [view]


def test_thresholds_belong_to_a_model():
    scene = Scene(workers=1)
    scene.register(2, model_name="n")
    scene.set_thresholds("n", prefill=0)
    scene.fill(1)
    scene.fill(2, model_name="n")
    assert passes(scene.look("a"))
    assert not passes(scene.look("b", model_name="n"))
    assert [view.model for view in scene.selector.list_thresholds().thresholds] == ["n"]


def test_the_thresholds_of_the_process_are_listed_for_every_model_with_workers():
    scene = Scene(prefill=5)
    scene.register(2, model_name="n")
    views = scene.selector.list_thresholds().thresholds
    assert [(v.model, v.active_prefill_tokens_threshold) for v in views] == [("m", 5), ("n", 5)]


def test_a_model_that_no_worker_serves_has_no_thresholds():
    scene = Scene()
    with pytest.raises(NotFound, match="model `x` not found"):
        scene.set_thresholds("x", prefill=5)
    assert scene.selector.list_thresholds().thresholds == []


def test_the_table_of_thresholds_has_an_end(monkeypatch):
    monkeypatch.setattr("select_service.core.admission.busy_thresholds.MODELS_MAX", 1)
    table = ThresholdTable(BusyThresholds())
    table.change_thresholds(BusyThresholdChange(model="a", active_prefill_tokens_threshold=1))
    with pytest.raises(CapacityExceeded):
        table.change_thresholds(BusyThresholdChange(model="b", active_prefill_tokens_threshold=1))
    table.change_thresholds(BusyThresholdChange(model="a", active_prefill_tokens_threshold=None))
    assert table.is_off


def test_the_engines_cache_usage_counts_while_it_is_fresh():
    scene = Scene(decode=0.5, total_kv_blocks=100, metrics_endpoint=METRICS)
    scene.report_usage(0.6)
    assert not passes(scene.look("a"))
    scene.report_usage(0.5)
    assert passes(scene.look("b"))
    scene.fill(1, 400)
    assert passes(scene.look("our own count says 100 of 100"))


def test_each_engine_counts_for_its_own_worker_alone():
    scene = Scene(decode=0.5, workers=2, metrics_endpoint=METRICS)
    scene.report_usage(0.9, worker_id=1)
    scene.tick(3.0)
    scene.report_usage(0.8, worker_id=2)
    assert not passes(scene.look("a"))
    scene.report_usage(0.1, worker_id=2)
    assert not passes(scene.look("b", allowed_worker_ids=[1]))
    assert passes(scene.look("c", allowed_worker_ids=[2]))
    scene.tick(2.0)
    assert passes(scene.look("the first has said nothing for 5 s", allowed_worker_ids=[1]))


def test_stale_engine_readings_do_not_count():
    scene = Scene(decode=0.5, total_kv_blocks=100, metrics_endpoint=METRICS)
    scene.report_usage(0.9)
    scene.tick(4.999)
    assert not passes(scene.look("a"))
    scene.tick(0.001)
    assert passes(scene.look("b"))
    rank = admissions_of(scene, scene.now)[1].ranks[0]
    assert (rank.source, rank.kv_usage, rank.engine.fresh) == ("accounting", 0.0, False)
    assert (rank.engine.kv_usage, rank.engine.age_s) == (0.9, 5.0)


def test_prefill_tokens_are_always_our_own_count():
    scene = Scene(prefill=0, metrics_endpoint=METRICS)
    scene.report_usage(0.0)
    scene.fill(1)
    assert not passes(scene.look("a"))


def test_an_engine_without_a_number_leaves_the_count_to_us():
    scene = Scene(decode=0.5, total_kv_blocks=4, metrics_endpoint=METRICS)
    scene.report_usage(None)
    scene.fill(1, 16)
    assert not passes(scene.look("a"))


def test_a_reading_from_a_former_address_is_ignored():
    scene = Scene(decode=0.5, metrics_endpoint=METRICS)
    scene.report_usage(0.9, url="http://elsewhere:1/metrics")
    scene.report_usage(0.9, worker_id=7)
    scene.report_usage(0.9, dp_rank=5)
    assert passes(scene.look("a"))
    assert admissions_of(scene, scene.now)[1].ranks[0].engine is None


def test_an_engine_that_moved_is_forgotten_at_once():
    scene = Scene(decode=0.5, metrics_endpoint=METRICS)
    scene.report_usage(0.9)
    scene.selector.patch_worker(1, a_patch(metrics_endpoint="http://w1:9/metrics"))
    assert passes(scene.look("a"))
    assert admissions_of(scene, scene.now)[1].ranks[0].engine is None


def test_a_returning_worker_is_not_judged_by_former_readings():
    scene = Scene(decode=0.5, workers=2, metrics_endpoint=METRICS)
    scene.report_usage(0.9)
    scene.selector.delete_worker(1, 0.0)
    scene.register(1, metrics_endpoint=METRICS)
    assert passes(scene.look("a", allowed_worker_ids=[1]))


def test_a_worker_that_nothing_judges_has_no_admission():
    scene = Scene()
    assert admissions_of(scene, 0.0).get(1) is None
    scene.register(2, endpoint="")
    scene.set_thresholds(prefill=1)
    assert admissions_of(scene, 0.0).get(2) is None


def test_a_worker_shows_its_load_and_the_thresholds():
    scene = Scene(prefill=10, decode=0.5, total_kv_blocks=8, data_parallel_size=2)
    scene.fill(1, 12, dp_rank=1)
    shown = admissions_of(scene, 0.0).get(1)
    assert (shown.busy, shown.not_judged, shown.engine_error) == (False, [], None)
    idle, loaded = shown.ranks[0], shown.ranks[1]
    assert (idle.busy, idle.active_prefill_tokens, idle.kv_usage) == (False, 0, 0.0)
    assert (loaded.busy, loaded.active_prefill_tokens, loaded.kv_usage) == (True, 12, 3 / 8)
    assert (loaded.source, loaded.engine) == ("accounting", None)


def test_a_worker_shows_thresholds_that_do_not_apply():
    scene = Scene(decode=0.0)
    scene.fill(1)
    assert passes(scene.look("a"))
    shown = admissions_of(scene, 0.0).get(1)
    assert shown.not_judged == [
        "active_decode_blocks_threshold: total_kv_blocks is unknown; declare it"
    ]
    assert (shown.busy, shown.ranks[0].kv_usage) == (False, None)


def test_a_worker_without_capacity_is_judged_after_an_engine_reading():
    scene = Scene(decode=0.5, metrics_endpoint=METRICS)
    scene.report_usage(0.75)
    shown = admissions_of(scene, 2.0).get(1)
    assert (shown.busy, shown.not_judged) == (True, [])
    rank = shown.ranks[0]
    assert (rank.source, rank.kv_usage, rank.engine.age_s) == ("engine", 0.75, 2.0)
    assert (rank.engine.requests_waiting, rank.engine.requests_running) == (3, 4)


def test_an_engine_that_does_not_answer_is_shown_until_it_does():
    scene = Scene(metrics_endpoint=METRICS)
    target = scene.selector.engine_readings.find_target(1)
    assert target == (1, METRICS, (0,))
    scene.selector.engine_readings.record_failure(target, "x" * 1000, 1.0)
    assert admissions_of(scene, 1.0)[1].engine_error == "x" * 300
    scene.report_usage(0.1)
    assert admissions_of(scene, 1.0)[1].engine_error is None


def test_only_schedulable_workers_with_a_metrics_endpoint_are_scraped():
    scene = Scene(workers=2, metrics_endpoint=METRICS, data_parallel_size=2)
    scene.register(3)
    scene.register(4, metrics_endpoint=METRICS, endpoint="")
    scene.selector.delete_worker(2, 0.0)
    asked = map(
        scene.selector.engine_readings.find_target, scene.selector.engine_readings.workers_to_read()
    )
    assert [target for target in asked if target] == [(1, METRICS, (0, 1))]
    assert not any(map(scene.selector.engine_readings.find_target, (2, 3, 4, 5)))


LIMITS = st.sampled_from([0.0, 0.29, 0.5, 1.0, np.inf])
TOKENS = st.sampled_from([0.0, 5.0, 10.0, np.inf])
SLOTS = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(0, 12),
        st.integers(0, 100),
        st.sampled_from([0.0, 0.25, 0.5]),
        st.sampled_from([1.0, 58.0, 100.0, np.inf]),
        st.sampled_from([np.nan, 0.0, 0.29, 0.5, 1.0]),
        st.sampled_from([4.0, 10.0, np.inf]),
    ),
    min_size=1,
    max_size=70,
)


def kernel_arrays(slots):
    """Return (candidates, header of the load, header of the ranks, arrays to keep alive)."""
    columns = [np.array(column) for column in zip(*slots, strict=True)]
    candidates, tokens, blocks, fractions, kv_blocks, kv_usage, batch_tokens = columns
    totals = np.zeros((len(slots), layout.N_TOTALS), np.int64)
    totals[:, layout.PREFILL_TOKENS] = tokens
    totals[:, layout.WHOLE_BLOCKS] = blocks
    totals[:, layout.FRACTIONAL_BLOCKS] = fractions > 0.0
    load = np.zeros(layout.HEADER_LENGTH, np.int64)
    store_pointer(load, layout.TOTALS, totals)
    store_pointer(load, layout.FRACTIONS, fractions)
    ranks = np.zeros(rank_table_layout.HEADER_LENGTH, np.int64)
    store_pointer(ranks, rank_table_layout.KV_BLOCKS, kv_blocks)
    store_pointer(ranks, rank_table_layout.KV_USAGE, kv_usage)
    store_pointer(ranks, rank_table_layout.BATCH_TOKENS, batch_tokens)
    return candidates.astype(np.bool_), load, ranks, (totals, *columns)


@given(slots=SLOTS, decode_max=LIMITS, prefill_max=TOKENS, room_max=TOKENS, batches_max=LIMITS)
def test_free_ranks_agree_with_the_formulas(slots, decode_max, prefill_max, room_max, batches_max):
    out = np.empty(len(slots), np.bool_)
    *arrays, _alive = kernel_arrays(slots)
    limits = RankLoadLimits(decode_max, prefill_max, room_max, batches_max)
    n_free = busy_kernels.fill_free_ranks(*arrays, limits, out)
    expected = []
    for candidate, tokens, blocks, fraction, capacity, usage, batch in slots:
        rounded = int(blocks + fraction + 0.5)
        used = rounded / capacity if np.isnan(usage) else usage
        busy = used > decode_max or tokens > prefill_max
        loaded = tokens > room_max or (np.isfinite(batch) and tokens > batches_max * batch)
        expected.append(candidate and not busy and not loaded)
    assert out.tolist() == expected
    assert n_free == sum(expected)


def test_an_engine_that_answers_without_its_cache_usage_is_shown_as_such():
    scene = Scene(decode=0.5, total_kv_blocks=8, metrics_endpoint=METRICS)
    scene.report_usage(None)
    shown = admissions_of(scene, 1.0)[1]
    assert shown.engine_error == "kv_usage of dp_rank 0 is missing or invalid"
    assert shown.ranks[0].source == "accounting"
