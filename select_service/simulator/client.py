"""The selection service as its callers see it: HTTP and JSON, every call timed here.

Knows routes and bodies, deliberately without the service's own schema: what is decoded here is
what a program in another language would read.
"""

import math
import time
from collections import defaultdict
from typing import Any

import httpx
import msgspec

CALL_TIMEOUT_S = 30.0
DECISIONS_LISTED, DECISIONS_LOOKED_AT = 400, 20


class CallFailed(Exception):
    """The service refused a call or did not answer; the text names the call and the reason."""


class ChosenOverlap(msgspec.Struct):
    """Matched prompt tokens in GPU memory by rank, from the answer's overlap summary."""

    dp: dict[int, int]


class Choice(msgspec.Struct):
    """What the client needs of a selection."""

    worker_id: int
    dp_rank: int
    block_size: int
    reservation_id: str
    overlap: ChosenOverlap

    @property
    def predicted_blocks(self) -> int:
        """Leading prompt blocks that the service believes the chosen rank holds."""
        return self.overlap.dp[self.dp_rank] // self.block_size


class RankLoad(msgspec.Struct):
    """One row of GET /loads."""

    worker_id: int
    dp_rank: int
    potential_prefill_tokens: int
    potential_decode_blocks: int
    active_requests: int


class Loads(msgspec.Struct):
    """One partition of GET /loads."""

    model_name: str
    loads: list[RankLoad]


class EventStatus(msgspec.Struct):
    """What the service says about the event stream of one rank."""

    state: str
    last_sequence: int | None
    gaps: int
    replayed: int
    lost: int
    decode_errors: int


class Worker(msgspec.Struct):
    """One row of GET /workers."""

    worker_id: int
    lifecycle: str
    kv_events: dict[int, EventStatus] = {}
    not_schedulable_reasons: list[str] = []


class OverlapRow(msgspec.Struct):
    """One rank of POST /overlap_scores."""

    worker_id: int
    dp_rank: int
    device_blocks: int


class OverlapScores(msgspec.Struct):
    """POST /overlap_scores."""

    workers: list[OverlapRow]


class SelectorClient:
    """One keep-alive client.  `latencies_s` holds the seconds of every lifecycle call, by verb."""

    def __init__(self, base_url: str, model_name: str) -> None:
        self._http = httpx.AsyncClient(base_url=base_url, timeout=CALL_TIMEOUT_S, trust_env=False)
        self._model_name = model_name
        self.latencies_s: dict[str, list[float]] = defaultdict(list)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def is_alive(self) -> bool:
        """Whether GET /health answers 200 now."""
        try:
            return (await self._http.get("/health")).status_code == 200
        except httpx.TransportError:
            return False

    async def register(self, registration: dict[str, Any]) -> Worker:
        """POST /workers."""
        body = registration | {"model_name": self._model_name}
        return msgspec.json.decode(await self._call("POST", "/workers", body), type=Worker)

    async def workers(self) -> list[Worker]:
        """GET /workers."""
        return msgspec.json.decode(await self._call("GET", "/workers"), type=list[Worker])

    async def policy(self) -> str:
        """By which the service chooses, from GET /config."""
        answer = await self._call("GET", "/config")
        return str(msgspec.json.decode(answer)["settings"]["policy"]["value"])

    async def telling_decision(self) -> dict[str, Any] | None:
        """One of the last decisions, in the form of GET /decisions/{id}; None: none is kept.

        Of the close ones one where another rank had more of the prompt in its cache than the chosen
        one, if there is any.
        """
        try:
            listed = await self._call("GET", f"/decisions?limit={DECISIONS_LISTED}")
        except CallFailed:
            return None
        rows = msgspec.json.decode(listed)["decisions"]
        rows.sort(key=lambda row: (row["runner_up_cost"] or math.inf) - row["cost"])
        closest: dict[str, Any] | None = None
        for row in rows[:DECISIONS_LOOKED_AT]:
            path = f"/decisions/{row['reservation_id']}"
            found = msgspec.json.decode(await self._call("GET", path))
            chosen = next(each for each in found["candidates"] if each["chosen"])
            if any(each["gpu_blocks"] > chosen["gpu_blocks"] for each in found["candidates"]):
                return dict(found)
            closest = closest or dict(found)
        return closest

    async def loads(self) -> list[Loads]:
        """GET /loads."""
        return msgspec.json.decode(await self._call("GET", "/loads"), type=list[Loads])

    async def overlap_scores(self, token_ids: list[int]) -> OverlapScores:
        """POST /overlap_scores."""
        body = {"model_name": self._model_name, "token_ids": token_ids}
        answer = await self._call("POST", "/overlap_scores", body)
        return msgspec.json.decode(answer, type=OverlapScores)

    async def select_and_reserve(self, reservation_id: str, token_ids: list[int]) -> Choice:
        """Choose a rank and book the request on it."""
        body = {
            "model_name": self._model_name,
            "selection_id": reservation_id,
            "reservation_id": reservation_id,
            "token_ids": token_ids,
        }
        answer = await self._timed("select_and_reserve", "POST", "/select_and_reserve", body)
        return msgspec.json.decode(answer, type=Choice)

    async def prefill_complete(self, reservation_id: str) -> None:
        """The prompt has been computed."""
        path = f"/reservations/{reservation_id}/prefill_complete"
        await self._timed("prefill_complete", "POST", path, {})

    async def output_block(self, reservation_id: str) -> None:
        """The answer has grown by a block."""
        path = f"/reservations/{reservation_id}/output_block"
        await self._timed("output_block", "POST", path, {})

    async def free(self, reservation_id: str) -> None:
        """The request is done."""
        await self._timed("DELETE", "DELETE", f"/reservations/{reservation_id}")

    async def _timed(
        self, verb: str, method: str, path: str, body: dict[str, Any] | None = None
    ) -> bytes:
        started = time.perf_counter()
        answer = await self._call(method, path, body)
        self.latencies_s[verb].append(time.perf_counter() - started)
        return answer

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            response = await self._http.request(method, path, content=content, headers=headers)
        except httpx.HTTPError as error:
            raise CallFailed(f"{method} {path}: {type(error).__name__} {error}") from error
        if not response.is_success:
            raise CallFailed(f"{method} {path}: {response.status_code} {response.text[:300]}")
        return response.content
