"""Selector from a connector's view: workers with reservations that drain on request."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class ASelector:
    """Selector with workers.

    booked: number of reservations by worker; tests may change the map
    blocks: number of active blocks by worker; tests may change the map
    released: workers that were put back into service, in order
    deaf_to: workers for which drain requests fail
    """

    booked: dict[int, int]
    blocks: dict[int, int]
    prefill: set[int] = field(default_factory=set)
    hosts: dict[int, str] = field(default_factory=dict)
    draining: set[int] = field(default_factory=set)
    released: list[int] = field(default_factory=list)
    deaf_to: set[int] = field(default_factory=set)
    health: bool = True
    url: str = ""
    is_silent: bool = False

    def refusal(self, worker_id: int) -> web.Response | None:
        if self.is_silent or worker_id in self.deaf_to:
            return web.json_response({"error": "silent", "code": "internal"}, status=500)
        if not self.health:
            return web.json_response({"error": "off", "code": "health_off"}, status=409)
        if worker_id not in self.booked:
            return web.json_response({"error": "who?", "code": "not_found"}, status=404)
        return None

    async def drain(self, request: web.Request) -> web.Response:
        worker_id = int(request.match_info["worker_id"])
        refusal = self.refusal(worker_id)
        if refusal is not None:
            return refusal
        if (await request.json()).get("by") != "planner":
            return web.json_response({"error": "by", "code": "invalid_body"}, status=422)
        if request.path.endswith("/drain"):
            self.draining.add(worker_id)
        else:
            self.draining.discard(worker_id)
            self.released.append(worker_id)
        return web.json_response({}, status=202)

    async def workers(self, _request: web.Request) -> web.Response:
        if self.is_silent:
            return web.Response(status=500)
        return web.json_response(
            [
                {
                    "worker_id": worker_id,
                    "lifecycle": "schedulable",
                    "endpoint": f"http://{self.hosts.get(worker_id, f'worker-{worker_id}')}:80",
                    "role": "prefill" if worker_id in self.prefill else "decode",
                }
                | ({"drain": {"reservations": booked}} if worker_id in self.draining else {})
                for worker_id, booked in self.booked.items()
            ]
        )

    async def loads(self, _request: web.Request) -> web.Response:
        loads = [
            {"worker_id": worker_id, "potential_decode_blocks": blocks}
            for worker_id, blocks in self.blocks.items()
        ]
        return web.json_response([{"loads": loads}])

    async def fleet(self, _request: web.Request) -> web.Response:
        if self.is_silent or not self.health:
            return web.Response(status=409)
        ranks = [
            {"worker_id": w, "reservations": count, "weight": float(w not in self.draining)}
            for w, count in self.booked.items()
        ]
        return web.json_response({"partitions": [{"ranks": ranks}]})


@asynccontextmanager
async def running(selector: ASelector) -> AsyncIterator[ASelector]:
    app = web.Application()
    app.router.add_post("/workers/{worker_id}/drain", selector.drain)
    app.router.add_post("/workers/{worker_id}/undrain", selector.drain)
    app.router.add_get("/workers", selector.workers)
    app.router.add_get("/loads", selector.loads)
    app.router.add_get("/health/fleet", selector.fleet)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    selector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield selector
    finally:
        await runner.cleanup()
