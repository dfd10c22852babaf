"""Fake selectors that fail on demand, in virtual time: the other side of the client in tests."""

import asyncio
import contextlib
import json
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from select_service.client import AsyncSelector
from select_service.client.transport import (
    ClientRequest,
    ClientResponse,
    StreamedResponse,
    TransportError,
)

T = TypeVar("T")
URLS = ("http://a:1", "http://b:1", "http://c:1")
TTL_S = 30.0


class _Jumping(selectors.SelectSelector):
    """Selector of an event loop that jumps to the next timer instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing will ever happen"
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to the end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def refusal(status: int, code: str, retry_after: str | None = None) -> ClientResponse:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return ClientResponse(status, headers, json.dumps({"error": "no", "code": code}).encode())


def _done(status: int = 200, **fields: Any) -> ClientResponse:
    return ClientResponse(status, {}, json.dumps(fields or {"status": "ok"}).encode())


Behaviour = Callable[["World", str, ClientRequest], Any]
"""Fake of a selector for one request: returns an awaitable answer, or raises TransportError."""


class World:
    """Three selectors with shared bookings, and the next faults of each selector.

    knows_repeats: whether selectors answer a repeat with the existing booking
    """

    def __init__(self, *, knows_repeats: bool = True, ttl_s: float = TTL_S) -> None:
        self.knows_repeats = knows_repeats
        self.ttl_s = ttl_s
        self.booked: dict[str, float] = {}
        """Time of the last call about each reservation."""
        self.admissions: list[str] = []
        self.heard: list[tuple[str, str, str]] = []
        """Selector, method and target of all calls."""
        self.headers: list[dict[str, str]] = []
        self.down: set[str] = set()
        self.next: dict[str, list[Behaviour]] = {}

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def live(self) -> list[str]:
        return [each for each, at in self.booked.items() if self.now - at < self.ttl_s]

    def calls(self, ending: str) -> list[str]:
        """Return the selectors that received a call with this end of the target, in order."""
        return [url for url, _, target in self.heard if target.endswith(ending)]

    # --- the transport

    async def send(self, url: str, asked: ClientRequest, timeout_s: float) -> ClientResponse:
        await asyncio.sleep(0.001)
        if url in self.down:
            raise TransportError("refused", was_sent=False)
        if self.next.get(url):
            return await self.next[url].pop(0)(self, url, asked)
        return self.answer(url, asked)

    @contextlib.asynccontextmanager
    async def stream(
        self, url: str, asked: ClientRequest, silence_s: float
    ) -> AsyncIterator[StreamedResponse]:
        answer = await self.send(url, asked, silence_s)

        async def pieces() -> AsyncIterator[bytes]:
            yield answer.content

        yield StreamedResponse(answer.status, answer.headers, pieces())

    async def close(self) -> None:
        self.down = set(URLS)

    # --- a selector

    def answer(self, url: str, asked: ClientRequest) -> ClientResponse:
        self.heard.append((url, asked.method, asked.target))
        self.headers.append(dict(asked.headers))
        parts = urlsplit(asked.target)
        if asked.target == "/select_and_reserve":
            return self._select(json.loads(asked.content or b""))
        if asked.target == "/select_pair_and_reserve":
            return self._select_pair(json.loads(asked.content or b""))
        if parts.path == "/workers":
            return ClientResponse(200, {}, json.dumps([worker(1), worker(2)]).encode())
        if parts.path.startswith("/workers/"):
            return ClientResponse(200, {}, json.dumps(worker(1)).encode())
        if parts.path.startswith("/reservations/"):
            return self._reservation_life(asked.method, parts.path, parse_qs(parts.query))
        return _done()

    def _select(self, body: dict[str, Any]) -> ClientResponse:
        name = body["reservation_id"]
        if name in self.live() and not (body.get("repeat") and self.knows_repeats):
            return refusal(409, "conflict")
        if name not in self.live():
            self.admissions.append(name)
        self.booked[name] = self.now
        return _done(**selection(name), kv_source=SOURCE)

    def _select_pair(self, body: dict[str, Any]) -> ClientResponse:
        self._select(body)
        return _done(**pair_selection(body["reservation_id"]))

    def _reservation_life(
        self, method: str, path: str, query: dict[str, list[str]]
    ) -> ClientResponse:
        name = unquote(path.split("/")[2])
        if name not in self.live():
            return refusal(404, "not_found")
        if method == "GET":
            return _done(**row(name, self.ttl_s))
        self.booked[name] = self.now
        if method == "DELETE":
            del self.booked[name]
        return _done()


def worker(worker_id: int) -> dict[str, Any]:
    unset = (
        "kv_events_endpoint replay_endpoint data_parallel_start_rank data_parallel_size "
        "max_num_batched_tokens total_kv_blocks stable_routing_id is_eagle kv_transfer_domain "
        "kv_transfer_enforcement kv_transfer_preferred_weight"
    )
    return {
        "worker_id": worker_id,
        "model_name": "m",
        "tenant_id": "default",
        "lifecycle": "schedulable",
        "endpoint": f"http://engine-{worker_id}:8000",
        "block_size": 4,
        "role": "aggregated" if worker_id == 1 else "prefill",
        "taints": [],
        "topology_domains": {},
        **dict.fromkeys(unset.split()),
    }


SOURCE = {
    "worker_id": 2,
    "dp_rank": 0,
    "endpoint": "http://engine-2:8000",
    "tokens": 8,
    "fetch_tokens": 4,
    "fetch_price": 0.1,
}


def selection(name: str) -> dict[str, Any]:
    return {
        "reservation_id": name,
        "model_name": "m",
        "tenant_id": "default",
        "worker_id": 1,
        "dp_rank": 0,
        "endpoint": "http://engine-1:8000",
        "block_size": 4,
        "overlap": {"longest_matched": 4, "gpu": 4, "dp": {"0": 4}, "cpu": 4, "disk": 4},
        "effective_prefill_tokens": 4,
    }


def pair_selection(name: str) -> dict[str, Any]:
    """Return a pair in which the decode rank serves both legs."""
    chosen = selection(name)
    rank = {field: chosen[field] for field in ("worker_id", "dp_rank", "endpoint", "overlap")}
    legs = [
        {**rank, "leg": leg, "cached_tokens": 4, "own_work": 4} for leg in ("prefill", "decode")
    ]
    numbers = {"move_tokens": 0, "move_cost": 0.0, "local_cost": 4.0, "remote_cost": None}
    reason = {"path": "local", "reason": "cheaper", "routing_group": chosen["tenant_id"]}
    scope = ("reservation_id", "model_name", "tenant_id", "block_size", "effective_prefill_tokens")
    return {**{field: chosen[field] for field in scope}, **reason, **numbers, "legs": legs}


def row(name: str, ttl_s: float) -> dict[str, Any]:
    return {
        **selection(name),
        "state": "prefill",
        "isl_tokens": 8,
        "prompt_blocks": 2,
        "output_blocks": 0,
        "prefill_tokens": 4,
        "age_seconds": 0.0,
        "expires_in_seconds": ttl_s,
        "origin": "local",
        "router_id": 1,
    }


async def lose_answer(world: World, url: str, asked: ClientRequest) -> ClientResponse:
    world.answer(url, asked)
    raise TransportError("reset", was_sent=True)


async def lose_request(world: World, url: str, asked: ClientRequest) -> ClientResponse:
    raise TransportError("reset", was_sent=True)


async def bad_gateway(world: World, url: str, asked: ClientRequest) -> ClientResponse:
    return ClientResponse(502, {}, b"<html>bad gateway</html>")


def refuse(status: int, code: str, retry_after: str | None = None) -> Behaviour:
    async def behave(world: World, url: str, asked: ClientRequest) -> ClientResponse:
        return refusal(status, code, retry_after)

    return behave


def late(seconds: float) -> Behaviour:
    """Return a behaviour that executes the call but answers when the caller may have gone."""

    async def behave(world: World, url: str, asked: ClientRequest) -> ClientResponse:
        doing = asyncio.ensure_future(_later(world, url, asked, seconds))
        return await asyncio.shield(doing)

    return behave


async def _later(world: World, url: str, asked: ClientRequest, seconds: float) -> ClientResponse:
    await asyncio.sleep(seconds)
    return world.answer(url, asked)


def client(world: World, urls: tuple[str, ...] = URLS, **options: Any) -> AsyncSelector:
    """Return a client of this world, on the running loop."""
    selector = AsyncSelector(urls, model_name="m", **options)
    selector.core.transport = selector.core.caller.transport = world
    return selector


def is_without_debts(selector: AsyncSelector) -> bool:
    return not any(selector.core._pending_frees._pending.values())


def home_of(selector: AsyncSelector) -> str:
    """Return the selector that receives the calls of this scope."""
    return selector.core.home_selector()
