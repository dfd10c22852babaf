"""Tests of lookups in stores behind real sockets: good, slow, and every kind of bad store."""

import asyncio
import contextlib
import json
from itertools import pairwise
from time import monotonic

import pytest

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.http_get import HttpClient
from select_service.adapters.shared_caches import mooncake_source
from select_service.adapters.shared_caches import shared_caches as lookups
from select_service.adapters.shared_caches.cache_source import FoundTokens, LookedUpPrompt
from select_service.adapters.shared_caches.lmcache_source import LMCacheSource
from select_service.adapters.shared_caches.mooncake_source import MooncakeSource
from select_service.adapters.shared_caches.shared_caches import ModelCache, SharedCaches
from select_service.core.shared_caches import prefix_memory, source_breaker
from select_service.core.shared_caches.page_keys import PAGES_MAX, KeyLayout
from tests.adapters.metric_servers import send_parts, send_repeatedly, speaking
from tests.adapters.shared_caches.fake_stores import (
    FakeController,
    FakeMaster,
    serving,
    sglang_pages,
)
from tests.builders import a_select
from tests.builders.polling import PATIENCE_S, eventually_on_loop

SIZE, TOKENS = 4, list(range(42))
OK = b"HTTP/1.1 200 OK\r\n"
SHORT_S = 0.05
"""Time limit that is meant to run out, seconds."""


@contextlib.asynccontextmanager
async def looking(url, make, limit_s=PATIENCE_S, link_gbps=None):
    """Yield shared caches with one source for the model `m`."""
    http = HttpClient(Resolver())
    cache = ModelCache("m", "kind", url, make(http, url), link_gbps)
    caches = SharedCaches([cache], http, limit_s)
    try:
        yield caches
    finally:
        await caches.close()


def mooncake(http, url, **layout):
    return MooncakeSource(http, url, KeyLayout(**layout))


def lmcache(http, url, sharing="p2p"):
    return LMCacheSource(http, url, sharing)


async def look_up_prompt(caches, tokens=TOKENS, is_eagle=False, **fields):
    request = a_select(0, **{"token_ids": list(tokens), **fields})
    return await caches.look_up(request, SIZE, is_eagle)


def stored_keys(pages, suffixes=("_0_k", "_0_v"), tag=""):
    return [f"{tag}{page}{suffix}" for page in pages for suffix in suffixes]


@pytest.mark.parametrize(
    ("layout", "suffixes"),
    [
        ({}, ["_0_k", "_0_v"]),
        ({"heads": 2}, ["_0_k", "_0_v", "_1_k", "_1_v"]),
        ({"heads": 1, "stages": 2}, ["_0_0_k", "_0_0_v", "_0_1_k", "_0_1_v"]),
        ({"has_mla": True}, ["__k"]),
        ({"has_mla": True, "stages": 2}, ["_0_k", "_1_k"]),
        ({"tag": "t"}, ["_0_k", "_0_v"]),
    ],
)
async def test_a_page_counts_if_all_of_its_parts_are_in_the_store(layout, suffixes):
    tag = "t_" if "tag" in layout else ""
    pages = sglang_pages(TOKENS, SIZE)
    master = FakeMaster(*stored_keys(pages[:7], suffixes, tag))
    async with (
        serving(master) as url,
        looking(url, lambda http, at: mooncake(http, at, **layout)) as caches,
    ):
        assert (await look_up_prompt(caches))[:2] == ("hit", 7 * SIZE)
        assert await look_up_prompt(caches, range(100, 140)) == ("miss", 0, {}, None)
    master.keys.discard(f"{tag}{pages[3]}{suffixes[-1]}")
    async with (
        serving(master) as url,
        looking(url, lambda http, at: mooncake(http, at, **layout)) as caches,
    ):
        assert (await look_up_prompt(caches)).tokens == 3 * SIZE


async def test_neighbours_in_pairs_name_the_pages_of_eagle():
    pairs = list(pairwise(TOKENS))
    master = FakeMaster(*stored_keys(sglang_pages(pairs, SIZE)))
    async with serving(master) as url, looking(url, mooncake) as caches:
        assert (await look_up_prompt(caches, is_eagle=True)).tokens == len(pairs) // SIZE * SIZE
        assert (await look_up_prompt(caches)).outcome == "miss"


async def test_lookups_are_remembered_for_a_short_time(monkeypatch):
    pages, now = sglang_pages(TOKENS, SIZE), monotonic()
    master = FakeMaster(*stored_keys(pages[:5]))
    async with serving(master) as url, looking(url, mooncake) as caches:
        monkeypatch.setattr(mooncake_source, "monotonic", lambda: now)
        assert (await look_up_prompt(caches)).tokens == 5 * SIZE
        master.keys.update(stored_keys(pages))
        # The prefix is the same, the end is not.
        assert (await look_up_prompt(caches, [*TOKENS[:30], 7])).tokens == 5 * SIZE
        assert len(master.requests) == 1
        later = now + prefix_memory.REMEMBERED_S
        monkeypatch.setattr(mooncake_source, "monotonic", lambda: later)
        assert (await look_up_prompt(caches)).tokens == 10 * SIZE


async def test_long_prompts_take_several_requests_and_end_at_a_limit():
    tokens = [n % 1000 for n in range((PAGES_MAX + 100) * SIZE)]
    master = FakeMaster(*stored_keys(sglang_pages(tokens, SIZE)))
    async with serving(master) as url, looking(url, mooncake) as caches:
        assert (await look_up_prompt(caches, tokens)).tokens == PAGES_MAX * SIZE
        assert sum(map(len, master.requests)) == 2 * PAGES_MAX


@pytest.mark.parametrize(
    ("sharing", "storages", "shared", "own"),
    [
        ("p2p", ["LocalCPUBackend"], 40, {"e0": 40}),
        ("p2p", ["LocalCPUBackend", "LocalDiskBackend"], 40, {}),
        ("remote", ["LocalCPUBackend"], 0, {"e0": 40}),
        ("remote", ["RemoteBackend"], 40, {}),
        ("remote", ["RemoteBackend", "LocalCPUBackend"], 16, {}),
    ],
)
async def test_the_controller_names_engines_and_storages(sharing, storages, shared, own):
    controller = FakeController()
    for number, storage in reversed(list(enumerate(storages))):
        controller.store(TOKENS, f"e{number}", storage, first=2 * number)
    async with (
        serving(controller) as url,
        looking(url, lambda http, at: lmcache(http, at, sharing), link_gbps=25.0) as caches,
    ):
        assert await look_up_prompt(caches) == ("hit", shared, own, 25.0)
        assert await look_up_prompt(caches) == ("hit", shared, own, 25.0)
        assert controller.requests == [TOKENS]
        assert (await look_up_prompt(caches, [9, 9, 9])).outcome == "miss"


@pytest.mark.parametrize(
    "fields",
    [
        {"token_ids": None, "block_hashes": [1], "sequence_hashes": [1], "isl_tokens": 5},
        {"lora_name": "a"},
        {"cache_salt": "s"},
        {"mm_routing_info": {"routing_token_ids": [1, 2, 3, 4, 5]}},
        {"block_mm_infos": [{"mm_objects": [{"mm_hash": 7, "offsets": [[0, 3]]}]}]},
    ],
)
async def test_prompts_with_other_keys_are_not_looked_up(fields):
    master = FakeMaster()
    async with serving(master) as url, looking(url, mooncake) as caches:
        assert (await look_up_prompt(caches, **fields)).outcome == "unsupported"
    assert not master.requests


def send_body(body, head=b""):
    return send_parts(OK + head + b"content-length: %d\r\n\r\n" % len(body) + body)


DEEP = b'{"success":true,"x":' + b"[" * 100_000
BAD_ANSWERS = {
    "no JSON": send_body(b"<html>"),
    "another shape": send_body(b'{"success": 1, "data": []}'),
    "not successful": send_body(b'{"success": false}'),
    "deep": send_body(DEEP),
    "no UTF-8": send_body(b'{"success":true,"data":{"\xff":{"ok":true}}}'),
    "compressed": send_body(b"{}", b"content-encoding: gzip\r\n"),
    "huge": send_body(b'{"success": true, "data": {}}' + b" " * (2 << 20)),
    "endless": send_repeatedly(
        OK + b"transfer-encoding: chunked\r\n\r\n", b"8\r\n        \r\n" * 512
    ),
    "status": send_parts(b"HTTP/1.1 503 Not Now\r\ncontent-length: 0\r\n\r\n"),
    "redirect": send_parts(b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n"),
    "cut": send_parts(OK + b"content-length: 100\r\n\r\n{"),
    "nothing": send_parts(),
}


async def test_an_engine_with_nothing_is_no_hit():
    body = json.dumps({"layout_info": {"e0": ["LocalCPUBackend", 0]}}).encode()
    async with speaking(send_body(body)) as url, looking(url, lmcache) as caches:
        assert await look_up_prompt(caches) == ("miss", 0, {}, None)


@pytest.mark.parametrize("speak", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
@pytest.mark.parametrize("make", [mooncake, lmcache])
async def test_a_bad_answer_gives_no_credit_and_is_counted(speak, make):
    async with speaking(speak) as url, looking(url, make) as caches:
        assert await look_up_prompt(caches) == ("failed", 0, {}, None)
        (status,) = caches.list_status()
        assert status.outcomes == {"failed": 1}
        assert status.last_error
        assert len(status.last_error) <= 200


@pytest.mark.parametrize(
    "layout",
    [
        {"e": ["LocalCPUBackend", -1]},
        {"e": ["LocalCPUBackend", len(TOKENS) + 1]},
        {"e": ["LocalCPUBackend", 2**70]},
        {"e": ["LocalCPUBackend", 1.5]},
        {"e": ["LocalCPUBackend"]},
        {"e": None},
        {f"e{n}": ["LocalCPUBackend", 8] for n in range(5000)},
    ],
    ids=["negative", "too long", "wide", "part", "short", "null", "many"],
)
async def test_numbers_out_of_range_are_refused(layout):
    body = json.dumps({"layout_info": layout}).encode()
    async with speaking(send_body(body)) as url, looking(url, lmcache) as caches:
        assert await look_up_prompt(caches) == ("failed", 0, {}, None)


async def test_the_time_of_a_request_counts_late_answers_but_none_from_memory():
    now, may_answer = 0.0, asyncio.Event()

    class Slow:
        """Source with a delay per request."""

        async def find_tokens(self, prompt):
            nonlocal now
            await may_answer.wait()
            requests, each_s = steps.pop(0)
            now += requests * each_s
            return FoundTokens(4, requests=requests)

    cache = ModelCache("m", "mooncake", "http://a", Slow(), None)
    steps, means = [(1, 0.08), (0, 5.0), (2, 0.16)], []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lookups, "monotonic", lambda: now)
        while steps:
            may_answer.clear()
            assert (await cache.look_up(LookedUpPrompt(TOKENS, SIZE, False), 0.0))[0] == "timeout"
            may_answer.set()
            await eventually_on_loop(lambda: not cache.status().in_flight)
            means.append(cache.status().request_s)
    assert means == pytest.approx([0.08, 0.08, 0.08 + (0.16 - 0.08) / 8])
    assert cache.status().is_answering is False


async def test_a_late_answer_delays_no_request_and_serves_the_next():
    master = FakeMaster(*stored_keys(sglang_pages(TOKENS, SIZE)))
    master.answers.clear()
    async with serving(master) as url, looking(url, mooncake, SHORT_S) as caches:
        assert await look_up_prompt(caches) == ("timeout", 0, {}, None)
        assert caches.list_status()[0].in_flight
        master.answers.set()
        await eventually_on_loop(lambda: not caches.list_status()[0].in_flight)
        assert (await look_up_prompt(caches)).tokens == 40
        assert len(master.requests) == 1


async def test_a_hanging_store_is_left_alone_until_a_trial_succeeds(monkeypatch):
    master = FakeMaster(*stored_keys(sglang_pages(TOKENS, SIZE)))
    master.answers.clear()
    monkeypatch.setattr(source_breaker, "FAILURES_MAX", 3)
    async with serving(master) as url, looking(url, mooncake, SHORT_S) as caches:
        outcomes = [(await look_up_prompt(caches)).outcome for _ in range(5)]
        assert outcomes == ["timeout"] * 3 + ["open"] * 2
        assert caches.list_status()[0].is_open
        assert len(master.requests) <= 3
        master.answers.set()
        caches._limit_s = PATIENCE_S
        later = monotonic() + source_breaker.OPEN_S
        monkeypatch.setattr(lookups, "monotonic", lambda: later)
        assert (await look_up_prompt(caches)).outcome == "hit"
        assert not caches.list_status()[0].is_open
        assert caches.list_status()[0].outcomes == {"timeout": 3, "open": 2, "hit": 1}


async def test_look_ups_at_once_are_bounded(monkeypatch):
    monkeypatch.setattr(lookups, "LOOKUPS_MAX", 4)
    master = FakeMaster()
    master.delay_s = SHORT_S
    async with serving(master) as url, looking(url, mooncake) as caches:
        prompts = [[n] * 8 for n in range(10)]
        results = await asyncio.gather(*(look_up_prompt(caches, prompt) for prompt in prompts))
        assert [each.outcome for each in results] == ["miss"] * 4 + ["busy"] * 6
        assert len(master.requests) == 4


async def test_a_port_without_a_server_is_a_failure_and_the_end_aborts_lookups():
    async with looking("http://127.0.0.1:1", mooncake) as caches:
        assert (await look_up_prompt(caches)).outcome == "failed"
    master = FakeMaster()
    master.delay_s = PATIENCE_S
    async with serving(master) as url, looking(url, mooncake, SHORT_S) as caches:
        assert (await look_up_prompt(caches)).outcome == "timeout"
        await caches.close()
        assert not caches.list_status()[0].in_flight
