"""Client of the selection service for a gateway: reserve ranks, report, and follow moves.

Reports never stop an answer: a report that cannot be sent is dropped, and a reservation that is not
freed expires. Only `Selector.reserve_rank` can fail.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple, Self

import aiohttp

log = logging.getLogger("gateway")

SELECT_S_MAX = 30.0
"""Longest wait for room in the service's queue, in seconds."""
CALL_S_MAX = 5.0
POLL_S = 20.0
WINDOW_S = 600
"""Window of an observation, in seconds."""
PAUSE_S = 0.5
"""Pause after a failed poll, in seconds."""


class GatewayError(Exception):
    """Error for the client: status, body, and `retry-after`."""

    def __init__(self, status: int, content: bytes, retry_after: str | None = None) -> None:
        """content: JSON body"""
        super().__init__(status, content[:200])
        self.status, self.content, self.retry_after = status, content, retry_after

    @classmethod
    def from_message(cls, status: int, message: str, retry_after: str | None = None) -> Self:
        error = {"message": message, "type": "gateway_error", "code": status}
        return cls(status, json.dumps({"error": error}).encode(), retry_after)

    def render_event(self) -> bytes:
        """Return the error as an event of a begun stream."""
        error = {"message": parse_message(self.content), "code": self.status}
        return json.dumps({"error": error}).encode()


def parse_message(content: bytes) -> str:
    """Return the error text of the service, of an engine, or of `GatewayError.from_message`."""
    try:
        error = json.loads(content)["error"]
        message = error if isinstance(error, str) else error["message"]
    except (ValueError, LookupError, TypeError):
        message = None
    return message if isinstance(message, str) else content.decode(errors="replace")


class LostCall(GatewayError):
    """Error of a call without a response: the service may have reserved a rank."""


class Rank(NamedTuple):
    """Rank and endpoint of a request."""

    worker_id: int
    dp_rank: int
    endpoint: str

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the rank in a response of the service."""
        return cls(record["worker_id"], record["dp_rank"], record["endpoint"])


class Reservation(NamedTuple):
    """Reservation of a rank.

    block_size: tokens after which an output block is reported
    selection: response of the service; a pair has both legs
    """

    rank: Rank
    block_size: int
    selection: Mapping[str, Any]

    @classmethod
    def from_selection(cls, selection: Mapping[str, Any]) -> Self:
        """Return the reservation of a selection; for a pair, at the decode rank."""
        record = selection["legs"][1] if "legs" in selection else selection
        return cls(Rank.from_record(record), selection["block_size"], selection)


class RankRequest(NamedTuple):
    """Request for a rank.

    prompt: token ids; None means that the load alone decides
    """

    model: str
    prompt: list[int] | None
    prompt_tokens: int
    migratable: bool

    def build_payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = {"model_name": self.model, "migratable": self.migratable}
        if self.prompt is not None:
            return payload | {"token_ids": self.prompt}
        payload |= {"block_hashes": [], "sequence_hashes": []}
        return payload | {"isl_tokens": self.prompt_tokens}


class Selector:
    """Client of one selection service."""

    def __init__(self, http: aiohttp.ClientSession, url: str, pairs: str = "off") -> None:
        """pairs: `off`, or the rule `local` of pairs"""
        self.has_pairs = pairs != "off"
        self._route = "/select_pair_and_reserve" if self.has_pairs else "/select_and_reserve"
        self._rules = {"local": pairs} if self.has_pairs else {}
        self._http = http
        self._url = url.rstrip("/")
        self._is_refusal_logged = False

    async def reserve_rank(
        self, reservation_id: str, request: RankRequest, avoid: Set[int]
    ) -> Reservation:
        """Choose and reserve a rank. Raises GatewayError.

        avoid: workers to use only if the model has no others
        """
        payload = request.build_payload() | self._rules
        payload |= {"reservation_id": reservation_id, "timeout_ms": int(1000 * SELECT_S_MAX)}
        try:
            if avoid:
                others = await self._list_other_workers(request.model, avoid)
                payload |= {"allowed_worker_ids": others} if others else {}
            return await self._post_reservation(payload)
        except (aiohttp.ClientError, TimeoutError) as error:
            message = (
                f"the selection service is unreachable, retry: {type(error).__name__}: {error}"
            )
            raise LostCall.from_message(503, message, "1") from error

    async def _post_reservation(self, payload: Mapping[str, Any]) -> Reservation:
        timeout = aiohttp.ClientTimeout(total=SELECT_S_MAX + CALL_S_MAX)
        url = f"{self._url}{self._route}"
        async with self._http.post(url, json=payload, timeout=timeout) as response:
            content = await response.read()
        if response.status != 200:  # busy, shed, or no worker: the client receives the refusal
            raise GatewayError(response.status, content, response.headers.get("retry-after"))
        return Reservation.from_selection(json.loads(content))

    async def move_prefill(self, reservation_id: str) -> Reservation | None:
        """Move the prefill leg of a pair; return None if no other rank is available."""
        path = f"/reservations/{reservation_id}/move"
        selection = await self.send_report("POST", path, {"leg": "prefill"})
        return Reservation.from_selection(selection) if selection else None

    async def _list_other_workers(self, model: str, avoid: Set[int]) -> list[int]:
        timeout = aiohttp.ClientTimeout(total=CALL_S_MAX)
        url, query = f"{self._url}/workers", {"model_name": model}
        async with self._http.get(url, params=query, timeout=timeout) as response:
            workers = await response.json()
        schedulable = (w["worker_id"] for w in workers if w["lifecycle"] == "schedulable")
        return [worker_id for worker_id in schedulable if worker_id not in avoid]

    async def send_report(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send a report and return the response; empty for a refusal or without a connection."""
        timeout = aiohttp.ClientTimeout(total=CALL_S_MAX)
        try:
            url = f"{self._url}{path}"
            async with self._http.request(method, url, json=body, timeout=timeout) as response:
                if response.status == 200:
                    payload: dict[str, Any] = await response.json()
                    return payload
                if response.status >= 300:
                    log.debug("%s %s: %d", method, path, response.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            log.debug("%s %s: %r", method, path, error)
        return {}

    async def fetch_observation(self, model: str) -> Mapping[str, Any]:
        """Return the observation of the last ten minutes; empty on an error.

        With API keys, the key needs the role metrics or operator besides caller.
        """
        timeout = aiohttp.ClientTimeout(total=CALL_S_MAX)
        url = f"{self._url}/planner/observation"
        query = {"model_name": model, "window_s": str(WINDOW_S)}
        try:
            async with self._http.get(url, params=query, timeout=timeout) as response:
                if response.status == 200:
                    payload: dict[str, Any] = await response.json()
                    return payload
                self._log_refusal(response.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            log.debug("observation not received: %r", error)
        return {}

    def _log_refusal(self, status: int) -> None:
        """Log once that first-token times stay unknown; 404 means that the model had no request."""
        if status == 404 or self._is_refusal_logged:
            return
        self._is_refusal_logged = True
        log.warning(
            "observation refused with status %d: first tokens may take a minute; give the key "
            "the role metrics, or set --first-token-secs",
            status,
        )

    async def follow_moves(
        self, on_move: Callable[[Mapping[str, Any]], None], on_gap: Callable[[], None]
    ) -> None:
        """Follow moves by long poll until cancelled.

        on_move: called for each event
        on_gap: called when events were lost, or the service restarted
        """
        after, is_following = 0, True
        while True:
            try:
                page = await self._fetch_moves(after)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                if is_following:
                    log.warning("move events not received, needs --health-checks on: %r", error)
                is_following = False
                await asyncio.sleep(PAUSE_S)
                continue
            is_following = True
            if page.get("gap"):
                on_gap()
            for event in page["events"]:
                on_move(event)
            after = page["next"]

    async def _fetch_moves(self, after: int) -> Mapping[str, Any]:
        query = {"after": after, "timeout_ms": int(1000 * POLL_S)}
        timeout = aiohttp.ClientTimeout(total=POLL_S + CALL_S_MAX)
        url = f"{self._url}/migrations"
        async with self._http.get(url, params=query, timeout=timeout) as response:
            response.raise_for_status()  # 409: health checks are off
            page: Mapping[str, Any] = await response.json()
            return page
