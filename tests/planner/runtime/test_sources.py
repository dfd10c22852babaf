"""Tests of Prometheus and forward passes as sources: an unknown value is None, never 0."""

import asyncio
import math
from pathlib import Path

import msgspec
import pytest
import zmq
from aiohttp import web

from select_service.net.http_client.http_error import HttpError
from select_service.planner.config import ForwardPassSourceConfig, PrometheusSourceConfig
from select_service.planner.core.tick_input import ForwardPass, Role, TrafficWindow
from select_service.planner.planner_http import PlannerHttpClient
from select_service.planner.runtime import forward_pass_source
from select_service.planner.runtime.forward_pass_source import (
    ForwardPassReceiver,
    ReceivedPasses,
    decode_forward_pass,
)
from select_service.planner.runtime.prometheus_source import PrometheusTraffic
from tests.planner.runtime.serving import Answer, served


def prometheus(values: dict[str, str], asked: list[web.Request] | None = None) -> Answer:
    """Return a handler that answers with the value of a key in the query, or no series."""

    def answer(request: web.Request) -> web.Response:
        if asked is not None:
            asked.append(request)
        query = request.query["query"]
        found = [value for key, value in values.items() if key in query]
        result = [{"metric": {}, "value": [1.0, each]} for each in found[:1]]
        return web.json_response({"status": "success", "data": {"result": result}})

    return answer


async def read_window(answer: Answer, **source: str) -> TrafficWindow:
    async with served(answer) as url:
        traffic = PrometheusTraffic(PrometheusSourceConfig(url, **source), 'a"b')
        try:
            return await traffic.read_traffic(180.0)
        finally:
            await traffic.close()


def test_traffic_of_a_window(tmp_path: Path) -> None:
    asked: list[web.Request] = []
    token = tmp_path / "token"
    token.write_text("secret\n")
    values = {"requests_total": "1500", "input_sequence": "3000.5", "output_sequence": "150"}
    values |= {"time_to_first": "0.25", "inter_token": "0.03"}
    traffic = asyncio.run(read_window(prometheus(values, asked), token_file=str(token)))
    assert (traffic.requests, traffic.isl, traffic.osl) == (1500.0, 3000.5, 150.0)
    assert (traffic.ttft_s, traffic.itl_s) == (0.25, 0.03)
    assert traffic.kv_hit_rate is None
    assert {each.headers["authorization"] for each in asked} == {"Bearer secret"}
    assert all("[180s]" in each.query["query"] for each in asked)


@pytest.mark.parametrize("source", ["frontend", "router"])
def test_queries_select_the_model_where_series_have_it(source: str) -> None:
    asked: list[web.Request] = []
    given = {"source": source, "namespace": "prod"}
    asyncio.run(read_window(prometheus({}, asked), **given))
    queries = [each.query["query"] for each in asked]
    routers = [each for each in queries if "dynamo_component_router_" in each]
    assert all('dynamo_namespace=~"prod' in each for each in routers)
    assert len(routers) == (1 if source == "frontend" else 6)
    frontends = [each for each in queries if "dynamo_frontend_" in each]
    assert all('{model=~"(?i:a\\"b)",dynamo_namespace=~"prod"}' in each for each in frontends)
    accepts = [each for each in queries if "spec_" in each]
    assert len(accepts) == 3
    for label in ("model", "model_name"):
        assert all(f'{{{label}=~"(?i:a\\"b)"' in each for each in accepts)
    asked.clear()
    asyncio.run(read_window(prometheus({}, asked), source="router"))
    assert any("router_requests_total[180s]" in each.query["query"] for each in asked)


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
def test_a_value_that_is_no_number_is_unknown_and_zero_is_not(value: str) -> None:
    values = {"requests_total": "0", "input_sequence": value}
    traffic = asyncio.run(read_window(prometheus(values)))
    assert traffic.requests == 0.0
    assert traffic.isl is None


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: web.Response(status=503, text="warming up"),
        lambda request: web.Response(text="<html>"),
        lambda request: web.json_response({"status": "success", "data": {"result": "x"}}),
    ],
)
def test_a_failed_query_makes_the_reading_fail(answer: Answer) -> None:
    with pytest.raises(HttpError):
        asyncio.run(read_window(answer))


async def test_a_refused_connection_differs_from_a_missing_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with PlannerHttpClient() as http:
        with pytest.raises(HttpError) as caught:
            await http.get("http://127.0.0.1:9/", timeout_s=5.0)
        assert caught.value.failure == "refused"


def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("select_service.planner.planner_http.BYTES_MAX", 1000)

    async def ask(size: int) -> int:
        async with (
            served(lambda request: web.Response(text="x" * size)) as url,
            PlannerHttpClient() as http,
        ):
            return len(await http.get(url))

    assert asyncio.run(ask(1000)) == 1000
    with pytest.raises(HttpError, match="more than 1000 bytes"):
        asyncio.run(ask(1001))


def message(**fields: object) -> bytes:
    return msgspec.msgpack.encode({"version": 1, "worker_id": "w", **fields})


def test_a_forward_pass_as_engines_send_it() -> None:
    scheduled = {"num_prefill_requests": 2, "sum_prefill_tokens": 2048, "var_prefill_length": 3.5}
    queued = {"num_decode_requests": 1, "sum_decode_kv_tokens": 900}
    payload = message(
        dp_rank=3, counter_id=7, wall_time=0.1, scheduled_requests=scheduled, queued_requests=queued
    )
    assert decode_forward_pass(payload) == ForwardPass(
        worker="w",
        rank=3,
        wall_s=0.1,
        prefill_requests=2,
        prefill_tokens=2048,
        queued_decode_requests=1,
        queued_decode_kv_tokens=900,
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        message(version=2),
        message(wall_time=math.nan),
        message(wall_time=-1.0),
        message(dp_rank=-1),
        message(scheduled_requests={"sum_prefill_tokens": -5}),
        message(scheduled_requests=[1, 2]),
    ],
)
def test_an_invalid_forward_pass_is_refused(payload: bytes) -> None:
    assert decode_forward_pass(payload) is None


def test_received_passes_are_bounded_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_pass_source, "PASSES_MAX", 3)
    monkeypatch.setattr(forward_pass_source, "RANKS_MAX", 2)
    heard = ReceivedPasses()
    for number in range(5):
        assert heard.add_pass(ForwardPass(worker="w", wall_s=float(number)))
    assert heard.add_pass(ForwardPass(worker="w", rank=1))
    assert not heard.add_pass(ForwardPass(worker="x"))
    assert [(each.rank, each.wall_s) for each in heard.take_passes()] == [
        (0, 2),
        (0, 3),
        (0, 4),
        (1, 0),
    ]
    assert heard.take_passes() == ()


def test_passes_over_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_pass_source, "REST_S", 0.001)

    async def receive_passes() -> list[ForwardPass]:
        engine = zmq.Context.instance().socket(zmq.PUB)
        port = engine.bind_to_random_port("tcp://127.0.0.1")
        passes = ForwardPassReceiver(ForwardPassSourceConfig(decode=(f"tcp://127.0.0.1:{port}",)))
        running = asyncio.create_task(passes.run())
        try:
            while not passes.refused:  # until the subscription has arrived
                engine.send_multipart([b"", b"seq", b"nothing"])
                await asyncio.sleep(0.01)
            for number in range(5):
                engine.send_multipart([b"", b"seq", message(wall_time=number)])
            heard: list[ForwardPass] = []
            while len(heard) < 5:
                await asyncio.sleep(0.01)
                heard += passes.take_passes()[Role.DECODE]
            return heard
        finally:
            running.cancel()
            passes.close()
            engine.close(linger=0)

    heard = asyncio.run(asyncio.wait_for(receive_passes(), 60))
    assert [each.wall_s for each in heard] == [0, 1, 2, 3, 4]


def test_an_endpoint_that_zmq_does_not_take() -> None:
    with pytest.raises(ValueError, match="fpm endpoint `tcp:nowhere`"):
        ForwardPassReceiver(ForwardPassSourceConfig(decode=("tcp:nowhere",)))
