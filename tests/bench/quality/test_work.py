"""Tests of the `work` rule: costs in numbers, and the account of booked work behind the rule."""

import numpy as np
import pytest

from indexer.tiers import Tier
from scripts.bench.quality.replicated_selectors import share_of
from scripts.bench.quality.work_rule import LEAST_WORK, WORK, CostInputs, WorkRouter, cost_of
from select_service.sim.engine.core_router import CoreScene, SelectorUsage
from select_service.sim.engine.gpu_hardware import BLOCK_TOKENS, EQUAL
from select_service.sim.engine.kv_block_pool import RemovedBlocks, StoredBlocks
from select_service.sim.engine.replay_world import RankRequest

FLEET = EQUAL[:2]
IDLE = CostInputs(left=0.0, own=1000.0, requests=0, live=1000.0, memory=100_000.0, outside=False)


@pytest.mark.parametrize(
    ("slot", "rule", "cost"),
    [
        (IDLE, WORK, 1000.0),
        (IDLE._replace(left=500.0), WORK, 1500.0),
        (IDLE._replace(requests=16), WORK, 1000.0 + 0.5 * 1000.0 + 16 * 256.0),
        (IDLE._replace(requests=320), WORK, 1000.0 + 4 * 1000.0 + 320 * 256.0),
        (IDLE._replace(own=20_000.0, requests=32), WORK, 20_000.0 + 16_384.0 + 32 * 256.0),
        (IDLE._replace(requests=16, left=10.0), LEAST_WORK, 1010.0),
        (IDLE._replace(live=97_000.0), WORK._replace(memory=4.0), 1000.0 + 4 * 2000.0),
        (IDLE._replace(own=2048.0, outside=True), WORK, 2048.0 + 2048.0),
    ],
)
def test_a_cost_is_the_sum_of_its_terms(slot, rule, cost):
    assert cost_of(slot, rule) == pytest.approx(cost)


def a_chooser(rule=WORK, number=0):
    return WorkRouter(CoreScene(FLEET, 1000, 1), rule, SelectorUsage(selector_number=number))


def an_ask(number, first=0, blocks=10, tail=5):
    chain = np.arange(first, first + blocks, dtype=np.int32)
    return RankRequest(number, chain, blocks * BLOCK_TOKENS + tail, 0)


def work_left(chooser):
    chooser.account.check_invariants()
    return [chooser.account.unfinished_work(rank) for rank in range(len(FLEET))]


def test_work_is_booked_and_ends_with_the_first_token():
    chooser = a_chooser()
    rank = chooser.choose(an_ask(1), 0.0)
    assert work_left(chooser)[rank] == 645.0
    chooser.first_token(1, 1.0)
    assert work_left(chooser) == [0.0, 0.0]
    chooser.finished(1, 2.0)
    assert work_left(chooser) == [0.0, 0.0]


def test_events_prove_progress_of_the_oldest_request():
    chooser = a_chooser()
    rank = chooser.choose(an_ask(1), 0.0)
    chain = an_ask(1).chain
    chooser.changed(rank, [StoredBlocks(chain, 0, 4)], 0.1)
    assert work_left(chooser)[rank] == 645.0 - 4 * BLOCK_TOKENS
    chooser.changed(rank, [RemovedBlocks(chain[3:4])], 0.2)
    assert work_left(chooser)[rank] == 645.0 - 3 * BLOCK_TOKENS
    chooser.changed(rank, [StoredBlocks(chain, 3, 10)], 0.3)
    assert work_left(chooser)[rank] == 5.0


def test_cached_blocks_are_no_progress():
    chooser = a_chooser()
    chain = an_ask(1).chain
    for rank in range(2):
        chooser.changed(rank, [StoredBlocks(chain, 0, 6)], 0.0)
    rank = chooser.choose(an_ask(1), 0.1)
    assert work_left(chooser)[rank] == 645.0 - 6 * BLOCK_TOKENS
    chooser.changed(rank, [StoredBlocks(chain, 6, 8)], 0.2)
    assert work_left(chooser)[rank] == 645.0 - 8 * BLOCK_TOKENS


@pytest.mark.parametrize(("leading", "together"), [(True, True), (False, False)])
def test_a_prompt_that_is_under_way_is_followed_by_its_twin(leading, together):
    chooser = a_chooser(WORK._replace(leading=leading))
    rank = chooser.choose(an_ask(1), 0.0)
    chooser.changed(rank, [StoredBlocks(an_ask(1).chain, 0, 6)], 0.1)
    assert (chooser.choose(an_ask(2), 0.1) == rank) == together


def test_requests_wait_while_all_ranks_have_enough_to_do():
    chooser = a_chooser(WORK._replace(hold_tokens=600.0))
    ranks = [chooser.choose(an_ask(n, first=40 * n, blocks=33), 0.0) for n in (1, 2)]
    assert sorted(ranks) == [0, 1]
    assert chooser.choose(an_ask(3, first=120), 0.0) is None, "2,117 tokens are more than a batch"
    assert list(chooser.released(0.1)) == []
    chooser.first_token(2, 0.2)
    assert list(chooser.released(0.2)) == [(3, ranks[1])]


def test_a_request_waits_no_longer_than_it_may():
    chooser = a_chooser(WORK._replace(hold_tokens=600.0, hold_max_s=1.0))
    for n in (1, 2):
        chooser.choose(an_ask(n, first=40 * n, blocks=33), 0.0)
    assert chooser.choose(an_ask(3, first=120), 0.0) is None
    chooser.changed(0, [], 1.5)
    assert [number for number, _ in chooser.released(1.5)] == [3]


def test_no_request_waits_while_the_work_of_a_rank_is_less_than_a_batch():
    chooser = a_chooser(WORK._replace(hold_tokens=600.0))
    asks = [an_ask(n, first=20 * n) for n in range(6)]
    assert None not in [chooser.choose(ask, 0.0) for ask in asks]
    assert min(work_left(chooser)) > 600.0


def test_peers_count_announced_work_and_reported_progress():
    one, other = a_chooser(), a_chooser(number=1)
    other.account.peers_work = one.account.peers_work
    heard = []
    one.selector.followers.replicas.start_sending(heard.append)
    rank = one.choose(an_ask(1), 0.0)
    for event in heard:
        assert other.selector.followers.replicas.apply_event(event, 0.1) is None
    assert work_left(other)[rank] == 645.0
    one.changed(rank, [StoredBlocks(an_ask(1).chain, 0, 4)], 0.1)
    for name, done in one.account.progress():
        other.account.receive_progress(name, done)
    assert work_left(other)[rank] == work_left(one)[rank] == 645.0 - 4 * BLOCK_TOKENS


def test_every_rank_belongs_to_the_share_of_one_selector():
    shares = [share_of(rank, 4) for rank in range(64)]
    assert set(shares) == {0, 1, 2, 3}
    assert [share_of(rank, 1) for rank in range(8)] == [0] * 8


def test_the_core_books_the_choice_of_the_rule():
    chooser = a_chooser()
    rank = chooser.choose(an_ask(1), 0.0)
    (booking,) = chooser.selector.ledger.reservations
    assert (booking.rank.worker_id, booking.prefill_tokens) == (rank, 645)
    assert chooser.partition.index.stats().memberships == 0
    chooser.changed(rank, [StoredBlocks(an_ask(1).chain, 0, 4)], 0.1)
    matched = chooser.partition.index.match(chooser.block_hashes[an_ask(1).chain])
    assert matched[rank, Tier.GPU] == 4


def test_capacity_is_learnt_from_the_first_eviction():
    chooser = a_chooser(WORK._replace(memory=4.0, declared=False))
    chain = an_ask(1, blocks=20).chain
    chooser.changed(0, [StoredBlocks(chain, 0, 20)], 0.0)
    assert chooser._memory[0] == float("inf")
    chooser.changed(0, [RemovedBlocks(chain[15:]), StoredBlocks(chain, 15, 18)], 0.1)
    assert chooser._memory == [20.0 * BLOCK_TOKENS, float("inf")]
