"""Tests of the monitor against real HTTP servers: good servers, and every kind of bad server."""

import asyncio
import logging
import socket
from collections import Counter

import pytest

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters import engine_metrics
from select_service.adapters.http_get import HttpClient
from select_service.core.identity import Rank
from select_service.core.workers.engine_load import EngineLoads, EngineReading, EngineTarget
from select_service.net.http_client.reading_budget import TURN_STEPS_MAX
from select_service.net.urls import metrics_url_error
from tests.adapters.metric_servers import (
    Owner,
    Page,
    monitor,
    send_parts,
    send_repeatedly,
    serving,
    speaking,
    until,
)
from tests.builders.engine_metric_texts import recorded, vllm
from tests.builders.polling import PATIENCE_S

OK = b"HTTP/1.1 200 OK\r\n"
SHORT_S = 0.1
"""Timeout that is meant to run out, seconds."""


def a_target(url, worker_id=1, dp_ranks=(0,)):
    return EngineTarget(worker_id, url, dp_ranks)


@pytest.mark.parametrize(("engine", "deferred"), [("vllm-0.33.0", 1), ("sglang-0.5.23", 0)])
async def test_the_recorded_text_of_an_engine_becomes_readings(engine, deferred):
    async with serving(Page(recorded(f"{engine}-2"))) as url:
        owner = Owner(a_target(url, dp_ranks=(0, 1)))
        async with monitor(owner) as metrics:
            assert await owner.next_of(1) == {
                0: EngineReading(0.625, 3 + deferred, 7),
                1: EngineReading(0.75, 5 + deferred, 8),
            }
            assert metrics.counts["ok"] >= 1


async def test_every_scrape_uses_the_same_connection():
    page = Page(vllm(0.25))
    async with serving(page) as url:
        owner = Owner(a_target(url))
        async with monitor(owner):
            assert (await owner.next_of(1))[0].kv_usage == 0.25
            page.body = vllm(0.5)
            while (await owner.next_of(1))[0].kv_usage != 0.5:
                pass
    assert len(page.requests) > 1
    assert len(page.connections) == 1


async def test_the_query_of_a_url_is_sent_unchanged():
    page = Page(vllm(0.5))
    query = "name[]=vllm:kv_cache_usage_perc&x=%2f+"
    async with serving(page) as url:
        owner = Owner(a_target(f"{url}?{query}"))
        async with monitor(owner):
            await owner.next_of(1)
    assert page.requests[0].raw_path == f"/metrics?{query}"


BROKEN = [
    ("timeout", "no complete answer", send_parts(hangs=True)),
    ("timeout", "no complete answer", send_parts(OK + b"content-length: 9\r\n\r\nvll", hangs=True)),
    ("timeout", "no complete answer", send_repeatedly(OK + b"\r\n", b"a", pause_s=0.01)),
    ("timeout", "no complete answer", send_repeatedly(OK, b"x-more: 1\r\n", pause_s=0.01)),
    ("unreachable", "the connection was closed before an answer came", send_parts()),
    ("http_status", "status 500", send_parts(b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n")),
    ("too_large", "4194304 bytes", send_repeatedly(OK + b"\r\n", b"# padding\n" * 10_000)),
    ("unreadable", "not HTTP", send_parts(b"\x00\xff\x16\x03 is no HTTP\r\n\r\n")),
    ("unreadable", "more than 256 headers", send_repeatedly(OK, b"x-more: 1\r\n" * 1000)),
    ("unreadable", "", send_parts(OK + b"content-length: 99\r\n\r\n" + vllm(0.5))),
    (
        "unreadable",
        "response incomplete",
        send_parts(OK + b"content-length: 999\r\n\r\n" + vllm(0.5)),
    ),
    ("unreadable", "not HTTP", send_parts(OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n")),
    ("unreadable", "middle of a line", send_parts(OK + b"\r\n" + vllm(0.5, 1, 12)[:-2])),
    (
        "unreadable",
        "content-encoding is gzip",
        send_parts(OK + b"content-encoding: gzip\r\n\r\n" + vllm(0.5)),
    ),
    ("unreadable", "implausible", send_parts(OK + b"\r\n" + vllm("NaN", "NaN", "NaN"))),
    (
        "no_metric",
        "no known vLLM or SGLang metric",
        send_parts(OK + b"\r\n" + bytes(range(256)) * 400),
    ),
    ("no_metric", "no known vLLM or SGLang metric", send_parts(OK + b"\r\n<html>sign in</html>\n")),
    ("no_metric", "no known vLLM or SGLang metric", send_parts(OK + b"\r\n")),
]


@pytest.mark.parametrize(("result", "error", "speak"), BROKEN)
async def test_a_broken_endpoint_is_a_failed_scrape(result, error, speak):
    timeout_s = SHORT_S if result == "timeout" else PATIENCE_S
    async with speaking(speak) as url:
        owner = Owner(a_target(url))
        async with monitor(owner, timeout_s=timeout_s) as metrics:
            assert error in await owner.next_of(1)
            assert {name for name, count in metrics.counts.items() if count} == {result}


async def test_a_port_without_a_server_is_unreachable():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    owner = Owner(a_target(f"http://127.0.0.1:{port}/metrics"))
    async with monitor(owner) as metrics:
        told = await owner.next_of(1)
        assert told == f"cannot connect to 127.0.0.1:{port}: Connection refused"
        assert metrics.counts["unreachable"] >= 1


async def test_a_redirect_is_not_followed():
    elsewhere = Page(vllm(0.5))
    async with serving(elsewhere) as there, serving(Page(b"", 307, {"location": there})) as url:
        owner = Owner(a_target(url))
        async with monitor(owner) as metrics:
            assert await owner.next_of(1) == "status 307"
            assert metrics.counts["http_status"] >= 1
    assert elsewhere.requests == []


@pytest.mark.parametrize(
    "url",
    [
        'http://127.0.0.1:1/%zz/../"<>{}|^`?[]&=%',
        "http://127.0.0.1:1?a#",
        "http://xn--0.invalid:1/",
        "http://[::1%25nowhere]:1/",
        "https://127.0.0.1:1/metrics",
    ],
)
async def test_an_admitted_url_never_raises_anything_but_faults_of_the_network(url):
    assert metrics_url_error(url) is None
    owner = Owner(a_target(url))
    async with monitor(owner, timeout_s=1.0):
        assert isinstance(await owner.next_of(1), str)


async def test_a_url_that_the_client_does_not_understand_is_a_failed_scrape():
    owner = Owner(a_target("http://[::1]x/"))
    async with monitor(owner) as metrics:
        assert "no URL of HTTP" in await owner.next_of(1)
        assert metrics.counts["unreachable"] >= 1


async def test_after_a_failure_the_last_reading_counts_until_it_is_stale():
    page, loads = Page(vllm(0.5)), EngineLoads(stale_s=5.0)
    async with serving(page) as url:
        owner = Owner(a_target(url))
        owner.accept_readings = lambda target, readings, now: loads.store_readings(1, readings, now)
        owner.record_failure = lambda target, error, now: loads.record_failure(1, error, now)
        async with monitor(owner):
            await until(lambda: loads.last_reading(Rank(1, 0)) is not None)
            page.status = 503
            await until(lambda: loads.last_failure(1) is not None)
    heard_at = loads.last_reading(Rank(1, 0)).at
    assert loads.take_stale(heard_at + 4.9, 9) == []
    assert loads.kv_usage(Rank(1, 0)) == 0.5
    assert loads.take_stale(heard_at + 5.0, 9) == [Rank(1, 0)]
    assert loads.kv_usage(Rank(1, 0)) is None
    assert loads.last_failure(1).error == "status 503"


async def test_a_hanging_worker_has_one_scrape_at_a_time_and_delays_no_other():
    asked = 0

    async def hang(reader, writer):
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()

    async with speaking(hang) as slow, serving(Page(vllm(0.5))) as fast:
        owner = Owner(a_target(slow, 1), a_target(fast, 2))
        async with monitor(owner) as metrics:
            for _ in range(10):
                assert isinstance(await owner.next_of(2), dict)
            assert asked == 1
            assert metrics.counts["timeout"] == 0


async def test_more_hanging_workers_than_scrapes_at_once_do_not_stop_the_rest(monkeypatch):
    monkeypatch.setattr(engine_metrics, "SCRAPES_MAX", 2)
    async with speaking(send_parts(hangs=True)) as slow, serving(Page(vllm(0.5))) as fast:
        owner = Owner(*(a_target(slow, i) for i in range(5)), a_target(fast, 9))
        async with monitor(owner, timeout_s=SHORT_S):
            for _ in range(2):
                while isinstance(await owner.next_of(9), str):
                    pass  # too slow for the short timeout on a busy machine


async def test_the_scrapes_of_a_fleet_are_spread_over_the_interval():
    begun = []
    loop = asyncio.get_running_loop()

    async def note(reader, writer):
        begun.append(loop.time())
        writer.write(OK + b"\r\n" + vllm(0.5))

    async with speaking(note) as url:
        owner = Owner(*(a_target(url, i) for i in range(8)))
        async with monitor(owner, interval_s=0.4):
            await until(lambda: len(begun) >= 8)
    assert begun[7] - begun[0] >= 0.2


async def test_a_worker_that_left_is_neither_scraped_nor_logged(caplog):
    asked, gone = [], asyncio.Event()

    async def hold(reader, writer):
        asked.append(1)
        await gone.wait()
        writer.write(b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n")

    async with speaking(hold) as url:
        owner = Owner(a_target(url))
        async with monitor(owner):
            await until(lambda: asked == [1])
            owner.targets.clear()
            gone.set()
            await owner.next_of(1)
            rounds = owner.rounds
            await until(lambda: owner.rounds > rounds + 3)
    assert asked == [1]
    assert caplog.records == []


async def test_a_worker_with_a_new_metrics_endpoint_is_scraped_there():
    old, new = Page(vllm(0.25)), Page(vllm(0.75))
    async with serving(old) as before, serving(new) as after:
        owner = Owner(a_target(before))
        async with monitor(owner):
            assert (await owner.next_of(1))[0].kv_usage == 0.25
            owner.targets[:] = [a_target(after)]
            while (await owner.next_of(1))[0].kv_usage != 0.75:
                pass
            n_old = len(old.requests)
            await owner.next_of(1)
            await owner.next_of(1)
            assert len(old.requests) == n_old


async def test_an_episode_is_one_warning_and_one_line_when_it_is_over(caplog):
    caplog.set_level(logging.INFO, "select_service.engine_metrics")
    page = Page(b"", 500)
    async with serving(page) as url:
        owner = Owner(a_target(url, 7))
        async with monitor(owner):
            for _ in range(3):
                assert await owner.next_of(7) == "status 500"
            page.status, page.body = 200, vllm(0.5)
            while isinstance(await owner.next_of(7), str):
                pass
            await owner.next_of(7)
            page.status = 404
            while isinstance(await owner.next_of(7), dict):
                pass
    place = {"worker_id": 7, "url": url}
    assert [(r.levelname, r.message, r.fields) for r in caplog.records] == [
        ("WARNING", "engine metrics scrape failed", place | {"error": "status 500"}),
        ("INFO", "engine metrics recovered", place),
        ("WARNING", "engine metrics scrape failed", place | {"error": "status 404"}),
    ]


async def test_a_failure_looks_up_its_own_worker_only():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    targets = [a_target(f"http://127.0.0.1:{port}/metrics", worker_id=n) for n in range(30)]
    owner = Owner(*targets)
    async with monitor(owner, interval_s=0.0, timeout_s=PATIENCE_S):
        for worker_id in range(30):
            await owner.next_of(worker_id)
        assert len(owner.looked_up) <= 30 * (owner.rounds + 1)


async def test_a_long_text_is_read_in_steps(monkeypatch):
    """Check that no turn of the loop takes more steps than the budget allows."""
    turn, steps = 0, Counter()
    reading = engine_metrics.parse_in_steps

    def noting(text, dp_ranks):
        inner = reading(text, dp_ranks)
        while True:
            steps[turn] += 1
            try:
                next(inner)
            except StopIteration as end:
                return end.value
            yield

    async def count_turns():
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(engine_metrics, "parse_in_steps", noting)
    many = b"# padding\n" * 30_000 + b"".join(vllm(0.25, engine=n) for n in range(200))
    counting = asyncio.create_task(count_turns())
    async with serving(Page(many)) as url:
        owner = Owner(*(a_target(url, n, dp_ranks=tuple(range(200))) for n in range(6)))
        async with monitor(owner, interval_s=PATIENCE_S / 100):
            for worker_id in range(6):
                assert 199 in await owner.next_of(worker_id)
    counting.cancel()
    assert sum(steps.values()) > 6 * 30
    assert max(steps.values()) <= TURN_STEPS_MAX


async def test_a_bug_ends_the_task_with_its_error():
    def broken(target, readings, now):
        raise AssertionError("a bug")

    async with serving(Page(vllm(0.5))) as url:
        owner = Owner(a_target(url))
        owner.accept_readings = broken
        metrics = engine_metrics.EngineMetricsScraper(
            owner, HttpClient(Resolver()), interval_s=0.02, timeout_s=10.0
        )
        task = metrics.start()
        await asyncio.wait([task], timeout=PATIENCE_S)
        with pytest.raises(ExceptionGroup) as caught:
            task.result()
        await metrics.stop()
    assert caught.group_contains(AssertionError, match="a bug")


async def test_stopping_aborts_hanging_scrapes():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hold(reader, writer):
        begun.set()
        await reader.read()
        ended.set()

    async with speaking(hold) as url:
        owner = Owner(a_target(url))
        async with monitor(owner):
            await begun.wait()
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()
