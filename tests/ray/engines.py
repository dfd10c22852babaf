"""Deployments of Ray Serve for tests: engines with requests of any duration."""

import asyncio
import os
from typing import Any, NamedTuple

from ray import serve
from ray.serve.config import RequestRouterConfig

from select_service.ray import Report, register_replica

MODEL = "m"
BLOCK_SIZE = 16
ROUTER = RequestRouterConfig(
    request_router_class="select_service.ray.router:SelectServiceRouter",
    request_router_kwargs={"model_name": MODEL, "reservation_kwarg": "booked"},
)


class Ran(NamedTuple):
    """Process of a request, and the booking that the engine received."""

    pid: int
    booked: dict[str, Any] | None


@serve.deployment(max_ongoing_requests=100, request_router_config=ROUTER)
class Engine:
    """Replica that registers itself."""

    def __init__(self) -> None:
        self.worker = register_replica(model_name=MODEL, block_size=BLOCK_SIZE)

    def __del__(self) -> None:
        self.worker.close()

    async def generate(
        self, token_ids: list[int], hold_s: float = 0.0, booked: dict[str, Any] | None = None
    ) -> Ran:
        report = Report(booked)
        report.tokens(BLOCK_SIZE)
        await asyncio.sleep(hold_s)
        return Ran(os.getpid(), booked)

    def pid(self) -> int:
        return os.getpid()


@serve.deployment
class Front:
    """Frontend that calls the engine several times per request: all calls have the same id."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    async def __call__(self, calls: int, hold_s: float) -> list[Ran]:
        prompts = [[call] * 64 for call in range(calls)]
        return await asyncio.gather(
            *(self.engine.generate.remote(token_ids=p, hold_s=hold_s) for p in prompts)
        )
