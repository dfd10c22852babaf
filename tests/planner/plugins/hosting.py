"""Plugins for tests: misbehaving classes, a host, and a gRPC server."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc

from select_service.planner.config import PluginConfig
from select_service.planner.core.plugin_contracts import PluginContext, RoleContext
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.stages import PluginCall, Stage
from select_service.planner.core.tick_input import Role
from select_service.planner.core.tick_plan import StageAnswers
from select_service.planner.plugins.grpc_plugin import SERVICE, load_messages
from select_service.planner.plugins.in_process_plugin import InProcessPlugin
from select_service.planner.plugins.plugin_host import HostedPlugin, PluginHost
from select_service.planner.plugins.plugin_port import PluginPort

CHAT = "chat"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def a_config(name: str = "cost", stage: str = "propose", **given: Any) -> PluginConfig:
    return PluginConfig(**{"name": name, "stage": stage, "class_path": "a:B", **given})


def a_context(stage: Stage = Stage.PROPOSE, now_s: float = 60.0, ready: int = 2) -> PluginContext:
    role = RoleContext(
        ready=ready, starting=0, is_changing=False, min_endpoint=1, num_gpu=1, startup_s=120.0
    )
    settings = DeploymentSettings(mode="agg")
    return PluginContext(stage=stage, now_s=now_s, roles={Role.DECODE: role}, settings=settings)


class OneHost:
    """Host of a single plugin for a single deployment."""

    def __init__(self, config: PluginConfig, port: PluginPort) -> None:
        self.clock = Clock()
        self.plugin = HostedPlugin(config, port, [CHAT])
        self.host = PluginHost([self.plugin], self.clock)

    async def ask(self, now_s: float = 60.0, within_s: float = 30.0) -> StageAnswers:
        import asyncio

        by_s = asyncio.get_running_loop().time() + within_s
        return await self.host.answer_stage(CHAT, a_context(self.plugin.stage, now_s), by_s)

    async def call(self, now_s: float = 60.0, within_s: float = 30.0) -> PluginCall:
        (call,) = (await self.ask(now_s, within_s)).calls
        return call


def in_process(plugin: object, **given: Any) -> OneHost:
    return OneHost(a_config(**given), InProcessPlugin("cost", {CHAT: plugin}))


class Calls:
    """Plugin that calls a function in every stage."""

    def __init__(self, answer: Callable[[PluginContext], object]) -> None:
        self.predict = self.propose = self.constrain = answer


def hangs(context: PluginContext) -> None:
    time.sleep(1.0)


Rpc = Callable[[Any, Any], Awaitable[Any]]


@asynccontextmanager
async def grpc_served(methods: Mapping[str, Rpc], **options: Any) -> AsyncIterator[str]:
    """Yield the URL of a gRPC server with some methods of a plugin, until the block ends."""
    message = load_messages()
    inputs = {"Heartbeat": "HeartbeatRequest"}
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=message(inputs.get(name, "PluginContext")).FromString,
            response_serializer=lambda given: given.SerializeToString(),
        )
        for name, answer in methods.items()
    }
    server = grpc.aio.server()
    service = SERVICE.strip("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        await server.stop(None)
