"""Tests of the selector's rules for requests and reservations, one by one."""

import pytest

from select_service.base.errors import (
    BadRequest,
    Conflict,
    InvalidBody,
    NoEligibleRank,
    NotFound,
    NoWorkers,
)
from select_service.core.identity import Rank
from select_service.core.load.reservations import ReservationFilter
from select_service.core.placement.router_config import RouterConfig
from tests.builders import (
    a_patch,
    a_reservation,
    a_select,
    a_select_and_reserve,
    a_selector,
    a_worker,
)
from tests.builders.selector_scenes import load_of, store
from tests.builders.ticks import ticked


@pytest.fixture
def selector():
    selector = a_selector()
    selector.register_worker(a_worker(1))
    return selector


def test_contradicting_tenant_names_are_refused(selector):
    with pytest.raises(BadRequest, match="differ"):
        selector.register_worker(a_worker(2, tenant_id="a", routing_group="b"))
    with pytest.raises(BadRequest, match="differ"):
        selector.select(a_select(tenant_id="a", routing_group="b"), 0.0)
    assert [w.worker_id for w in selector.list_workers()] == [1]


def test_routing_group_is_the_tenant(selector):
    selector.register_worker(a_worker(2, routing_group="gold"))
    selection = selector.select(a_select(routing_group="gold"), 0.0).selection
    assert (selection.tenant_id, selection.worker_id) == ("gold", 2)


def test_empty_prompt_is_served_with_nothing_to_prefill(selector):
    selection = selector.select_and_reserve(a_select_and_reserve(0), now=0.0).selection
    assert selection.effective_prefill_tokens == 0
    assert load_of(selector) == (0, 0, 1)
    selector.select(a_select(), 0.0)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "a prompt is missing: give token_ids"),
        ({"block_hashes": [1]}, "sequence_hashes is required without token_ids"),
        ({"block_hashes": [1], "sequence_hashes": [1]}, "isl_tokens is required without token_ids"),
        (
            {"block_hashes": [1], "sequence_hashes": [1], "isl_tokens": 0},
            "isl_tokens must be greater than 0",
        ),
        (
            {"block_hashes": [1, 2], "sequence_hashes": [1], "isl_tokens": 8},
            "block_hashes length 2 must match sequence_hashes length 1",
        ),
    ],
)
def test_errors_of_incomplete_prompts_name_the_missing_field(selector, fields, text):
    with pytest.raises(BadRequest, match=text):
        selector.select(a_select(token_ids=None, **fields), 0.0)


def test_hashes_are_the_same_signed_and_unsigned(selector):
    for hashes in ([-1, 2**63 - 1], [2**64 - 1, 2**63 - 1]):
        request = a_select_and_reserve(
            token_ids=None, block_hashes=hashes, sequence_hashes=hashes, isl_tokens=8
        )
        selector.select_and_reserve(request, now=0.0)
    assert load_of(selector) == (16, 2, 2)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_hashes_beyond_64_bits_are_refused(selector, value):
    with pytest.raises(InvalidBody, match="does not fit in 64 bits"):
        selector.select(
            a_select(token_ids=None, block_hashes=[value], sequence_hashes=[1], isl_tokens=4), 0.0
        )


def test_reservation_ids_are_unique_over_partitions(selector):
    selector.register_worker(a_worker(2, tenant_id="t2"))
    selector.select_and_reserve(a_select_and_reserve(reservation_id="same"), now=0.0)
    with pytest.raises(Conflict, match="reservation same already exists"):
        selector.select_and_reserve(
            a_select_and_reserve(reservation_id="same", tenant_id="t2"), now=0.0
        )
    assert load_of(selector, 2) == (0, 0, 0)
    selector.free_reservation("same", 0.0)
    assert load_of(selector, 1) == (0, 0, 0)


def test_generated_ids_are_uuid4(selector):
    reservation_id = selector.select_and_reserve(
        a_select_and_reserve(), now=0.0
    ).selection.reservation_id
    assert len(reservation_id) == 36
    assert reservation_id[14] == "4"


def test_reservation_without_effective_prefill_tokens_books_the_prompt(selector):
    selector.reserve(a_reservation("r", tokens=9), now=0.0)
    assert load_of(selector) == (9, 2, 1)


def test_given_effective_prefill_tokens_are_booked_even_when_tracking_is_off():
    selector = a_selector(RouterConfig(track_prefill_tokens=False))
    selector.register_worker(a_worker(1))
    selector.reserve(a_reservation("r", effective_prefill_tokens=5), now=0.0)
    selector.reserve(a_reservation("s"), now=0.0)
    assert load_of(selector)[0] == 5


def test_effective_prefill_tokens_may_not_exceed_the_prompt(selector):
    with pytest.raises(
        BadRequest, match=r"effective_prefill_tokens \(9\) must not exceed isl_tokens \(8\)"
    ):
        selector.reserve(a_reservation("r", effective_prefill_tokens=9), now=0.0)


def test_reservation_names_a_schedulable_worker_and_rank(selector):
    with pytest.raises(NotFound, match="schedulable worker 99 not found for model=m"):
        selector.reserve(a_reservation("r", worker_id=99), now=0.0)
    with pytest.raises(NotFound, match="dp_rank 5 of worker 1 not found"):
        selector.reserve(a_reservation("r", dp_rank=5), now=0.0)
    assert load_of(selector) == (0, 0, 0)


def test_an_id_in_use_is_refused_behind_the_worker_and_before_the_rank(selector):
    selector.reserve(a_reservation("r"), 0.0)
    with pytest.raises(NotFound, match="schedulable worker 9 not found"):
        selector.reserve(a_reservation("r", 9), 0.0)
    with pytest.raises(Conflict):
        selector.reserve(a_reservation("r", dp_rank=7), 0.0)
    with pytest.raises(NotFound, match="dp_rank 7 of worker 1"):
        selector.reserve(a_reservation("other", dp_rank=7), 0.0)


def test_unknown_reservations_are_not_found(selector):
    for call in (
        lambda: selector.free_reservation("x", 0.0),
        lambda: selector.complete_prefill("x", 0.0),
        lambda: selector.add_output_block("x", None, 0.0),
        lambda: selector.renew_reservation("x", 0.0),
    ):
        with pytest.raises(NotFound, match="reservation x not found"):
            call()


def test_decay_fraction_is_checked_before_the_id(selector):
    for fraction in (1.5, -0.1, float("nan")):
        with pytest.raises(BadRequest, match=r"between 0\.0 and 1\.0"):
            selector.add_output_block("x", fraction, 0.0)


def test_prefill_complete_is_idempotent(selector):
    selector.reserve(a_reservation("r"), now=0.0)
    selector.complete_prefill("r", 1.0)
    selector.complete_prefill("r", 2.0)
    assert load_of(selector) == (0, 2, 1)


def test_pinned_worker_outside_the_allowed_set_is_a_bad_request(selector):
    pinned = {"worker_id": 2, "dp_rank": 0}
    with pytest.raises(BadRequest, match="pinned worker 2 is not in allowed worker set"):
        selector.select(a_select(pinned_worker=pinned, allowed_worker_ids=[1]), 0.0)
    with pytest.raises(NoEligibleRank, match="no endpoints available to route work"):
        selector.select(a_select(pinned_worker=pinned), 0.0)


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_worker_ids": []},
        {"allowed_worker_ids": [7]},
        {"routing_constraints": {"required_taints": ["gpu"]}},
        {"pinned_worker": {"worker_id": 1, "dp_rank": 1}},
    ],
)
def test_unmet_constraints_are_rejected_and_change_nothing(selector, fields):
    with pytest.raises(NoEligibleRank):
        selector.select_and_reserve(a_select_and_reserve(reservation_id="r", **fields), now=0.0)
    selector.select_and_reserve(a_select_and_reserve(reservation_id="r"), now=0.0)


def test_required_taints_select_by_label(selector):
    selector.register_worker(a_worker(2, taints=["a", "b"]))
    request = a_select(routing_constraints={"required_taints": ["b"]})
    assert selector.select(request, 0.0).selection.worker_id == 2


def test_preferred_taints_outweigh_equal_costs(selector):
    selector.register_worker(a_worker(2, taints=["fast"]))
    request = a_select(routing_constraints={"preferred_taints": {"fast": 1.0, "none": -9.0}})
    assert {selector.select(request, 0.0).selection.worker_id for _ in range(20)} == {2}


def test_hostile_preference_weights_do_not_break_the_choice(selector):
    selector.register_worker(a_worker(2, taints=["a", "b"]))
    request = a_select(routing_constraints={"preferred_taints": {"a": 1e308, "b": -1e308}})
    assert selector.select(request, 0.0).selection.worker_id in (1, 2)


def test_overlap_is_a_summary_over_the_ranks_of_the_worker(selector):
    selector.patch_worker(1, a_patch(data_parallel_size=2))
    store(selector, Rank(1, 0), 4)
    store(selector, Rank(1, 1), 8)
    selection = selector.select(
        a_select(34, pinned_worker={"worker_id": 1, "dp_rank": 0}), 0.0
    ).selection
    assert selection.overlap.dp == {0: 4, 1: 8}
    assert selection.overlap.longest_matched == 8
    assert selection.effective_prefill_tokens == 30


def test_more_overlap_wins_until_load_outweighs_it(selector):
    selector.register_worker(a_worker(2))
    store(selector, Rank(2, 0), 16)
    assert selector.select(a_select(16), 0.0).selection.worker_id == 2
    for name in "abc":
        selector.reserve(a_reservation(name, 2, token_ids=list(range(100, 120))), now=0.0)
    assert selector.select(a_select(16), 0.0).selection.worker_id == 1


def test_request_override_replaces_the_configuration(selector):
    untracked = {"track_prefill_tokens": False}
    selector.select_and_reserve(a_select_and_reserve(router_config_override=untracked), now=0.0)
    assert load_of(selector) == (0, 2, 1)


def test_without_kv_reuse_no_two_requests_share_a_block():
    selector = a_selector(RouterConfig(assume_kv_reuse=False))
    selector.register_worker(a_worker(1))
    for name in "ab":
        selector.reserve(a_reservation(name), now=0.0)
    assert load_of(selector) == (16, 4, 2)
    selector.free_reservation("a", 0.0)
    assert load_of(selector) == (8, 2, 1)


def test_without_active_block_tracking_only_prefill_counts():
    selector = a_selector(RouterConfig(track_active_blocks=False))
    selector.register_worker(a_worker(1))
    selector.reserve(a_reservation("r"), now=0.0)
    selector.add_output_block("r", None, 0.0)
    assert load_of(selector) == (8, 0, 1)


def test_without_output_block_tracking_output_does_not_count():
    selector = a_selector(RouterConfig(track_output_blocks=False))
    selector.register_worker(a_worker(1))
    selector.reserve(a_reservation("r"), now=0.0)
    selector.add_output_block("r", 0.0, 0.0)
    assert load_of(selector) == (8, 2, 1)


def test_lease_ends_unless_a_lifecycle_call_renews_it():
    selector = a_selector(ttl_s=10.0)
    selector.register_worker(a_worker(1))
    for name in "abcd":
        selector.reserve(a_reservation(name), now=0.0)
    selector.complete_prefill("a", 5.0)
    selector.add_output_block("b", None, 5.0)
    selector.renew_reservation("c", 5.0)
    assert ticked(selector, 9.9) == []
    assert ticked(selector, 10.0) == ["d"]
    assert load_of(selector)[2] == 3
    assert ticked(selector, 15.0) == ["a", "b", "c"]
    assert load_of(selector) == (0, 0, 0)
    assert selector.ledger.expired_count == 4


def test_zero_time_to_live_never_expires():
    selector = a_selector(ttl_s=0.0)
    selector.register_worker(a_worker(1))
    selector.reserve(a_reservation("r"), now=0.0)
    assert ticked(selector, 1e12) == []
    assert (
        selector.inspection.list_reservations(ReservationFilter(), 5.0)
        .reservations[0]
        .expires_in_seconds
        is None
    )


def test_reservations_are_paged_oldest_first(selector):
    selector.register_worker(a_worker(2, tenant_id="t2"))
    for i in range(5):
        selector.reserve(a_reservation(f"r{i}"), now=float(i))
    selector.reserve(a_reservation("other", 2, tenant_id="t2"), now=5.0)
    ids, after = [], None
    while True:
        page = selector.inspection.list_reservations(ReservationFilter(limit=2, after=after), 6.0)
        ids += [row.reservation_id for row in page.reservations]
        after = page.next
        if after is None:
            break
    assert ids == ["r0", "r1", "r2", "r3", "r4", "other"]
    page = selector.inspection.list_reservations(ReservationFilter(tenant_id="t2"), 6.0)
    assert [row.reservation_id for row in page.reservations] == ["other"]
    assert page.reservations[0].age_seconds == 1.0
    with pytest.raises(BadRequest):
        selector.inspection.list_reservations(ReservationFilter(after="²"), 6.0)


def test_page_cursor_survives_the_end_of_the_reservation_it_names(selector):
    for i in range(4):
        selector.reserve(a_reservation(f"r{i}"), now=0.0)
    page = selector.inspection.list_reservations(ReservationFilter(limit=2), 0.0)
    selector.free_reservation("r1", 0.0)
    selector.free_reservation("r2", 0.0)
    rest = selector.inspection.list_reservations(ReservationFilter(limit=2, after=page.next), 0.0)
    assert [row.reservation_id for row in rest.reservations] == ["r3"]


def test_potential_loads_add_the_prompt_to_every_rank(selector):
    selector.register_worker(a_worker(2))
    selector.reserve(a_reservation("r"), now=0.0)
    rows = selector.inspection.potential_loads(a_select(9))
    assert [
        (r.worker_id, r.potential_prefill_tokens, r.potential_decode_blocks, r.active_requests)
        for r in rows
    ] == [(1, 17, 2, 1), (2, 9, 2, 0)]


def test_explain_gives_the_terms_of_the_moment_of_decision(selector):
    decision = selector.select_and_reserve(a_select_and_reserve(), now=0.0, explain=True)
    selector.reserve(a_reservation("later"), now=0.0)
    (row,) = decision.candidates
    assert (row["chosen"], row["cost"], row["prefill_tokens"]) == (True, 8.0, 0)


def test_errors_distinguish_an_empty_service_from_an_empty_partition():
    selector = a_selector()
    with pytest.raises(NoWorkers, match="no schedulable workers are available"):
        selector.select(a_select(), 0.0)
    with pytest.raises(NoWorkers, match="no schedulable workers are available"):
        selector.select(a_select(token_ids=None), 0.0)
    selector.register_worker(a_worker(1))
    with pytest.raises(NoWorkers, match="no schedulable workers for model=x tenant=default"):
        selector.select(a_select(model_name="x"), 0.0)


def test_identities_that_a_client_gives_are_shared_without_kv_reuse_as_well():
    """Check a sequence measured with Dynamo 1.6.1."""
    selector = a_selector(RouterConfig(policy="reference", assume_kv_reuse=False))
    selector.register_worker(a_worker(1))
    given = {"token_ids": None, "block_hashes": [1, 2], "sequence_hashes": [3, 4], "isl_tokens": 8}

    def blocks():
        (row,) = next(selector.inspection.partition_loads()).loads
        return row.potential_decode_blocks

    for _ in range(2):
        selector.select_and_reserve(a_select_and_reserve(**given), 0.0)
        assert blocks() == 2
    selector.select_and_reserve(a_select_and_reserve(8), 0.0)
    selector.select_and_reserve(a_select_and_reserve(8), 0.0)
    assert blocks() == 6
    (potential,) = selector.inspection.potential_loads(a_select(**given))
    assert potential.potential_decode_blocks == 6
    explicit = {**given, "block_hashes": None}
    selector.reserve(a_reservation("a", 1, **explicit), 0.0)
    assert blocks() == 6
    selector.reserve(a_reservation("b", 1, 8, sequence_hashes=[3, 4]), 0.0)
    assert blocks() == 8
