"""Tests of the terms and costs of `work`, case by case."""

from math import floor

import numpy as np
import pytest

from indexer.tiers import Tier
from select_service.core.identity import Rank
from select_service.core.load.compiled.ledger_layout import PROMPT_CHUNKS, PROMPT_CHUNKS_MAX
from select_service.core.placement.placement_kernels import COST
from select_service.core.placement.placer import RankPreference
from select_service.core.placement.prompt import Prompt, read_prompt
from select_service.core.placement.router_config import RouterConfig
from select_service.core.replication.load_events import ReservationAdmitted
from tests.builders import (
    a_patch,
    a_reservation,
    a_select,
    a_select_and_reserve,
    a_selector,
    a_worker,
)
from tests.core.placement.grouped_fleet import GroupedFleet

SIZE = 4
PEER = 7


def hashes(blocks):
    return np.array(blocks, np.uint64)


def test_the_terms_add_up_to_the_cost():
    selector = a_selector(RouterConfig(policy="work"))
    for worker_id in (1, 2):
        selector.register_worker(a_worker(worker_id, total_kv_blocks=2))
    selector.select_and_reserve(a_select_and_reserve(40), 0.0)
    (partition,) = selector.fleet.partitions.values()
    placing, path = partition.placer, hashes(range(7))
    asked, config = Prompt(path, path, 30), RouterConfig(policy="work")
    placing.place_prompt(asked, config, partition.table.open_slots)
    for row in placing.cost_terms(asked, config, partition.table.open_slots).T:
        terms = dict(zip(placing.policy.term_names, row.tolist(), strict=True))
        prices = sum(value for name, value in terms.items() if name.endswith("_price"))
        assert row[COST] == terms["own_work"] + prices
        assert terms["memory_price"] > 0


def a_fleet(policy="work", *options, **fields):
    selector = a_selector(RouterConfig(policy=policy, policy_options=options))
    for worker_id in (1, 2):
        selector.register_worker(a_worker(worker_id, **fields))
    (partition,) = selector.fleet.partitions.values()
    return selector, partition


def terms_of(selector, partition, tokens=30):
    """Return {name: [number of each rank]} of both ranks, for an uncached prompt."""
    path = hashes(range(50_000, 50_000 + tokens // SIZE))
    asked, config = Prompt(path, path, tokens), selector.decisions.config
    partition.placer.place_prompt(asked, config, partition.table.open_slots)
    terms = partition.placer.cost_terms(asked, config, partition.table.open_slots)
    return dict(zip(partition.placer.policy.term_names, terms.tolist(), strict=True))


def test_work_that_is_booked_counts_until_the_first_token():
    selector, partition = a_fleet("least_work")
    selector.reserve(a_reservation("a", 1, 40), 0.0)
    assert terms_of(selector, partition)["cost"] == [70.0, 30.0]
    selector.complete_prefill("a", 0.0)
    assert terms_of(selector, partition)["cost"] == [30.0, 30.0]


def test_prefill_under_way_is_no_work_for_the_next_request():
    selector, _ = a_fleet("least_work")
    selector.reserve(a_reservation("a", 1, 40), 0.0)
    second = selector.select_and_reserve(a_select_and_reserve(44, reservation_id="b"), 0.0)
    (booked,) = (b for b in selector.ledger.reservations if b.reservation_id == "b")
    assert (second.selection.worker_id, second.selection.effective_prefill_tokens) == (2, 44)
    assert booked.prefill_work == 44
    third = a_reservation("c", 1, 44)
    selector.reserve(third, 0.0)
    (booked,) = (b for b in selector.ledger.reservations if b.reservation_id == "c")
    assert (booked.prefill_work, booked.prefill_tokens) == (4, 44)


def test_a_reservation_that_moves_has_not_ended_without_a_report():
    selector, partition = a_fleet()
    selector.reserve(a_reservation("a", 1, 40), 0.0)
    moved = ReservationAdmitted(
        model_name="m",
        tenant_id="default",
        block_size=partition.block_size,
        reservation_id="a",
        rank=Rank(2, 0),
        router_id=PEER,
        sequence_hashes=hashes(range(3)),
        prefill_tokens_hint=40,
    )
    assert selector.followers.replicas.apply_event(moved, 0.0) is None
    assert partition.load.prefills.work_booked[:2].tolist() == [0, 40]
    assert partition.load.reported_share == 1.0
    selector.free_reservation("a", 0.0)
    assert partition.load.reported_share < 1.0


def test_callers_that_never_report_are_noticed_and_forgiven():
    selector, partition = a_fleet()
    selector.reserve(a_reservation("a", 1, 40), 0.0)
    assert terms_of(selector, partition)["left_price"] == [40.0, 0.0]
    for _ in range(45):  # (63 / 64) ** 45 is below a half
        selector.reserve(a_reservation("b", 2, 3), 0.0)
        selector.free_reservation("b", 0.0)
    terms = terms_of(selector, partition)
    assert terms["left_price"] == [12.0, 0.0]
    assert terms["share_price"] == [0.0, 0.0]
    assert terms["request_price"] == [256.0, 0.0]
    for _ in range(3):
        selector.reserve(a_reservation("b", 2, 3), 0.0)
        selector.complete_prefill("b", 0.0)
        selector.free_reservation("b", 0.0)
    assert terms_of(selector, partition)["left_price"] == [40.0, 0.0]


def test_options_change_the_costs_of_live_requests_and_full_ranks():
    price = {}
    for option in ("decode-sensitive", "strict-tail", "no-memory"):
        selector, partition = a_fleet("work", option, total_kv_blocks=5)
        selector.reserve(a_reservation("a", 1, 40), 0.0)
        terms = terms_of(selector, partition)
        price[option] = terms["live_price"][0], terms["memory_price"][0], terms["share_price"][0]
    live, over = 4 * 17, 4 * (17 - 0.95 * 5)
    assert price["decode-sensitive"] == (0.03 * live, over, 30 / 16)
    assert price["strict-tail"] == (0.1 * live, over, 30 / 64)
    assert price["no-memory"] == (0.0, 0.0, 30 / 32)


@pytest.mark.parametrize(("booked", "is_full"), [(3, False), (4, True)])
def test_a_full_rank_pays_for_blocks_of_another_rank(booked, is_full):
    """Check a rank with ten blocks: seven cached, one of a live request, and one of queued work."""
    selector, partition = a_fleet("work", "copy-price", total_kv_blocks=10)
    prompt = hashes(range(50_000, 50_007))
    for worker_id, blocks in ((1, hashes(range(7))), (2, prompt)):
        partition.table.writer_of(Rank(worker_id, 0)).store(Tier.GPU, None, blocks, blocks)
    selector.reserve(a_reservation("a", 1, booked), 0.0)
    terms = terms_of(selector, partition)
    assert terms["own_work"] == [30.0, 2.0]
    assert terms["copy_price"] == [0.5 * 28.0 if is_full else 0.0, 0.0]
    prices = [sum(v[0] for name, v in terms.items() if name.endswith("_price"))]
    assert terms["cost"][:1] == [terms["own_work"][0] + prices[0]]
    everywhere = np.array([True, False])  # rank 2 may not be chosen, so no block is copied
    asked = Prompt(prompt, prompt, 30)
    partition.placer.place_prompt(asked, selector.decisions.config, everywhere)
    found = partition.placer.cost_terms(asked, selector.decisions.config, everywhere)
    assert found[partition.placer.policy.term_names.index("copy_price"), 0] == 0.0


@pytest.mark.parametrize("spare", [0, 1])
@pytest.mark.parametrize("unit", [2, 8])
def test_a_cache_is_full_of_the_blocks_of_all_its_groups(unit, spare):
    """Check states and ends inside blocks, too: the groups of an engine share its memory."""
    ends = [7, 20]
    held = len(GroupedFleet(unit, [ends]).engines[0].model.holdings())
    size = floor(held / 0.9) + spare
    fleet = GroupedFleet(unit, [ends, [41]], options=("copy-price",), total_kv_blocks=size)
    placer, config = fleet.partition.placer, fleet.selector.decisions.config
    prompt = read_prompt(a_select(42), 8, 0)
    slots = fleet.partition.table.open_slots
    placer.place_prompt(prompt, config, slots)
    rows = placer.cost_terms(prompt, config, slots)
    terms = dict(zip(placer.policy.term_names, rows, strict=True))
    first, second = (fleet.partition.table.find_slot(Rank(number, 0)) for number in (1, 2))
    extra = terms["own_work"][first] - terms["own_work"][second]
    assert extra > 0
    assert terms["copy_price"][first] == (0.0 if spare else 0.5 * extra)
    assert placer.scratch.costs[:2].tolist() == terms["cost"].tolist()


def test_prefill_that_is_not_tracked_is_in_no_account():
    selector = a_selector(RouterConfig(policy="work", track_prefill_tokens=False))
    selector.register_worker(a_worker(1))
    selector.select_and_reserve(a_select_and_reserve(40, reservation_id="a"), 0.0)
    (partition,) = selector.fleet.partitions.values()
    assert partition.load.prefills.work_booked[0] == 0
    selector.free_reservation("a", 0.0)
    selector.check_invariants()


def test_prompts_are_kept_only_where_they_are_followed_and_only_so_long():
    for policy, kept in (("reference", 0), ("work", 1)):
        selector, _ = a_fleet(policy)
        numbers = selector.ledger.reservations.memory.numbers
        selector.select_and_reserve(a_select_and_reserve(40, reservation_id="a"), 0.0)
        assert numbers[PROMPT_CHUNKS] == kept
        selector.complete_prefill("a", 0.0)
        assert numbers[PROMPT_CHUNKS] == 0


def test_a_prompt_that_finds_no_room_is_booked_and_not_followed():
    selector, partition = a_fleet("least_work")
    selector.ledger.reservations.memory.header[PROMPT_CHUNKS_MAX] = 0
    worker_id = selector.select_and_reserve(
        a_select_and_reserve(40, reservation_id="a"), 0.0
    ).selection.worker_id
    blocks = read_prompt(a_select(40), SIZE, False).block_hashes
    partition.table.writer_of(Rank(worker_id, 0)).store(Tier.GPU, None, blocks, blocks)
    assert sorted(terms_of(selector, partition)["left_price"]) == [0.0, 40.0]
    selector.free_reservation("a", 0.0)
    selector.check_invariants()


def test_taints_and_weights_scale_the_whole_cost():
    selector, partition = a_fleet("work")
    selector.reserve(a_reservation("a", 1, 40), 0.0)
    asked, everybody = Prompt(hashes(()), hashes(()), 30), partition.table.open_slots
    placing = partition.placer
    placing.place_prompt(asked, selector.decisions.config, everybody)
    plain = placing.scratch.costs[:2].copy()
    for worker_id, weight in ((1, 0.5), (2, 0.75)):
        selector.fleet.set_weight(Rank(worker_id, 0), weight, "suspicious")
    factors = np.array([0.1, 3.0])
    expected = (plain * factors + SIZE) / (0.5, 0.75) - SIZE
    config = selector.decisions.config
    chosen = placing.place_prompt(asked, config, everybody, RankPreference(factors))
    assert chosen == np.argmin(expected)
    np.testing.assert_allclose(placing.scratch.costs[:2], expected, rtol=1e-12)
    other = np.where(np.arange(2) == chosen, 1e3, 1e-3)
    preference = RankPreference(factors * other)
    assert placing.place_prompt(asked, config, everybody, preference) == 1 - chosen


def test_with_a_temperature_ranks_are_drawn_by_their_cost():
    selector, partition = a_fleet("work")
    selector.reserve(a_reservation("a", 1, 40), 0.0)
    config = selector.decisions.config._replace(temperature=1.0)
    asked, everybody = Prompt(hashes(()), hashes(()), 30), partition.table.open_slots
    draws = [
        partition.placer.place_prompt(asked, config, everybody, draw=d / 100) for d in range(100)
    ]
    share = draws.count(0) / 100  # exp(-1) against 1
    assert abs(share - 0.27) < 0.02


@pytest.mark.parametrize("policy", ["work", "least_work"])
def test_a_declared_speed_divides_the_cost_by_its_ratio_to_the_median(policy):
    _, partition = loaded = a_fleet(policy)
    loaded[0].reserve(a_reservation("a", 1, 40), 0.0)
    plain = np.array(terms_of(*loaded)["cost"])
    for speeds, expected in (
        ((100.0, 300.0), plain / (0.5, 1.5)),
        ((49.0, 49.0), plain),
        ((49.0, None), plain),
    ):
        for worker_id, speed in zip((1, 2), speeds, strict=True):
            loaded[0].register_worker(a_worker(worker_id, prefill_tokens_per_s=speed))
        found = terms_of(*loaded)
        if speeds[0] == 49.0:
            assert found["cost"] == plain.tolist(), "to the last bit"
        np.testing.assert_allclose(found["cost"], expected, rtol=1e-15)
    assert len(partition.table) == 2


def test_the_reference_knows_no_speeds():
    costs = []
    for speed in (None, 100.0):
        selector, partition = a_fleet("reference")
        selector.patch_worker(1, a_patch(prefill_tokens_per_s=speed))
        selector.patch_worker(2, a_patch(prefill_tokens_per_s=speed and 5 * speed))
        costs.append(terms_of(selector, partition)["cost"])
    assert costs[0] == costs[1]
