"""Tests of pairs in observations: one request each, wherever the parts are computed."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.core.load.histogram_bins import TIME_EDGES_S, TOKEN_EDGES
from select_service.core.placement.router_config import RouterConfig
from select_service.schemas.pairs import SelectPairAndReserveRequest
from tests.builders import a_worker
from tests.builders.hypothesis_profiles import explores
from tests.core.traffic.scenes import Observed
from tests.models.observation_model import histogram

BYTES, GBPS = 131_072.0, 100.0
TOKEN_S = BYTES / (GBPS * 1e9 / 8 * 0.8)
HOSTS = {1: "a", 2: "b", 3: "a", 4: "c"}


class Paired(Observed):
    """Two ranks for prefill, two for decode; prompts share no block."""

    def __init__(self, roles=("prefill", "prefill", "decode", "decode"), gbps=GBPS):
        super().__init__(workers=(), config=RouterConfig(policy="work"))
        for (worker_id, host), role in zip(HOSTS.items(), roles, strict=True):
            link = {"host": host, "link_gbps": gbps, "bytes_per_token": BYTES}
            worker = a_worker(worker_id, role=role, kv_transfer=link, prefill_tokens_per_s=30_000.0)
            self.selector.register_worker(worker)

    def book(self, now, tokens=8, **fields):
        body = {"model_name": "m", "token_ids": self.prompt(tokens)} | fields
        name = next(self.names)
        request = msgspec.convert(body | {"reservation_id": name}, SelectPairAndReserveRequest)
        return name, self.selector.select_pair(request, now).pair


LOCAL, REMOTE, PLAIN = "always", "never", "plain"
ACTS = st.lists(
    st.tuples(st.sampled_from([LOCAL, REMOTE, PLAIN]), st.integers(1, 60), st.integers(0, 3)),
    max_size=12,
)
SPLIT = ("prefill", "prefill", "decode", "decode")


@explores()
@given(ACTS, st.sampled_from([SPLIT, (None,) * 4, (*SPLIT[:3], None)]))
def test_each_pair_counts_once(acts, roles):
    """Compare with a list of all bookings."""
    scene, now = Paired(roles), 2.0
    scene.step(1.0)
    scene.step(2.0)
    isl, first, local, moved, links_s = [], [], [], 0, 0.0
    for kind, tokens, spoken in acts:
        now += 0.01
        if kind == PLAIN:
            scene.reserve(now, tokens, worker_id=1)
            isl.append(tokens)
            continue
        name, pair = scene.book(now, tokens, local=kind)
        isl.append(tokens)
        prefill, decode = (leg.worker_id for leg in pair.legs)
        if kind == LOCAL:
            local.append(tokens)
        else:
            moved += tokens
            links_s += TOKEN_S * tokens * (HOSTS[prefill] != HOSTS[decode])
            if spoken:
                scene.selector.complete_prefill(name, now + 0.001)
        for _ in range(spoken):
            scene.selector.report_first_token(name, now + 0.002)
        if spoken:
            first.append(0.002)
        scene.selector.run_pending(now + 0.002)
    seen = scene.observe(1, now + 0.1)
    assert seen["arrivals"] == len(isl)
    for name, values in (("isl", isl), ("uncached_isl", isl)):
        assert (seen[name]["counts"], seen[name]["sum"]) == histogram(TOKEN_EDGES, values)
    assert seen["ttft_s"]["counts"] == histogram(TIME_EDGES_S, first)[0]
    if len(isl) == sum(kind == PLAIN for kind, *_ in acts):
        assert "pairs" not in seen
        return
    pairs = seen["pairs"]
    assert (pairs["remote"], pairs["local"]) == (
        sum(kind == REMOTE for kind, *_ in acts),
        len(local),
    )
    found = pairs["local_uncached_isl"]
    assert (found["counts"], found["sum"]) == histogram(TOKEN_EDGES, local)
    assert pairs["moved_tokens"] == moved
    assert pairs["link_seconds"] == pytest.approx(links_s, abs=2e-5)
    scene.selector.check_invariants()


def test_links_are_counted_by_the_hosts_of_the_roles_and_queue_until_the_first_token():
    scene = Paired()
    name, pair = scene.book(1.0, 1000, local="never")
    prefill, decode = (leg.worker_id for leg in pair.legs)
    pairs = scene.observe(1, 1.1)["pairs"]
    assert (pairs["leaving_hosts"], pairs["entering_hosts"]) == (2, 2)
    expected = 1000 * TOKEN_S * (HOSTS[prefill] != HOSTS[decode])
    assert pairs["link_backlog_s"] == pytest.approx(expected, rel=1e-3)
    scene.selector.report_first_token(name, 1.2)
    assert scene.observe(1, 1.3)["pairs"]["link_backlog_s"] == 0.0


def test_links_follow_the_present_ranks_before_a_further_pair():
    scene = Paired()
    scene.book(1.0, 1000, local="never")
    for worker_id in range(5, 9):
        link = {"host": f"h{worker_id}", "link_gbps": GBPS, "bytes_per_token": BYTES}
        scene.selector.register_worker(a_worker(worker_id, role="decode", kv_transfer=link))
    pairs = scene.observe(1, 1.1)["pairs"]
    assert (pairs["leaving_hosts"], pairs["entering_hosts"]) == (2, 6)


def test_unknown_speeds_are_unknown_use():
    scene = Paired(gbps=None)
    scene.step(0.5)
    scene.book(1.0, 1000, local="never", decode={"allowed_worker_ids": [3]})
    scene.book(1.0, 1000, local="never", decode={"allowed_worker_ids": [4]})
    pairs = scene.observe(1, 1.1)["pairs"]
    assert (pairs["link_seconds"], pairs["link_backlog_s"]) == (None, None)
    assert pairs["moved_tokens"] == 2000


def test_a_prefill_on_a_decode_rank_is_no_sample_of_prefill_ranks():
    scene = Paired()
    scene.step(1.0)
    scene.step(2.0)
    local, _ = scene.book(2.1, 40, local="always")
    remote, _ = scene.book(2.1, 24, local="never")
    for name in (local, remote):
        scene.selector.complete_prefill(name, 2.6)
        scene.selector.run_pending(2.6)
        scene.selector.report_first_token(name, 2.7)
    seen = scene.observe(1, 2.9)
    assert [sample[:2] for sample in seen["prefill_s"]] == [[24.0, 0.5]]
    assert sum(seen["ttft_s"]["counts"]) == 2


def test_a_pair_that_lost_its_prefill_leg_still_counts_once():
    scene = Paired()
    scene.step(0.5)
    name, pair = scene.book(1.0, 40, local="never")
    scene.selector.delete_worker(pair.legs[0].worker_id, 1.1)
    scene.selector.run_pending(1.1)
    moved = scene.selector.pairs.move_leg(name, "prefill", 1.2)
    assert moved.path == "remote"
    seen = scene.observe(1, 1.3)
    assert (seen["arrivals"], seen["pairs"]["remote"]) == (1, 1)
    assert seen["pairs"]["moved_tokens"] == 80
