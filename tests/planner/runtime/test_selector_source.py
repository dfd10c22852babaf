"""Tests of observations added up over selectors; unknown values stay unknown."""

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp import web

from select_service.planner.connectors.virtual_connector import VirtualConnector
from select_service.planner.core.tick_input import EngineLimits, Role
from select_service.planner.planner_http import PlannerHttpClient
from select_service.planner.plugins.plugin_host import PluginHost
from select_service.planner.runtime.deployment_runner import REGISTRATION_S, DeploymentSources
from select_service.planner.runtime.selector_observation import (
    CombinedObservation,
    SelectorHistogram,
    SelectorObservation,
    combine_observations,
    part_below,
    to_length_bins,
)
from select_service.planner.runtime.selector_source import SelectorSource
from tests.planner.runtime.serving import served

EDGES = {"tokens": [1.0, 10.0, 100.0, 1000.0], "seconds": [0.01, 0.1, 1.0, 10.0]}


def rank(worker_id: int, **fields: Any) -> dict[str, Any]:
    return {
        "worker_id": worker_id,
        "dp_rank": 0,
        "role": "aggregated",
        "active_prefill_tokens": 0,
        "active_blocks": 0,
        "live_requests": 0,
        "block_size": 16,
        "total_kv_blocks": 1000,
        "max_num_batched_tokens": 2048,
        **fields,
    }


def answer(**fields: Any) -> dict[str, Any]:
    empty = {"counts": [0, 0, 0], "sum": 0.0}
    return {
        "model_name": "m",
        "tenant_id": "default",
        "window_s": 60.0,
        "complete": True,
        "arrivals": 0,
        "arrival_variation": None,
        "rejected": {},
        "queued_now": 0,
        "queued_tokens": 0,
        "isl": empty,
        "uncached_isl": empty,
        "osl": empty,
        "kv_hit_rate": None,
        "prefill_s": [],
        "decode_s": [],
        "ttft_s": empty,
        "itl_s": empty,
        "bins": EDGES,
        "ranks": [],
        **fields,
    }


def combine_answers(*answers: dict[str, Any]) -> CombinedObservation:
    found = [msgspec.convert(each, SelectorObservation) for each in answers]
    return combine_observations(found, window_s=60.0, ttft_s=1.0, itl_s=0.1)


BUSY = answer(
    arrivals=10,
    arrival_variation=1.0,
    rejected={"busy": 2},
    queued_now=1,
    queued_tokens=300,
    isl={"counts": [0, 2, 8], "sum": 4000.0},
    uncached_isl={"counts": [0, 5, 5], "sum": 1000.0},
    osl={"counts": [0, 4, 0], "sum": 200.0},
    ttft_s={"counts": [3, 0, 1], "sum": 2.0},
    prefill_s=[[100.0, 0.5, 20.0]],
    decode_s=[[3.0, 900.0, 0.02]],
    ranks=[rank(1, active_blocks=5, live_requests=2), rank(2, role="prefill")],
)


def test_two_selectors_are_added() -> None:
    other = answer(arrivals=30, arrival_variation=3.0, isl={"counts": [4, 0, 0], "sum": 16.0})
    traffic = combine_answers(BUSY, other).traffic
    assert (traffic.requests, traffic.rejected) == (40.0, 2.0)
    assert (traffic.queued_requests, traffic.queued_tokens) == (1.0, 300.0)
    assert traffic.isl == pytest.approx(4016.0 / 14)
    assert traffic.osl == 50.0
    assert traffic.kv_hit_rate == pytest.approx(1.0 - 1000.0 / 4016.0)
    assert traffic.arrival_variation == pytest.approx(2.5)
    assert traffic.prefill_samples[0].seconds == 0.5
    assert traffic.decode_samples[0].kv_tokens == 900.0
    assert traffic.ttft_met == pytest.approx(0.75)
    assert traffic.itl_met is None


def test_an_idle_window_is_zero_and_an_uncovered_window_unknown() -> None:
    assert combine_answers(answer()).traffic.requests == 0.0
    assert combine_answers(BUSY, answer(complete=False)).traffic.requests is None
    assert combine_answers().traffic.requests is None


def test_ranks_by_role_with_the_highest_load() -> None:
    more = answer(ranks=[rank(1, active_blocks=9, live_requests=3), rank(3, state="unhealthy")])
    found = combine_answers(BUSY, more)
    assert found.workers == {Role.PREFILL: 1, Role.DECODE: 1}
    (busy,) = found.passes[Role.DECODE]
    assert (busy.worker, busy.decode_kv_tokens, busy.decode_requests) == ("1", 144, 3)
    assert found.limits[Role.DECODE] == EngineLimits(
        max_num_batched_tokens=2048, max_kv_tokens=16000
    )


def test_a_rank_that_one_selector_took_out_of_rotation_does_not_count() -> None:
    found = combine_answers(answer(ranks=[rank(1)]), answer(ranks=[rank(1, weight=0.0)]))
    assert found.workers[Role.DECODE] == 0


def test_bins_keep_the_sum() -> None:
    found = to_length_bins(SelectorHistogram([0, 5, 5], 1000.0), EDGES["tokens"])
    assert found is not None
    assert sum(m * c for m, c in zip(found.means, found.counts, strict=True)) == pytest.approx(1000)
    assert to_length_bins(SelectorHistogram([0, 0, 0], 0.0), EDGES["tokens"]) is None


@pytest.mark.parametrize(
    ("limit", "part"), [(0.001, 0.0), (0.1, 0.5), (0.55, 0.625), (1.0, 0.75), (99.0, 1.0)]
)
def test_the_part_that_kept_a_limit(limit: float, part: float) -> None:
    assert part_below(SelectorHistogram([2, 1, 1], 0.0), EDGES["seconds"], limit) == pytest.approx(
        part
    )


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_silent_selector_makes_traffic_unknown_until_removed() -> None:
    clock = Clock()
    async with served(lambda request: web.json_response(BUSY)) as url, PlannerHttpClient() as http:
        urls = [url, "http://127.0.0.1:9"]
        source = SelectorSource(urls, http, "m", "default", clock)

        async def requests() -> float | None:
            found = await source.read_observations(60.0, ttft_s=1.0, itl_s=0.1)
            assert found is not None
            assert found.workers[Role.DECODE] == 1
            return found.traffic.requests

        assert await requests() is None
        clock.now = 59.0
        assert await requests() is None
        clock.now = 60.0
        assert await requests() == 10.0
        assert list(source.faults) == ["http://127.0.0.1:9"]


STRANGE = "from a server that is not a selector: check the URL"


@pytest.mark.parametrize(
    ("answered", "fault"),
    [
        (lambda request: web.Response(status=500), f"status 500 {STRANGE}"),
        (lambda request: web.Response(status=404, text="<h1>Hi</h1>"), f"status 404 {STRANGE}"),
        (
            lambda request: web.json_response(
                {"error": "?", "code": "route_not_found"}, status=404
            ),
            "status 404: ?",
        ),
        (lambda request: web.Response(text="{}"), "check that this is the URL of a selector"),
        (
            lambda request: web.json_response(answer(arrivals="many")),
            "the answer is not an observation (Expected `int`",
        ),
    ],
)
async def test_a_failing_selector_is_a_fault(answered: Any, fault: str) -> None:
    async with served(answered) as url, PlannerHttpClient() as http:
        source = SelectorSource([url], http, "m", "default", Clock())
        found, faults = await source.read_observations(60.0, ttft_s=1.0, itl_s=0.1), source.faults
    assert found is None
    (said,) = faults.values()
    assert fault in said
    assert "<h1>" not in said


def test_a_model_unknown_to_all_selectors_is_reported() -> None:
    refusal = {"error": "nothing is known of model=m", "code": "not_found"}

    async def unknown(*answers: web.Response) -> tuple[str | None, float | None]:
        async with (
            served(lambda request: web.json_response(refusal, status=404)) as one,
            served(lambda request: answers[0]) as other,
            PlannerHttpClient() as http,
        ):
            urls = [one, other] if answers else [one]
            source = SelectorSource(urls, http, "m", "default", Clock())
            found = await source.read_observations(60.0, ttft_s=1.0, itl_s=0.1)
            assert found is not None
            assert source.faults == {}
            return source.unknown_model, found.traffic.requests

    assert asyncio.run(unknown()) == ("nothing is known of model=m", None)
    assert asyncio.run(unknown(web.json_response(BUSY))) == (None, 10.0)


async def test_the_question() -> None:
    asked: list[web.Request] = []

    def remember(request: web.Request) -> web.Response:
        asked.append(request)
        return web.json_response(answer())

    async with served(remember) as url, PlannerHttpClient() as http:
        source = SelectorSource([url + "/"], http, "a b", "t", Clock())
        await source.read_observations(7200.0, ttft_s=1.0, itl_s=0.1)
    assert asked[0].path == "/planner/observation"
    assert dict(asked[0].query) == {"model_name": "a b", "tenant_id": "t", "window_s": "3600"}


@pytest.mark.parametrize("answers", [(), (answer(complete=False),), (BUSY, answer(complete=False))])
async def test_a_registry_that_is_not_whole_is_not_zero_workers(answers: Any) -> None:
    nobody = PluginHost((), lambda: 0.0)
    sources = DeploymentSources(None, None, None, nobody)
    sources.last_observation = combine_answers(*answers)
    assert await sources.serving_workers() is None
    connector = VirtualConnector(None, sources.serving_workers)
    assert await connector.read() == {}
    sources.last_observation = combine_answers(BUSY)
    assert await sources.serving_workers() == sources.last_observation.workers


async def test_workers_that_register_again_are_all_there_when_as_many_have() -> None:
    """The workers register again in turn with a restarted selector."""

    def ranks(count: int) -> dict[str, Any]:
        return answer(ranks=[rank(at) for at in range(count)])

    nobody = PluginHost((), lambda: 0.0)
    clock = Clock()
    sources = DeploymentSources(None, None, None, nobody, clock)

    async def count_workers(seen: CombinedObservation | None) -> int | None:
        sources.last_observation = seen
        found = await sources.serving_workers()
        return None if found is None else sum(found.values())

    assert await count_workers(combine_answers(ranks(3))) == 3
    assert await count_workers(combine_answers(ranks(2))) == 2  # one worker has left
    assert await count_workers(combine_answers(ranks(3))) == 3
    for gone in (None, combine_answers(), combine_answers(answer(complete=False))):
        assert await count_workers(gone) is None
        assert await count_workers(combine_answers(ranks(1))) is None
        assert await count_workers(combine_answers(ranks(2))) is None
        assert await count_workers(combine_answers(ranks(3))) == 3
        assert await count_workers(combine_answers(ranks(2))) == 2
        assert await count_workers(combine_answers(ranks(3))) == 3
    assert await count_workers(None) is None
    assert await count_workers(combine_answers(ranks(1))) is None
    clock.now += REGISTRATION_S
    assert await count_workers(combine_answers(ranks(1))) == 1


def pairs(**fields: Any) -> dict[str, Any]:
    return {
        "remote": 6,
        "local": 2,
        "local_uncached_isl": {"counts": [2, 0, 0], "sum": 8.0},
        "moved_tokens": 900,
        "link_seconds": 12.0,
        "leaving_hosts": 2,
        "entering_hosts": 4,
        "link_backlog_s": 0.5,
        **fields,
    }


def test_pairs_of_all_selectors_are_added_and_the_links_of_the_fewer_hosts_count() -> None:
    uncached = {"counts": [2, 4, 2], "sum": 2008.0}
    one = answer(arrivals=8, isl=uncached, uncached_isl=uncached, pairs=pairs())
    other = answer(arrivals=8, isl=uncached, uncached_isl=uncached, pairs=pairs(link_backlog_s=2.0))
    found = combine_answers(one, other).traffic.pairs
    assert found is not None
    assert (found.remote, found.local, found.moved_tokens) == (12.0, 4.0, 1800.0)
    assert found.local_share == 0.25
    assert found.local_uncached is not None
    assert found.local_uncached.mean == pytest.approx(4.0)
    assert found.remote_uncached is not None
    assert found.remote_uncached.mean * found.remote_uncached.total == pytest.approx(4000.0)
    assert found.link_use == pytest.approx(24.0 / (2 * 60.0))
    assert found.link_backlog_s == 2.0
    unknown = combine_answers(
        one, answer(pairs=pairs(link_seconds=None, link_backlog_s=None))
    ).traffic.pairs
    assert unknown is not None
    assert (unknown.link_use, unknown.link_backlog_s) == (None, None)
    assert combine_answers(one, answer()).traffic.pairs is not None
    assert combine_answers(answer(pairs=pairs(remote=0, local=0)), answer()).traffic.pairs is None
