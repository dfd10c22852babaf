"""Tests of plugins over HTTP and gRPC, with servers that fail, hang or send invalid data."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import grpc
import msgspec
import pytest
from aiohttp import web
from google.protobuf import json_format

from select_service.net.tls.tls_paths import ClientTlsPaths
from select_service.planner.config import PluginConfig
from select_service.planner.core.plugin_contracts import PluginContext
from select_service.planner.core.reconcile import BoundType, Proposal, ProposedCount
from select_service.planner.core.stages import CallOutcome, Stage
from select_service.planner.core.tick_input import Role
from select_service.planner.core.tick_plan import StageAnswers
from select_service.planner.planner_http import PlannerHttpClient
from select_service.planner.plugins.grpc_plugin import GrpcPlugin, load_messages
from select_service.planner.plugins.http_plugin import HttpPlugin
from tests.planner.core.deployments import WARM, a_deployment, both, passes, tick_input, traffic
from tests.planner.plugins.hosting import OneHost, a_config, a_context, grpc_served
from tests.planner.runtime.serving import served

EXPECTED = Proposal(
    source="cost", priority=0, targets=(ProposedCount("decode", BoundType.AT_MOST, 3),)
)
TARGET = {"component": "decode", "type": "AT_MOST", "replicas": 3}
message = load_messages()


def remote(url: str, **given: Any) -> PluginConfig:
    return a_config(url=url, class_path=None, timeout_s=0.5, **given)


def full_contexts() -> list[PluginContext]:
    """Return the contexts of all stages of a tick with all values known."""
    deployment = a_deployment(enable_load_scaling=True, max_gpu_budget=32)
    engines = {role: passes(role, [WARM, WARM]) for role in Role}
    seen = traffic(600.0, kv_hit_rate=0.5, ttft_met=0.9, itl_s=0.02)
    run = deployment.run_stages(
        tick_input(60.0, both(2, 2), of=seen, engines=engines), frozenset(Stage)
    )
    contexts = [next(run)]
    try:
        while True:
            contexts.append(run.send(StageAnswers()))
    except StopIteration:
        return contexts


async def test_an_http_plugin_gets_the_context_and_answers(tmp_path: Any) -> None:
    bodies: list[bytes] = []
    heads: list[str | None] = []
    token = tmp_path / "token"
    token.write_text("secret\n")

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.read())
        heads.append(request.headers.get("authorization"))
        return web.json_response({"targets": [TARGET], "reason": "costs"})

    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with PlannerHttpClient() as http:
        config = remote(url, token_file=str(token))
        given = await OneHost(config, HttpPlugin(config, http)).ask()
    await runner.cleanup()
    assert given.answers == (EXPECTED,)
    assert heads == ["Bearer secret"]
    body = json.loads(bodies[0])
    assert (body["stage"], body["deployment"], body["roles"]["decode"]["ready"]) == (
        "propose",
        "chat",
        2,
    )


HTTP_FAILURES: list[tuple[Callable[[web.Request], web.Response], CallOutcome]] = [
    (lambda request: web.Response(status=500), CallOutcome.FAILED),
    (lambda request: web.Response(text="[]"), CallOutcome.INVALID),
    (lambda request: web.Response(text="{" * 60_000), CallOutcome.INVALID),
    (lambda request: web.Response(text='{"targets": [], "finall": true}'), CallOutcome.INVALID),
    (lambda request: web.Response(body=b"\xff\xfe"), CallOutcome.INVALID),
    (lambda request: web.Response(text="9" * (1 << 20)), CallOutcome.INVALID),
    (
        lambda request: web.json_response({"targets": [{**TARGET, "component": "prefill"}]}),
        CallOutcome.INVALID,
    ),
]


@pytest.mark.parametrize(("answer", "outcome"), HTTP_FAILURES)
async def test_http_failures(
    answer: Callable[[web.Request], web.Response], outcome: CallOutcome
) -> None:
    async with served(answer) as url, PlannerHttpClient() as http:
        config = remote(url)
        given = await OneHost(config, HttpPlugin(config, http)).ask()
    assert (given.answers, given.calls[0].outcome) == ((), outcome)
    assert given.calls[0].text


async def test_http_servers_that_hang_or_are_gone() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with PlannerHttpClient() as http:
        config = remote(url)
        host = OneHost(config, HttpPlugin(config, http))
        assert (await host.call()).outcome is CallOutcome.TIMED_OUT
        server.close()
        call = await host.call()
        assert call.outcome is CallOutcome.FAILED
        assert call.text
        assert await host.plugin._heartbeat_fault()


async def test_an_http_heartbeat() -> None:
    async with served(lambda request: web.Response(text="ok")) as url, PlannerHttpClient() as http:
        await HttpPlugin(remote(url), http).send_heartbeat()


async def test_a_grpc_plugin_gets_the_context_and_answers(tmp_path: Any) -> None:
    seen: list[Any] = []
    tokens: list[Any] = []
    token = tmp_path / "token"
    token.write_text("secret")

    async def propose(context: Any, call: Any) -> Any:
        seen.append(context)
        tokens.append(dict(call.invocation_metadata()).get("authorization"))
        answer = message("ReplicaTargets")(reason="costs")
        answer.targets.add(component="decode", type="AT_MOST", replicas=3)
        return answer

    async def predict(context: Any, call: Any) -> Any:
        return message("Prediction")(requests=7.0)

    async def beat(given: Any, call: Any) -> Any:
        return message("HeartbeatReply")()

    methods = {"Propose": propose, "Predict": predict, "Heartbeat": beat}
    async with grpc_served(methods) as url:
        config = remote(url, token_file=str(token))
        host = OneHost(config, GrpcPlugin(config, ClientTlsPaths()))
        given = await host.ask()
        await host.plugin.port.send_heartbeat()
        other = remote(url, stage="predict")
        guess = OneHost(other, GrpcPlugin(other, ClientTlsPaths()))
        (found,) = (await guess.ask()).answers
        await host.host.close()
        await guess.host.close()
    assert given.answers == (EXPECTED,)
    assert given.calls[0].text == "costs"
    assert (seen[0].stage, seen[0].roles["decode"].ready) == ("propose", 2)
    assert seen[0].settings["mode"] == "agg"
    assert tokens == ["Bearer secret"]
    assert found.prediction.requests == 7.0  # type: ignore[union-attr]


async def _abort(context: Any, call: Any) -> None:
    await call.abort(grpc.StatusCode.INTERNAL, "no price")


async def _raise(context: Any, call: Any) -> None:
    raise ValueError("no price")


async def _hang(context: Any, call: Any) -> None:
    await asyncio.sleep(30.0)


async def _huge(context: Any, call: Any) -> Any:
    return message("ReplicaTargets")(reason="x" * (1 << 20))


async def _many(context: Any, call: Any) -> Any:
    answer = message("ReplicaTargets")()
    for _ in range(1000):
        answer.targets.add(component="decode", type="SET", replicas=1)
    return answer


async def _foreign(context: Any, call: Any) -> Any:
    answer = message("ReplicaTargets")()
    answer.targets.add(component="prefill", type="SET", replicas=1)
    return answer


async def _untyped(context: Any, call: Any) -> Any:
    answer = message("ReplicaTargets")()
    answer.targets.add(component="decode", replicas=1)
    return answer


async def _uncounted(context: Any, call: Any) -> Any:
    answer = message("ReplicaTargets")()
    answer.targets.add(component="decode", type="SET")
    return answer


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (_abort, CallOutcome.FAILED),
        (_raise, CallOutcome.FAILED),
        (_hang, CallOutcome.TIMED_OUT),
        (_huge, CallOutcome.INVALID),
        (_many, CallOutcome.INVALID),
        (_foreign, CallOutcome.INVALID),
        (_untyped, CallOutcome.INVALID),
        (_uncounted, CallOutcome.INVALID),
    ],
)
async def test_grpc_failures(answer: Any, outcome: CallOutcome) -> None:
    async with grpc_served({"Propose": answer}) as url:
        config = remote(url)
        host = OneHost(config, GrpcPlugin(config, ClientTlsPaths()))
        given = await host.ask()
        await host.host.close()
    assert (given.answers, given.calls[0].outcome) == ((), outcome)
    assert given.calls[0].text


async def test_a_grpc_prediction_of_nan_is_invalid() -> None:
    async def answer(context: Any, call: Any) -> Any:
        return message("Prediction")(requests=float("nan"))

    async with grpc_served({"Predict": answer}) as url:
        config = remote(url, stage="predict")
        host = OneHost(config, GrpcPlugin(config, ClientTlsPaths()))
        assert (await host.call()).outcome is CallOutcome.INVALID
        await host.host.close()


async def test_a_grpc_server_that_comes_back_is_called_again() -> None:
    async def answer(context: Any, call: Any) -> Any:
        return message("ReplicaTargets")()

    async with grpc_served({"Propose": answer}) as url:
        config = remote(url)
        host = OneHost(config, GrpcPlugin(config, ClientTlsPaths()))
        assert (await host.call()).outcome is CallOutcome.ANSWERED
    gone = await host.call()
    assert gone.outcome in (CallOutcome.FAILED, CallOutcome.TIMED_OUT)
    assert gone.text
    await host.host.close()


async def test_every_context_is_a_grpc_message() -> None:
    """No field of the JSON context is missing in the .proto file."""
    contexts = full_contexts()
    assert [each.stage for each in contexts] == [Stage.PREDICT, Stage.PROPOSE, Stage.CONSTRAIN]
    for context in contexts:
        given = message("PluginContext")()
        json_format.Parse(msgspec.json.encode(context), given)  # unknown fields raise
        back = json_format.MessageToDict(
            given, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        assert set(msgspec.to_builtins(context)) - {"stage"} <= set(back)
    assert contexts[-1].reconciled
    assert contexts[-1].sizes
    assert contexts[-1].engines


def test_every_field_is_in_the_proto_file() -> None:
    """The types include fields without a value in the contexts above."""
    _, definitions = msgspec.json.schema_components([PluginContext], ref_template="{name}")
    left_out = {"TrafficWindow": {"prefill_samples", "decode_samples"}}
    renamed = {"ProposedCount": "ReplicaTarget"}
    for name, definition in definitions.items():
        if "properties" not in definition or name == "DeploymentSettings":
            continue
        own = {field.name for field in message(renamed.get(name, name)).DESCRIPTOR.fields}
        assert set(definition["properties"]) - left_out.get(name, set()) == own, name


async def test_a_call_without_context_fields_that_are_unknown() -> None:
    context = a_context()
    given = message("PluginContext")()
    json_format.Parse(msgspec.json.encode(context), given)
    assert not given.HasField("traffic")
    assert not given.HasField("prediction")
