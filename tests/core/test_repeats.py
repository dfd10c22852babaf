"""Tests of repeated bookings: the same prompt gets the same booking, other prompts an error."""

import pytest

from select_service.base.errors import BadRequest, Conflict, NoEligibleRank, NoWorkers
from select_service.core.identity import Rank
from select_service.core.placement.router_config import RouterConfig
from select_service.core.replication.load_events import ReservationAdmitted
from select_service.core.selection_answers import (
    RETURNED_HASHES_MAX,
)
from tests.builders import a_reservation, a_select, a_select_and_reserve, a_selector, a_worker
from tests.builders.selector_scenes import KEY, load_of, store

OVERRIDES = [{}, {"assume_kv_reuse": False}, {"track_prefill_tokens": False}]


@pytest.fixture
def selector():
    selector = a_selector()
    selector.register_worker(a_worker(1))
    selector.register_worker(a_worker(2))
    return selector


def book(selector, now=0.0, **fields):
    return selector.select_and_reserve(a_select_and_reserve(**fields), now).selection


def all_loads(selector):
    return [load_of(selector, worker_id) for worker_id in (1, 2)]


@pytest.mark.parametrize("override", OVERRIDES)
def test_a_repeat_is_answered_with_the_booking(selector, override):
    wanted = {"reservation_id": "r", "tokens": 9, "router_config_override": override}
    first = book(selector, **wanted)
    loads = all_loads(selector)
    assert book(selector, **wanted, repeat=True) == first
    assert all_loads(selector) == loads


def test_a_repeat_is_answered_without_load_tracking_too():
    selector = a_selector(RouterConfig(track_active_blocks=False))
    selector.register_worker(a_worker(1))
    first = book(selector, reservation_id="r")
    assert book(selector, reservation_id="r", repeat=True) == first
    with pytest.raises(Conflict):
        book(selector, reservation_id="r", tokens=9, repeat=True)


def test_a_first_request_may_be_marked_as_a_repeat(selector):
    selection = book(selector, reservation_id="r", repeat=True)
    assert load_of(selector, selection.worker_id) == (8, 2, 1)
    assert book(selector, repeat=True).reservation_id != "r"


def test_without_repeat_the_id_is_in_use(selector):
    book(selector, reservation_id="r")
    for repeat in ({}, {"repeat": False}):
        with pytest.raises(Conflict, match="reservation r already exists"):
            book(selector, reservation_id="r", **repeat)


@pytest.mark.parametrize(
    "other",
    [
        {"tokens": 9},
        {"tokens": 12},
        {"cache_salt": "s"},
        {"lora_name": "l"},
        {"token_ids": [7] * 8},
        {"tenant_id": "t"},
    ],
)
def test_a_repeat_of_another_prompt_is_a_conflict(selector, other):
    selector.register_worker(a_worker(3, tenant_id="t"))
    first = book(selector, reservation_id="r")
    loads = all_loads(selector)
    with pytest.raises(Conflict, match=f"already exists .worker {first.worker_id} "):
        book(selector, reservation_id="r", repeat=True, **other)
    with pytest.raises(Conflict):
        selector.reserve(a_reservation("r", 1, **{"tokens": 8, **other}, repeat=True), 0.0)
    assert all_loads(selector) == loads


def test_a_repeat_has_the_present_overlap_and_the_booked_tokens(selector):
    first = book(selector, reservation_id="r")
    store(selector, Rank(first.worker_id, 0), 4)
    again = book(selector, reservation_id="r", selection_id="s", repeat=True)
    assert (again.overlap.gpu, again.overlap.dp, again.overlap.disk) == (4, {0: 4}, 4)
    assert (again.effective_prefill_tokens, again.selection_id) == (8, "s")
    selector.complete_prefill("r", 0.0)
    assert book(selector, reservation_id="r", repeat=True).effective_prefill_tokens == 0


def test_a_repeat_restarts_the_lease(selector):
    selector.ledger.reservations.ttl_s = 10.0
    book(selector, reservation_id="r")
    book(selector, 6.0, reservation_id="r", repeat=True)
    assert selector.ledger.reservations.get_reservation("r").renewed_at == 6.0


def test_a_repeat_does_not_pass_the_gate_again(selector):
    first = book(selector, reservation_id="r")
    selector.set_shed_tier(selector.gate.shedding.tiers.names[0])
    assert book(selector, reservation_id="r", repeat=True) == first
    selector.fleet.set_weight(Rank(first.worker_id, 0), 0.0, "unhealthy")
    assert book(selector, reservation_id="r", repeat=True) == first


def test_a_booking_that_left_with_its_rank_is_not_repeated(selector):
    first = book(selector, reservation_id="r")
    selector.delete_worker(first.worker_id, 0.0)
    second = book(selector, reservation_id="r", repeat=True)
    assert {first.worker_id, second.worker_id} == {1, 2}
    selector.delete_worker(second.worker_id, 0.0)
    with pytest.raises(NoWorkers):
        book(selector, reservation_id="r", repeat=True)


def test_a_reservation_is_repeated_on_the_rank_where_it_is(selector):
    first = selector.reserve(a_reservation("r", 2), 0.0)
    assert selector.reserve(a_reservation("r", 2, repeat=True), 0.0) == first
    assert selector.reserve(a_reservation("r", 1, repeat=True), 0.0) == first
    assert book(selector, reservation_id="r", repeat=True).worker_id == 2
    assert all_loads(selector) == [(0, 0, 0), (8, 2, 1)]


def test_a_booking_of_another_replica_is_answered_here(selector):
    """Check a booking of a peer, which sends the number of blocks but not of tokens."""
    hashes = selector.prompt_resolver.read_prompt(a_select(11))[1].sequence_hashes
    told = ReservationAdmitted(
        router_id=77,
        model_name=KEY.model_name,
        tenant_id=KEY.tenant_id,
        reservation_id="r",
        rank=Rank(2, 0),
        sequence_hashes=hashes,
        block_size=4,
        prefill_tokens_hint=11,
    )
    assert selector.followers.replicas.apply_event(told, 0.0) is None
    again = book(selector, reservation_id="r", tokens=11, repeat=True)
    assert (again.worker_id, again.effective_prefill_tokens) == (2, 11)
    with pytest.raises(Conflict):
        book(selector, reservation_id="r", tokens=12, repeat=True)


def test_only_the_kept_blocks_of_a_very_long_prompt_are_compared(selector):
    wanted = {"token_ids": list(range(4 * 8200)), "reservation_id": "r"}
    first = book(selector, **wanted)
    assert book(selector, **wanted, repeat=True) == first
    with pytest.raises(Conflict):
        book(selector, **{**wanted, "token_ids": [9, *wanted["token_ids"][1:]]}, repeat=True)


def test_hashes_are_returned_on_request(selector):
    prompt = selector.prompt_resolver.read_prompt(a_select(9))[1]
    plain = selector.select(a_select(9), 0.0).selection
    told = selector.select(a_select(9, include_hashes=True), 0.0).selection
    assert told.sequence_hashes == prompt.sequence_hashes.tolist()
    assert told.isl_tokens == 9
    assert plain.overlap == told.overlap
    first = book(selector, tokens=9, reservation_id="r", include_hashes=True)
    assert first.sequence_hashes == told.sequence_hashes
    again = book(selector, tokens=9, reservation_id="r", include_hashes=True, repeat=True)
    assert again == first


def test_too_many_hashes_are_refused_before_anything_is_booked(selector):
    n = RETURNED_HASHES_MAX + 1
    prompt = {"block_hashes": [1] * n, "sequence_hashes": [1] * n, "isl_tokens": 4 * n}
    for fields in ({}, {"repeat": True}):
        with pytest.raises(BadRequest, match="include_hashes: the prompt has 131073 blocks"):
            book(
                selector,
                token_ids=None,
                **prompt,
                reservation_id="r",
                include_hashes=True,
                **fields,
            )
    assert all_loads(selector) == [(0, 0, 0), (0, 0, 0)]


def test_a_repeat_without_its_booking_is_refused_as_any_other(selector):
    with pytest.raises(NoEligibleRank):
        book(selector, reservation_id="r", allowed_worker_ids=[9], repeat=True)
