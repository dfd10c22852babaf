"""Tests of separate prefill and decode in virtual time: no loss, single transfers per link."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.core.workers.transfer_prices import HOST_PRICE
from select_service.sim.engine.block_streams import ReplayRequest, ReplayWorkload
from select_service.sim.engine.core_router import CoreScene
from select_service.sim.engine.gpu_hardware import BLOCK_TOKENS, H100_80, KV_BYTES
from select_service.sim.engine.highest_rate import RATE_RANGE, find_highest_rate
from select_service.sim.engine.pair_fleet import TransferLinks, split_fleet
from select_service.sim.engine.pair_world import CorePairRouter, PairWorld, RankPair
from select_service.sim.engine.replay_world import ReplayRouter
from select_service.sim.engine.scheduler_engine import EngineJob, SchedulerEngine
from tests.builders.hypothesis_profiles import explores
from tests.builders.simulated_engines import BlockNumbers, TextStream

TOKEN_S = KV_BYTES / (100e9 / 8 * 0.8)
FLEET = (H100_80._replace(declared_blocks=120),) * 8


def a_workload(n, seed, shared=3):
    rng, blocks = np.random.default_rng(seed), BlockNumbers()
    turns = []
    for _ in range(n):
        stream = TextStream(blocks).append_shared(int(rng.integers(shared)), 8 * BLOCK_TOKENS)
        stream.append_unique(int(rng.integers(1, 2000)))
        turns.append((stream.make_request(int(rng.integers(1, 200))),))
    return ReplayWorkload(tuple(turns), np.cumsum(rng.exponential(1.0, n)), blocks.count)


def test_roles_are_spread_over_hosts():
    pairs = split_fleet(FLEET * 2, 8)
    for host in range(4):
        roles = [role for role, at in zip(pairs.roles, pairs.hosts, strict=True) if at == host]
        assert sorted(roles) == ["decode", "decode", "prefill", "prefill"]
    assert len(split_fleet(FLEET * 2, 5).ranks_of("prefill")) == 5
    assert (split_fleet(FLEET, 2).count_links(), split_fleet(FLEET[:4], 2).count_links()) == (2, 0)


TRANSFERS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 5000), st.floats(0.0, 0.1)),
    max_size=30,
)


@explores()
@given(TRANSFERS)
def test_a_link_moves_one_transfer_after_the_other(transfers):
    """The oracle is a plain list of all transfers of each link."""
    pairs = split_fleet(FLEET, 4, ranks_per_host=2)
    links, now, done = TransferLinks(pairs), 0.0, []
    for prefill, decode, tokens, later in transfers:
        now += later
        end = links.start_transfer(prefill, decode, tokens, now)
        out, into = pairs.hosts[prefill], pairs.hosts[decode]
        if out == into:
            within = HOST_PRICE / FLEET[0].prefill_tokens_per_s
            assert end == pytest.approx(now + tokens * within)
            continue
        before = [e for e, o, i in done if o == out or i == into]
        begin = max([now, *before])
        assert end == pytest.approx(begin + tokens * TOKEN_S)
        done.append((end, out, into))
    assert links.busy_s >= 0.0


@explores()
@given(st.integers(1, 40), st.integers(0, 10**6), st.sampled_from(["auto", "never", "always"]))
def test_all_requests_end_and_nothing_is_left(n, seed, local):
    workload = a_workload(n, seed)
    pairs = split_fleet(FLEET, 3)
    world = PairWorld(workload, pairs)
    scene = CoreScene(FLEET, workload.n_blocks, 1, ranks=pairs.declare_ranks())
    router = CorePairRouter(scene, local=local)
    record = world.run_pairs(router, 40.0)
    for life in record.histories:
        assert life.end_s >= life.first_s > life.arrived_s
        assert pairs.roles[life.rank] == "decode"
        if life.prefill_rank < 0:
            assert life.moved == 0
        else:
            assert pairs.roles[life.prefill_rank] == "prefill"
            assert 0 <= life.moved <= life.turn.prompt_tokens
    if local != "auto":
        assert {life.prefill_rank < 0 for life in record.histories} == {local == "always"}
    for engine in world.engines:
        engine.check_invariants()
        assert engine.pool.used_share == 0.0
        assert not engine.waiting
    output = sum(life.turn.output_tokens for life in record.histories)
    remote = sum(life.prefill_rank >= 0 for life in record.histories)
    # The engine of a remote prefill computes one additional token.
    assert sum(each.output_tokens for each in record.work) >= output + remote
    router.selector.run_pending(1e3)
    assert len(router.selector.ledger.reservations) == 0
    router.selector.check_invariants()


class FixedPairs(ReplayRouter):
    """Router that places all pairs on a single prefill and a single decode rank."""

    def choose(self, ask, now):
        raise AssertionError

    def finished(self, number, now):
        return

    def choose_pair(self, ask, now):
        return RankPair(0, 1)

    def prefill_complete(self, number, now):
        self.completed = now


def test_a_first_token_comes_after_the_transfer():
    chain = np.arange(100, dtype=np.int32)
    turn = ReplayRequest(chain, 100 * BLOCK_TOKENS, 1)
    workload = ReplayWorkload(((turn,),), np.zeros(1), 100)
    for ranks_per_host, token_s in ((1, TOKEN_S), (2, HOST_PRICE / H100_80.prefill_tokens_per_s)):
        pairs = split_fleet((H100_80,) * 2, 1, ranks_per_host=ranks_per_host)
        pairs = pairs._replace(roles=("prefill", "decode"))
        router = FixedPairs()
        (life,) = PairWorld(workload, pairs).run_pairs(router, 1.0).histories
        step_s = H100_80.step_s(1, turn.prompt_tokens - 0.5, 0)
        expected = router.completed + turn.prompt_tokens * token_s + step_s
        assert life.first_s == pytest.approx(expected, rel=1e-6)
        assert life.moved == turn.prompt_tokens


def test_a_decode_rank_reserves_room_and_moves_only_missing_blocks():
    engine = SchedulerEngine(FLEET[0]._replace(declared_blocks=12), 40)
    held = EngineJob(1, np.arange(8, dtype=np.int32), 8 * BLOCK_TOKENS, 2, is_remote=True)
    engine.add_job(held)
    engine.plan_stretch()
    assert engine.begun_moves == [held]
    other = EngineJob(2, np.arange(4, 12, dtype=np.int32), 8 * BLOCK_TOKENS, 2, is_remote=True)
    engine.add_job(other)
    assert engine.plan_stretch() is None, "no room for the second one"
    engine.complete_move(held)
    engine.plan_stretch()
    assert engine.complete_stretch().first_tokens == [held]
    while engine.plan_stretch() is not None and other not in engine.begun_moves:
        engine.complete_stretch()
    assert other in engine.begun_moves
    engine.complete_move(other)
    assert other.cached == 4 * BLOCK_TOKENS


@explores()
@given(st.floats(0.2, 6.0), st.floats(0.3, 3.0))
def test_the_highest_rate_is_found(limit, first):
    found = find_highest_rate(lambda rate: rate <= limit, first, 1.05)
    assert limit / 1.05 <= found <= limit


def test_a_search_ends_at_its_bounds():
    assert find_highest_rate(lambda rate: False, 1.0) == 0.0
    assert find_highest_rate(lambda rate: True, 1.0) >= RATE_RANGE
