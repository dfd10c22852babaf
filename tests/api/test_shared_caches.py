"""Tests of the whole service with stores behind real sockets: answers, counters, findings, off."""

import asyncio
import contextlib
import json
import threading

import pytest

from tests.adapters.shared_caches.fake_stores import (
    FakeController,
    FakeMaster,
    serving,
    sglang_pages,
)
from tests.builders import worker_body
from tests.builders.in_thread import InThread
from tests.builders.polling import PATIENCE_S, eventually
from tests.builders.running import request

TOKENS = list(range(400))
PROMPT = {"model_name": "m", "token_ids": TOKENS}
LINK = {"bytes_per_token": 131072.0, "link_gbps": 400.0}
PRICE = 131072 * 8 / (400e9 * 0.8) * 20_000
"""Price of fetching a token over LINK, for a rank of 20,000 tokens a second."""
PATIENT = ("--shared-cache-timeout-ms", "1000")


@contextlib.contextmanager
def on_thread(store):
    """Yield the URL of a store that a thread serves."""
    ready, ended, urls = threading.Event(), [], []

    async def serve():
        end = asyncio.Event()
        ended.append((asyncio.get_running_loop(), end))
        async with serving(store) as url:
            urls.append(url)
            ready.set()
            await end.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield urls[0]
    finally:
        loop, end = ended[0]
        loop.call_soon_threadsafe(end.set)
        thread.join(PATIENCE_S)


def write(folder, **models):
    path = folder / "caches.yaml"
    path.write_text(json.dumps({"models": models}))
    return "--shared-caches", str(path)


def register(service, worker_id, **fields):
    facts = {"block_size": 16, "kv_transfer": LINK, "prefill_tokens_per_s": 20_000.0}
    answer = service.call("POST", "/workers", worker_body(worker_id, **facts | fields))
    assert answer.status == 201


def select(service, path="/select", **fields):
    body = {"model_name": "m", "token_ids": TOKENS, **fields}
    answer = service.call("POST", path, body)
    assert answer.status == 200, answer.body
    return answer.body


def metrics(service):
    lines = service.call("GET", "/metrics").body.decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def findings(service):
    return {found["code"]: found for found in service.call("GET", "/doctor").body["findings"]}


def mooncake(url, **fields):
    return {"type": "mooncake", "url": url, "keys": "sglang", **fields}


def test_the_answer_shows_the_credit_apart_from_the_ranks_own_blocks(tmp_path):
    pages = sglang_pages(TOKENS, 16)
    master = FakeMaster(*[f"{page}_0_{part}" for page in pages[:20] for part in "kv"])
    with (
        on_thread(master) as url,
        InThread(*write(tmp_path, m=mooncake(url)), *PATIENT) as service,
    ):
        register(service, 1)
        register(service, 2, kv_transfer={})
        answer = select(service)
        credit = int(320 * (1 - PRICE))
        shared = {"outcome": "hit", "tokens": 320, "credit": credit, "fetch_price": round(PRICE, 6)}
        nothing = {"longest_matched": 0, "gpu": 0, "dp": {"0": 0}, "cpu": 0, "disk": 0}
        # Without a known price the other rank would compute all tokens.
        assert (answer["worker_id"], answer["overlap"]) == (1, nothing | {"shared": shared})
        assert answer["effective_prefill_tokens"] == 400 - credit
        prompt = {"model_name": "m", "token_ids": TOKENS}
        explained = service.call("POST", "/explain", prompt).body["candidates"]
        assert [row.get("shared_credit_tokens") for row in explained] == [credit, None]
        booked = select(service, "/select_and_reserve", reservation_id="r", n=2)
        assert booked["overlap"]["shared"] == shared
        assert booked["effective_prefill_tokens"] == 400 - credit
        assert len(booked["more"]) == 1
        recorded = service.call("GET", "/decisions/r-0").body["candidates"]
        assert [row.get("shared_credit_tokens") for row in recorded] == [credit, None]
        scores = service.call("POST", "/overlap_scores", prompt)
        assert scores.body["shared_cache"] == {
            "enabled": True,
            "total_hit_blocks": 20,
            "ranges": [[0, 20]],
            "error": None,
        }
        assert {row["shared_beyond_device_blocks"] for row in scores.body["workers"]} == {20}
        pinned = select(service, pinned_worker={"worker_id": 2, "dp_rank": 0})
        assert pinned["overlap"]["shared"] == {"outcome": "hit", "tokens": 320, "credit": 0}
        hashed = {"token_ids": None, "block_hashes": [1], "sequence_hashes": [1], "isl_tokens": 20}
        answer = select(service, **hashed)
        assert answer["overlap"]["shared"] == {"outcome": "unsupported", "tokens": 0, "credit": 0}
        counted = metrics(service)
        name = "select_service_shared_cache_lookups_total"
        assert counted[f'{name}{{model_name="m",outcome="unsupported"}}'] == "1.0"
        total = "select_service_shared_cache_credit_tokens_total"
        given = [answer["overlap"]["shared"]["credit"] for answer in (booked, *booked["more"])]
        of_model = counted[total + '{model_name="m",tenant_id="default"}']
        assert float(of_model) == credit + sum(given)
        assert "shared_cache_unpriced" in findings(service)


def test_a_pair_counts_the_cache_for_the_rank_of_the_prefill_only(tmp_path):
    master = FakeMaster(*[f"{p}_0_{part}" for p in sglang_pages(TOKENS[:320], 16) for part in "kv"])
    with (
        on_thread(master) as url,
        InThread(*write(tmp_path, m=mooncake(url)), *PATIENT) as service,
    ):
        register(service, 1, role="prefill")
        register(service, 2, role="decode")
        credit = int(320 * (1 - PRICE))
        shared = {"outcome": "hit", "tokens": 320, "credit": credit, "fetch_price": round(PRICE, 6)}
        explained = service.call("POST", "/explain", {**PROMPT, "pair": True}).body
        for path in ("/select_pair", "/select_pair_and_reserve"):
            answer = select(service, path, reservation_id="r", local="never")
            prefill, decode = answer["legs"]
            assert answer["effective_prefill_tokens"] == prefill["own_work"] == 400 - credit
            assert prefill["overlap"]["shared"] == shared
            assert (prefill["overlap"]["gpu"], prefill["cached_tokens"]) == (0, 0)
            # The decode rank gets all blocks from the prefill rank.
            assert "shared" not in decode["overlap"]
            assert (decode["cached_tokens"], answer["move_tokens"]) == (0, 400)
            assert answer["remote_cost"] == explained["pair"]["remote_cost"]
        (loads,) = service.call("GET", "/loads").body
        prefilling = {row["worker_id"]: row["potential_prefill_tokens"] for row in loads["loads"]}
        assert prefilling == {1: 400 - credit, 2: 0}
        total = "select_service_shared_cache_credit_tokens_total"
        assert metrics(service)[total + '{model_name="m",tenant_id="default"}'] == f"{2 * credit}.0"
        # A lookup is too old for a later move.
        register(service, 3, role="prefill")
        lookups = len(master.requests)
        moved = service.call("POST", "/reservations/r/move", {"leg": "prefill"}).body
        assert [leg["worker_id"] for leg in moved["legs"]] == [3, 2]
        assert moved["effective_prefill_tokens"] == 400
        assert "shared" not in moved["legs"][0]["overlap"]
        assert len(master.requests) == lookups


def test_a_pair_on_one_rank_counts_the_cache_once(tmp_path):
    master = FakeMaster(*[f"{p}_0_{part}" for p in sglang_pages(TOKENS[:320], 16) for part in "kv"])
    with (
        on_thread(master) as url,
        InThread(*write(tmp_path, m=mooncake(url)), *PATIENT) as service,
    ):
        register(service, 1)
        single = select(service)
        answer = select(service, "/select_pair")
        assert answer["path"] == "local"
        assert answer["effective_prefill_tokens"] == single["effective_prefill_tokens"] < 400
        assert {leg["own_work"] for leg in answer["legs"]} == {answer["effective_prefill_tokens"]}
        assert [leg["overlap"] for leg in answer["legs"]] == 2 * [single["overlap"]]


def test_a_policy_without_credit_decides_as_without_a_cache(tmp_path):
    master = FakeMaster(*[f"{p}_0_{part}" for p in sglang_pages(TOKENS, 16) for part in "kv"])
    flags = (*PATIENT, "--policy", "reference")
    with on_thread(master) as url, InThread(*write(tmp_path, m=mooncake(url)), *flags) as service:
        register(service, 1)
        answer = select(service)
        assert answer["overlap"]["shared"] == {
            "outcome": "hit",
            "tokens": 400,
            "credit": 0,
            "fetch_price": round(PRICE, 6),
        }
        assert answer["effective_prefill_tokens"] == 400


def test_a_late_cache_is_shown_counted_and_found(tmp_path):
    master = FakeMaster()
    master.delay_s = PATIENCE_S
    flags = ("--shared-cache-timeout-ms", "2")
    with on_thread(master) as url, InThread(*write(tmp_path, m=mooncake(url)), *flags) as service:
        register(service, 1)
        outcomes = [select(service)["overlap"]["shared"]["outcome"] for _ in range(12)]
        assert set(outcomes[:8]) == {"timeout"}
        assert outcomes[-1] == "open"
        found = findings(service)["shared_cache_unreachable"]
        assert url in found["text"]
        assert metrics(service)['select_service_shared_cache_open{model_name="m"}'] == "1.0"


def caches_of(service):
    return service.call("GET", "/shared_caches").body["caches"]


def test_operators_see_the_state_and_the_hits_of_a_cache(tmp_path):
    pages = sglang_pages(TOKENS, 16)
    master = FakeMaster(*[f"{page}_0_{part}" for page in pages[:20] for part in "kv"])
    with (
        on_thread(master) as url,
        InThread(*write(tmp_path, m=mooncake(url)), *PATIENT) as service,
    ):
        register(service, 1)
        (unused,) = caches_of(service)
        assert unused == {
            "model_name": "m",
            "kind": "mooncake",
            "url": url,
            "answering": None,
            "changed_s": None,
            "breaker_open": False,
            "last_error": None,
            "error_s": None,
            "lookups": {},
            "hit_rate": None,
            "found_tokens": 0,
            "wait_ms": None,
            "request_ms": None,
            "in_flight": 0,
        }
        select(service)
        for token in (1, 2, 3):
            select(service, token_ids=[token] * 40)
        (used,) = caches_of(service)
        assert (used["answering"], used["lookups"]) == (True, {"hit": 1, "miss": 3})
        assert (used["hit_rate"], used["found_tokens"]) == (0.25, 320)
        assert 0 < used["request_ms"] < 1000 * PATIENCE_S
        assert 0 < used["wait_ms"] < 1000 * PATIENCE_S
        master.status = 503
        for token in range(4, 12):
            select(service, token_ids=[token] * 40)
        (failing,) = caches_of(service)
        assert (failing["answering"], failing["breaker_open"]) == (False, True)
        assert failing["lookups"] == {"hit": 1, "miss": 3, "failed": 8}
        assert "503" in failing["last_error"]
        assert 0 <= failing["error_s"] <= failing["changed_s"] <= PATIENCE_S
        assert failing["request_ms"] == used["request_ms"]


def test_without_shared_caches_none_are_listed():
    with InThread() as service:
        assert caches_of(service) == []


@pytest.mark.parametrize("path", ["/select_and_reserve", "/select_pair_and_reserve"])
@pytest.mark.parametrize(("n_prompts", "is_found"), [(10, True), (50, False)])
def test_a_cache_that_never_matches_is_a_finding_if_ranks_match(
    tmp_path, path, n_prompts, is_found
):
    with (
        on_thread(FakeMaster("some key")) as url,
        InThread(*write(tmp_path, m=mooncake(url)), *PATIENT) as service,
    ):
        register(service, 1, index="assumed", total_kv_blocks=1000)
        for n in range(50):
            body = select(service, path, token_ids=[n % n_prompts] * 40)
            overlap = body["legs"][0]["overlap"] if "legs" in body else body["overlap"]
            assert overlap["shared"]["outcome"] == "miss"
        found = findings(service)
        assert ("shared_cache_never_matches" in found) == is_found
        if is_found:
            share = 32 * 40 / (50 * 40)
            text = found["shared_cache_never_matches"]["text"]
            assert f"workers held {share:.0%} of the tokens" in text


def test_an_engine_of_lmcache_loads_its_own_tokens_over_its_bus(tmp_path):
    controller = FakeController(chunk=32)
    controller.store(TOKENS, "engine-2")
    with on_thread(controller) as url:
        entry = {"type": "lmcache", "url": url, "sharing": "remote"}
        with InThread(*write(tmp_path, m=entry), *PATIENT) as service:
            for worker_id in (1, 2):
                ids = {"engine_ids": {"0": f"engine-{worker_id}"}}
                register(service, worker_id, kv_transfer=LINK | ids)
            answer = select(service)
            assert answer["worker_id"] == 2
            credit = int(384 * 0.98)
            shared = {"outcome": "hit", "tokens": 384, "credit": credit, "fetch_price": 0.02}
            assert answer["overlap"]["shared"] == shared


def raw_answers(service):
    """Return the raw answers to the same requests, byte for byte."""
    answers = []
    for n in range(3):
        body = {"model_name": "m", "token_ids": TOKENS[: 90 * n + 40], "reservation_id": f"r{n}"}
        with service.client() as client:
            client.send(request("POST", "/select_and_reserve", body))
            while b"\r\n\r\n" not in (data := client.socket.recv(65536, 2)):
                eventually(lambda: True)
            answers.append(data.split(b"\r\n\r\n", 1)[1])
    return answers


def test_a_model_without_an_entry_is_answered_as_without_the_feature(tmp_path):
    master = FakeMaster()
    with on_thread(master) as url:
        found = []
        for flags in ((), write(tmp_path, other=mooncake(url))):
            with InThread(*flags) as service:
                register(service, 1)
                found.append(raw_answers(service))
        assert found[0] == found[1]
        assert b"shared" not in b"".join(found[0])
        assert not master.requests


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ({"type": "mooncake", "url": "http://a:1"}, "keys"),
        (
            {"type": "mooncake", "url": "http://a:1", "keys": "vllm"},
            "connectors of vLLM use hashes",
        ),
        ({"type": "mooncake", "url": "tcp://a:1", "keys": "sglang"}, "http://"),
        ({"type": "mooncake", "url": "http://169.254.1.1", "keys": "sglang"}, "is refused"),
        (
            {
                "type": "mooncake",
                "url": "http://a",
                "keys": "sglang",
                "tp_size": 4,
                "tp_lcm_size": 6,
            },
            "multiple",
        ),
        ({"type": "mooncake", "url": "http://a", "keys": "sglang", "tp_size": 64}, "characters"),
        ({"type": "mooncake", "url": "http://a", "keys": "sglang", "tag": "a,b"}, "tag"),
        ({"type": "mooncake", "url": "http://a", "keys": "sglang", "page_size": 64}, "remove it"),
        ({"type": "lmcache", "url": "http://a"}, "sharing"),
        ({"type": "lmcache", "url": "http://a", "sharing": "maybe"}, "sharing"),
        ({"type": "redis", "url": "http://a"}, "redis"),
        ({"type": "lmcache", "url": "http://a", "sharing": "p2p", "link_gbps": 0}, "link_gbps"),
    ],
)
def test_a_file_that_cannot_work_is_refused(tmp_path, entry, fault):
    with pytest.raises(Exception, match=fault) as caught:
        InThread(*write(tmp_path, m=entry))
    assert type(caught.value).__name__ == "ConfigError"


def test_sources_that_no_link_allows_are_a_finding():
    with InThread("--kv-sources") as service:
        register(service, 1, kv_transfer={})
        assert "no rank of m has" in findings(service)["kv_sources_unpriced"]["text"]
        register(service, 2)
        assert "kv_sources_unpriced" not in findings(service)
    with InThread() as service:
        register(service, 1, kv_transfer={})
        assert "kv_sources_unpriced" not in findings(service)
