"""Tests of the hints of other workers in answers to bookings."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.hashing.block_hashing import compute_block_hashes
from indexer.index import prefix_names
from indexer.tiers import Tier
from select_service.core import kv_hints
from select_service.core.identity import PartitionKey, Rank
from select_service.schemas.admission import BusyThresholdChange
from select_service.schemas.reservations import ReservationRequest
from tests.builders import a_patch, a_reservation, a_select, a_select_and_reserve, a_selector
from tests.builders import a_worker as a_plain_worker

KEY = PartitionKey("m", "default")
TOKENS = 20
PATH = compute_block_hashes(np.arange(TOKENS, dtype=np.uint32), 4)
BLOCKS = len(PATH)


def a_worker(worker_id, kind="agg", endpoint="tcp://w{}:5600", **fields):
    ranks = range(fields.get("data_parallel_size", 1))
    endpoints = {str(rank): endpoint.format(worker_id * 10 + rank) for rank in ranks}
    if endpoint:
        fields["router_hint_source_control_endpoints"] = endpoints
    return a_plain_worker(worker_id, router_hint_worker_type=kind, **fields)


def engine_hashes(worker_id, first=2**63):
    """Return hashes of no other worker, above the signed range."""
    return np.arange(first + 100 * worker_id, first + 100 * worker_id + BLOCKS, dtype=np.uint64)


def hold(selector, worker_id, blocks, names=None, dp_rank=0, tier=Tier.GPU):
    writer = selector.fleet.partitions[KEY].table.writer_of(Rank(worker_id, dp_rank))
    names = engine_hashes(worker_id) if names is None else names
    writer.store(tier, None, PATH[:blocks], names[:blocks])


def book(selector, worker_id, booking_id="a", dp_rank=0):
    pinned = {"worker_id": worker_id, "dp_rank": dp_rank}
    request = a_select_and_reserve(TOKENS, pinned_worker=pinned, reservation_id=booking_id)
    hint = selector.select_and_reserve(request, 0.0).selection.kv_hint
    selector.free_reservation(booking_id, 0.0)
    return None if hint is msgspec.UNSET else hint


def source_of(hint):
    """Return (control endpoint, hashes) of a hint."""
    if hint is None:
        return None
    (action,) = hint.actions
    return action.payload.source_control_endpoint, action.payload.block_hashes


@pytest.fixture
def selector():
    selector = a_selector()
    for worker_id in (1, 2, 3):
        selector.register_worker(a_worker(worker_id))
    hold(selector, 1, 5)
    hold(selector, 2, 2)
    yield selector
    selector.check_invariants()


def test_a_booking_names_the_worker_with_the_longest_prefix(selector):
    hint = book(selector, 3, "turn-1")
    assert msgspec.to_builtins(hint) == {
        "protocol_version": "0.1",
        "message_id": "turn-1",
        "actions": [
            {
                "action_id": "a1",
                "action_type": "kv.fetch",
                "action_version": "1.0",
                "payload": {
                    "block_hashes": engine_hashes(1).tolist(),
                    "source_control_endpoint": "tcp://w10:5600",
                },
            }
        ],
    }
    assert source_of(book(selector, 2)) == ("tcp://w10:5600", engine_hashes(1).tolist())
    assert book(selector, 1) is None


def test_selections_have_no_hint_and_explicit_reservations_have_one(selector):
    pinned = {"worker_id": 3, "dp_rank": 0}
    chosen = selector.select(a_select(TOKENS, pinned_worker=pinned), 0.0).selection
    assert chosen.kv_hint is msgspec.UNSET
    answer = selector.reserve(a_reservation("b", 3, TOKENS), 0.0)
    assert answer.kv_hint.message_id == "b"
    assert source_of(answer.kv_hint) == ("tcp://w10:5600", engine_hashes(1).tolist())
    hashes = {"sequence_hashes": [1, 2], "isl_tokens": 8, "token_ids": None}
    assert selector.reserve(a_reservation("c", 3, **hashes), 0.0).kv_hint is msgspec.UNSET


def test_a_replayed_selection_has_the_hint_of_its_booking(selector):
    pinned = {"worker_id": 3, "dp_rank": 0}
    selector.select(a_select(TOKENS, pinned_worker=pinned, selection_id="r"), 0.0)
    hold(selector, 2, 5)
    selector.set_thresholds(
        BusyThresholdChange(model="m", active_prefill_tokens_threshold=TOKENS - 1)
    )
    selector.reserve(a_reservation("busy", 1, TOKENS), 0.0)
    replay = msgspec.convert({"model_name": "m", "selection_id": "r"}, ReservationRequest)
    hint = selector.reserve(replay, 1.0).kv_hint
    assert hint.message_id == "r"
    assert source_of(hint) == ("tcp://w20:5600", engine_hashes(2).tolist())


def test_other_types_and_workers_without_an_endpoint_are_no_sources(selector):
    selector.patch_worker(1, a_patch(router_hint_worker_type="prefill"))
    assert source_of(book(selector, 3)) == ("tcp://w20:5600", engine_hashes(2)[:2].tolist())
    selector.patch_worker(
        1, a_patch(router_hint_worker_type="agg", router_hint_source_control_endpoints={})
    )
    assert source_of(book(selector, 3))[0] == "tcp://w20:5600"
    selector.patch_worker(3, a_patch(router_hint_worker_type=""))
    assert book(selector, 3) is None
    selector.delete_worker(2, 0.0)
    assert book(selector, 1) is None


def test_a_busy_source_is_only_taken_without_another(selector):
    selector.set_thresholds(
        BusyThresholdChange(model="m", active_prefill_tokens_threshold=TOKENS - 1)
    )
    selector.reserve(a_reservation("busy", 1, TOKENS), 0.0)
    assert source_of(book(selector, 3))[0] == "tcp://w20:5600"
    selector.reserve(a_reservation("busy too", 2, TOKENS), 0.0)
    assert source_of(book(selector, 3))[0] == "tcp://w10:5600"


def test_blocks_of_other_tiers_do_not_count(selector):
    hold(selector, 3, 5, tier=Tier.CPU)
    hold(selector, 2, 5, tier=Tier.CPU)
    assert source_of(book(selector, 2))[0] == "tcp://w10:5600"
    assert len(source_of(book(selector, 3))[1]) == 5


def test_each_rank_has_its_own_endpoint_and_ranks_of_one_worker_send_each_other_nothing():
    selector = a_selector()
    selector.register_worker(a_worker(1, data_parallel_size=2))
    selector.register_worker(a_worker(2, data_parallel_size=2))
    hold(selector, 1, 3, dp_rank=1)
    assert book(selector, 1, dp_rank=0) is None
    assert source_of(book(selector, 2, dp_rank=1)) == (
        "tcp://w11:5600",
        engine_hashes(1)[:3].tolist(),
    )


def test_a_hint_is_bounded(selector, monkeypatch):
    monkeypatch.setattr(kv_hints, "HINT_BLOCKS_MAX", 3)
    assert source_of(book(selector, 3))[1] == engine_hashes(1)[:3].tolist()
    monkeypatch.setattr(kv_hints, "SOURCES_MAX", 0)
    assert book(selector, 3) is None


def test_own_hashes_in_a_long_table_are_not_searched(selector, monkeypatch):
    """Check that worker 1, first with its blocks, leaves only worker 2 with additional hashes."""
    monkeypatch.setattr(prefix_names, "RECORD_ROWS_MAX", 1)
    assert source_of(book(selector, 3))[0] == "tcp://w10:5600"
    selector.delete_worker(1, 0.0)
    assert book(selector, 3) is None
    assert book(selector, 2) is None
    outcomes = selector.fleet.partitions[KEY].hint_outcomes
    assert outcomes == {"given": 1, "unnamed": 1, "none": 1}


KINDS = st.sampled_from(["agg", "agg", "prefill", ""])
WORKERS = st.lists(
    st.tuples(KINDS, st.booleans(), st.integers(0, BLOCKS), st.booleans(), st.booleans()),
    min_size=1,
    max_size=6,
)


@given(workers=WORKERS, data=st.data())
def test_the_source_is_that_of_the_naive_rule(workers, data):
    """workers: type, whether an endpoint exists, blocks, whether busy, whether hashes are shared"""
    selector = a_selector()
    for worker_id, (kind, has_endpoint, blocks, _, shares) in enumerate(workers):
        endpoint = "tcp://w{}:5600" if has_endpoint else ""
        selector.register_worker(a_worker(worker_id, kind, endpoint))
        hold(selector, worker_id, blocks, engine_hashes(0) if shares else None)
    for worker_id, (_, _, _, is_busy, _) in enumerate(workers):
        if is_busy:
            selector.reserve(a_reservation(f"busy {worker_id}", worker_id, TOKENS), 0.0)
    chosen = data.draw(st.integers(0, len(workers) - 1))
    selector.set_thresholds(
        BusyThresholdChange(model="m", active_prefill_tokens_threshold=TOKENS - 1)
    )
    answer = selector.reserve(a_reservation("a", chosen, TOKENS), 0.0)
    found = None if answer.kv_hint is msgspec.UNSET else source_of(answer.kv_hint)
    own_kind, _, own_blocks, _, _ = workers[chosen]
    sources = [
        (is_busy, -blocks, worker_id, shares)
        for worker_id, (kind, has_endpoint, blocks, is_busy, shares) in enumerate(workers)
        if kind == own_kind != "" and has_endpoint and blocks > own_blocks and worker_id != chosen
    ]
    expected = None
    if sources:
        _, blocks, worker_id, shares = min(sources)
        names = engine_hashes(0 if shares else worker_id)[:-blocks]
        expected = f"tcp://w{worker_id * 10}:5600", names.tolist()
    assert found == expected
    selector.check_invariants()
