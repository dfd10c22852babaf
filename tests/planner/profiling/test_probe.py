"""Tests of an engine's client over a socket: its requests, and bounds on everything it reads."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from select_service.net.http_client.http_error import HttpError
from select_service.planner.profiling import engine_probe
from select_service.planner.profiling.engine_probe import EngineProbe, ReportedLimits


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def token(text: str = "x") -> bytes:
    return event(choices=[{"index": 0, "text": text, "finish_reason": None}])


class StreamingEngine:
    """Engine that streams an answer.

    events: body of an answer
    asked: bodies of the requests
    """

    def __init__(self, *events: bytes, status: int = 200) -> None:
        self.events = events or (token(), token(), token(""), event(choices=[]), b"data: [DONE]\n")
        self.status = status
        self.asked: list[dict[str, Any]] = []
        self.facts: dict[str, str] = {
            "/v1/models": '{"data": [{"id": "a", "max_model_len": 4096}, {"id": "b"}]}'
        }

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            text = self.facts.get(request.path)
            return web.Response(status=404) if text is None else web.Response(text=text)
        self.asked.append(await request.json())
        if self.status != 200:
            return web.Response(status=self.status, text="context is too long")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for each in self.events:
            await response.write(each)
        return response


@asynccontextmanager
async def probing(engine: StreamingEngine, **more: Any) -> AsyncIterator[EngineProbe]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    probe = EngineProbe(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", **more)
    try:
        yield probe
    finally:
        await probe.close()
        await runner.cleanup()


async def test_the_times_of_simultaneous_answers() -> None:
    engine = StreamingEngine(token("a"), token("b"), event(usage={"completion_tokens": 4}))
    async with probing(engine, model="m", requests_max=4) as probe:
        streams = await probe.time_answers(50, 4, 3)
    assert [each.tokens for each in streams] == [4, 4, 4]
    assert all(each.sent_s <= each.chunks_s[0] <= each.chunks_s[1] for each in streams)
    prompts = [each["prompt"] for each in engine.asked]
    assert len({tuple(each) for each in prompts}) == 3
    assert all(len(each) == 50 for each in prompts)
    for body in engine.asked:
        assert (body["max_tokens"], body["ignore_eos"], body["model"]) == (4, True, "m")


@pytest.mark.parametrize("requests", [1, 2, 5, 8])
async def test_all_requests_of_a_point_run_at_the_same_time(requests: int) -> None:
    """The engine answers only after all requests have arrived."""
    engine, barrier = StreamingEngine(), asyncio.Barrier(requests)
    usual = engine.answer

    async def together(request: web.Request) -> web.StreamResponse:
        await barrier.wait()
        return await usual(request)

    engine.answer = together  # type: ignore[method-assign]
    async with probing(engine, model="m", requests_max=requests, timeout_s=20.0) as probe:
        assert len(await probe.time_answers(10, 2, requests)) == requests


async def test_a_chunk_without_text_is_no_token() -> None:
    async with probing(StreamingEngine(), model="m") as probe:
        (stream,) = await probe.time_answers(10, 2, 1)
    assert (len(stream.chunks_s), stream.tokens) == (2, 2)


@pytest.mark.parametrize(
    ("path", "text", "tokens"),
    [
        ("/metrics", 'a 1\nvllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n', 1600),
        ("/metrics", 'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1\n', None),
        (
            "/metrics",
            f'vllm:cache_config_info{{block_size="1{"0" * 400}",num_gpu_blocks="1"}}',
            None,
        ),
        ("/metrics", 'vllm:cache_config_info{block_size="16",num_gpu_blocks="-1"} 1\n', None),
        ("/get_server_info", '{"max_total_num_tokens": 777, "other": [1]}', 777),
        ("/get_server_info", f'{{"max_total_num_tokens": {10**400}}}', None),
        ("/get_server_info", "<html>", None),
    ],
)
async def test_reported_cache_sizes_of_engines(path: str, text: str, tokens: int | None) -> None:
    engine = StreamingEngine()
    engine.facts[path] = text
    async with probing(engine) as probe:
        assert await probe.read_facts() == ReportedLimits("a", 4096, tokens)
    async with probing(engine, model="b") as probe:
        assert await probe.read_facts() == ReportedLimits("b", None, tokens)


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        (StreamingEngine(status=400), "status 400"),
        (StreamingEngine(b"data: {no\n\n"), "event of the stream"),
        (StreamingEngine(b"<html>\n"), "no token"),
        (StreamingEngine(token(), event(error={"message": "out of memory"})), "out of memory"),
        (StreamingEngine(token(), event(usage={"completion_tokens": -1})), "expected 1 to"),
        (StreamingEngine(token(), event(usage={"completion_tokens": 10**400})), "expected 1 to"),
        (StreamingEngine(b"data: " + b"x" * 5000), "larger than"),
        (StreamingEngine(*[token()] * 500), "larger than"),
        (StreamingEngine(*[token()] * 50), "more than 40 chunks"),
    ],
)
async def test_a_bad_answer_is_an_error_of_one_line(
    engine: StreamingEngine, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_probe, "LINE_BYTES_MAX", 1000)
    monkeypatch.setattr(engine_probe, "ANSWER_BYTES_MAX", 10_000)
    monkeypatch.setattr(engine_probe, "CHUNKS_MAX", 40)
    async with probing(engine, model="m", requests_max=4) as probe:
        with pytest.raises(HttpError, match=told):
            await probe.time_answers(10, 2, 2)


async def test_an_answer_that_never_ends_is_given_up() -> None:
    async def forever(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    engine = StreamingEngine()
    engine.answer = forever  # type: ignore[method-assign]
    async with probing(engine, model="m", timeout_s=0.05) as probe:
        with pytest.raises(HttpError, match=r"within 0\.05 s"):
            await probe.time_answers(10, 2, 1)
