"""Tests that the ordinary path serves partitions with hints, and the fast path all others."""

import asyncio

from tests.builders import worker_body
from tests.fastpath.prompts import post, prompt_of
from tests.fastpath.requests import AIOHTTP, request
from tests.fastpath.two_services import Side


def test_only_partitions_with_a_worker_type_leave_the_fast_path():
    with asyncio.Runner() as runner:
        side = Side(runner, True, (), seed=0)

        def is_fast(model):
            before = side.handler.answered
            body = {"model_name": model, **prompt_of(9, False)}
            assert side.send(post("/select_and_reserve", body)).startswith(b"HTTP/1.1 200")
            return side.handler.answered > before

        def give_type(text):
            body = b'{"router_hint_worker_type": "%s"}' % text
            patched = side.send(request("PATCH /workers/1", AIOHTTP, body))
            assert patched.startswith(b"HTTP/1.1 200")

        for worker_id, model in ((1, "m"), (2, "m"), (3, "n")):
            side.send(post("/workers", worker_body(worker_id, model_name=model)))
        assert (is_fast("m"), is_fast("n")) == (True, True)
        give_type(b"agg")
        assert (is_fast("m"), is_fast("n")) == (False, True)
        give_type(b"")
        assert (is_fast("m"), is_fast("n")) == (True, True)
        give_type(b"agg")
        assert not is_fast("m")
        side.send(request("DELETE /workers/1", AIOHTTP))
        assert is_fast("m")
        side.close()


def test_only_models_with_a_shared_cache_or_all_with_sources_leave_the_fast_path(tmp_path):
    caches = tmp_path / "caches.yaml"
    caches.write_text("m: {type: lmcache, url: 'http://127.0.0.1:1', sharing: p2p}\n")
    expected = {
        (): (True, True),
        ("--shared-caches", str(caches)): (False, True),
        ("--kv-sources",): (False, False),
    }
    with asyncio.Runner() as runner:
        for flags, is_fast in expected.items():
            side = Side(runner, True, flags, seed=0)
            answered = []
            for worker_id, model in ((1, "m"), (2, "n")):
                side.send(post("/workers", worker_body(worker_id, model_name=model)))
                before = side.handler.answered
                body = {"model_name": model, **prompt_of(9, False)}
                said = side.send(post("/select_and_reserve", body))
                assert said.startswith(b"HTTP/1.1 200")
                assert (b'"shared"' in said) is (flags[:1] == ("--shared-caches",) and model == "m")
                answered.append(side.handler.answered > before)
            assert tuple(answered) == is_fast
            side.close()
