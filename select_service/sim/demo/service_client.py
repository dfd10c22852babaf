"""HTTP client of the demo, which measures the latency of every call.

The client has its own types instead of the service's schema, so the demo decodes the same JSON as
a program in another language.
"""

import math
import time
from collections import defaultdict
from typing import Any, TypeVar

import msgspec

from select_service.client.httpx_transport import HttpxTransport
from select_service.client.transport import ClientRequest, ClientResponse, TransportError

CALL_TIMEOUT_S = 30.0
DECISIONS_LISTED, DECISIONS_READ = 400, 20
Row = TypeVar("Row")


class CallFailed(Exception):
    """The service refused a call or did not answer; the text names the call and the reason."""


class ChosenOverlap(msgspec.Struct):
    """Matched prompt tokens in GPU memory by rank."""

    dp: dict[int, int]


class ChosenRank(msgspec.Struct):
    """Fields of a selection that the demo needs."""

    worker_id: int
    dp_rank: int
    block_size: int
    reservation_id: str
    overlap: ChosenOverlap

    @property
    def predicted_blocks(self) -> int:
        """Leading prompt blocks that the chosen rank holds according to the service."""
        return self.overlap.dp[self.dp_rank] // self.block_size


class RankLoadRow(msgspec.Struct):
    """A row of GET /loads."""

    worker_id: int
    dp_rank: int
    potential_prefill_tokens: int
    potential_decode_blocks: int
    active_requests: int


class PartitionLoadRows(msgspec.Struct):
    """A partition of GET /loads."""

    model_name: str
    loads: list[RankLoadRow]


class EventStatus(msgspec.Struct):
    """Status of the event stream of a rank."""

    state: str
    last_sequence: int | None
    gaps: int
    replayed: int
    lost: int
    decode_errors: int


class WorkerRow(msgspec.Struct):
    """A row of GET /workers."""

    worker_id: int
    lifecycle: str
    kv_events: dict[int, EventStatus] = {}
    not_schedulable_reasons: list[str] = []


class RankOverlapRow(msgspec.Struct):
    """A rank of POST /overlap_scores."""

    worker_id: int
    dp_rank: int
    device_blocks: int


class OverlapScoreRows(msgspec.Struct):
    """Answer of POST /overlap_scores."""

    workers: list[RankOverlapRow]


class ServiceClient:
    """Client with kept connections. `latencies_s`: seconds of every reservation call, by verb."""

    def __init__(self, base_url: str, model_name: str) -> None:
        self._base_url = base_url
        # Each call is sent once: repeats of the whole client would hide failures.
        self._transport = HttpxTransport()
        self._model_name = model_name
        self.latencies_s: dict[str, list[float]] = defaultdict(list)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def is_alive(self) -> bool:
        """Return whether GET /health answers 200 now."""
        try:
            return (await self._exchange("GET", "/health")).status == 200
        except TransportError:
            return False

    async def register_worker(self, registration: dict[str, Any]) -> WorkerRow:
        """Call POST /workers."""
        body = registration | {"model_name": self._model_name}
        return await self._fetch(WorkerRow, "POST", "/workers", body)

    async def fetch_workers(self) -> list[WorkerRow]:
        """Call GET /workers."""
        return await self._fetch(list[WorkerRow], "GET", "/workers")

    async def fetch_policy(self) -> str:
        """Return the policy of the service, from GET /config."""
        answer = await self._send_call("GET", "/config")
        return str(msgspec.json.decode(answer)["settings"]["policy"]["value"])

    async def fetch_instructive_decision(self) -> dict[str, Any] | None:
        """Return an instructive recent decision, as of GET /decisions/{id}; None if no decision is
        kept.

        The decision is the closest in which another rank had more of the prompt in its cache than
        the chosen rank; without such a decision, the closest of all.
        """
        try:
            listed = await self._send_call("GET", f"/decisions?limit={DECISIONS_LISTED}")
        except CallFailed:
            return None
        rows = msgspec.json.decode(listed)["decisions"]
        # A small distance to the runner-up makes a decision interesting; a lone candidate sorts
        # last.
        rows.sort(key=lambda row: (row["runner_up_cost"] or math.inf) - row["cost"])
        closest: dict[str, Any] | None = None
        for row in rows[:DECISIONS_READ]:
            path = f"/decisions/{row['reservation_id']}"
            found = msgspec.json.decode(await self._send_call("GET", path))
            chosen = next(each for each in found["candidates"] if each["chosen"])
            if any(each["gpu_blocks"] > chosen["gpu_blocks"] for each in found["candidates"]):
                return dict(found)
            closest = closest or dict(found)
        return closest

    async def fetch_loads(self) -> list[PartitionLoadRows]:
        """Call GET /loads."""
        return await self._fetch(list[PartitionLoadRows], "GET", "/loads")

    async def fetch_overlap_scores(self, token_ids: list[int]) -> OverlapScoreRows:
        """Call POST /overlap_scores."""
        body = {"model_name": self._model_name, "token_ids": token_ids}
        return await self._fetch(OverlapScoreRows, "POST", "/overlap_scores", body)

    async def select_and_reserve(self, reservation_id: str, token_ids: list[int]) -> ChosenRank:
        """Choose and reserve a rank for a request."""
        body = {
            "model_name": self._model_name,
            "selection_id": reservation_id,
            "reservation_id": reservation_id,
            "token_ids": token_ids,
        }
        answer = await self._send_timed("select_and_reserve", "POST", "/select_and_reserve", body)
        return msgspec.json.decode(answer, type=ChosenRank)

    async def report_progress(self, reservation_id: str, verb: str) -> None:
        """Report `prefill_complete`, or another `output_block`."""
        await self._send_timed(verb, "POST", f"/reservations/{reservation_id}/{verb}", {})

    async def free_reservation(self, reservation_id: str) -> None:
        """Report the end of the request."""
        await self._send_timed("DELETE", "DELETE", f"/reservations/{reservation_id}")

    async def _fetch(
        self, kind: type[Row], method: str, path: str, body: dict[str, Any] | None = None
    ) -> Row:
        return msgspec.json.decode(await self._send_call(method, path, body), type=kind)

    async def _send_timed(
        self, verb: str, method: str, path: str, body: dict[str, Any] | None = None
    ) -> bytes:
        started = time.perf_counter()
        answer = await self._send_call(method, path, body)
        # Only successful calls count: a failure ends the demo.
        self.latencies_s[verb].append(time.perf_counter() - started)
        return answer

    async def _send_call(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        try:
            answer = await self._exchange(method, path, body)
        except TransportError as error:
            raise CallFailed(f"{method} {path}: {error}") from error
        if not 200 <= answer.status < 300:
            text = answer.content.decode(errors="replace")
            raise CallFailed(f"{method} {path}: {answer.status} {text[:300]}")
        return answer.content

    async def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> ClientResponse:
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"content-type": "application/json"}
        request = ClientRequest(method, path, content, headers)
        return await self._transport.send(self._base_url, request, CALL_TIMEOUT_S)
