"""Client of the selection service for a gateway: book, report, and follow moves.

Reports never stop an answer: what cannot be sent now is dropped, and a reservation that is not
freed ends with its lease. Only a booking can fail.
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
OBSERVED_S = 600
PAUSE_S = 0.5
"""Pause after a failed poll, in seconds."""


class NoAnswer(Exception):
    """Refusal for the client: status, body, and `retry-after`."""

    def __init__(self, status: int, content: bytes, retry_after: str | None = None) -> None:
        """content: JSON body"""
        super().__init__(status, content[:200])
        self.status, self.content, self.retry_after = status, content, retry_after

    @classmethod
    def because(cls, status: int, message: str, retry_after: str | None = None) -> Self:
        error = {"message": message, "type": "gateway_error", "code": status}
        return cls(status, json.dumps({"error": error}).encode(), retry_after)

    def as_event(self) -> bytes:
        """Return the refusal as an event of a begun stream."""
        error = {"message": message_of(self.content), "code": self.status}
        return json.dumps({"error": error}).encode()


def message_of(content: bytes) -> str:
    """Return the text of a refusal of the service, of an engine, or of `NoAnswer.because`."""
    try:
        error = json.loads(content)["error"]
        message = error if isinstance(error, str) else error["message"]
    except (ValueError, LookupError, TypeError):
        message = None
    return message if isinstance(message, str) else content.decode(errors="replace")


class Unreachable(NoAnswer):
    """Raised when it is unknown whether the service booked."""


class Rank(NamedTuple):
    """Rank and endpoint of a request."""

    worker_id: int
    dp_rank: int
    endpoint: str

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the rank named in an answer of the service."""
        return cls(record["worker_id"], record["dp_rank"], record["endpoint"])


class Booking(NamedTuple):
    """Reservation of a rank.

    block_size: tokens after which an output block is reported
    chosen: answer of the service; of a pair with both legs
    """

    rank: Rank
    block_size: int
    chosen: Mapping[str, Any]

    @classmethod
    def of(cls, chosen: Mapping[str, Any]) -> Self:
        """Return the booking of an answer; of a pair the rank that decodes."""
        record = chosen["legs"][1] if "legs" in chosen else chosen
        return cls(Rank.of(record), chosen["block_size"], chosen)


class Wanted(NamedTuple):
    """Request for a rank.

    prompt: token ids; None means unknown, and the load alone decides
    """

    model: str
    prompt: list[int] | None
    prompt_tokens: int
    migratable: bool

    def body(self) -> dict[str, Any]:
        words: dict[str, Any] = {"model_name": self.model, "migratable": self.migratable}
        if self.prompt is not None:
            return words | {"token_ids": self.prompt}
        return words | {"block_hashes": [], "sequence_hashes": [], "isl_tokens": self.prompt_tokens}


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

    async def reserve(self, reservation_id: str, wanted: Wanted, avoid: Set[int]) -> Booking:
        """Choose and book a rank. Raises NoAnswer, Unreachable.

        avoid: workers to be used only without others
        """
        body = (
            wanted.body()
            | self._rules
            | {
                "reservation_id": reservation_id,
                "timeout_ms": int(1000 * SELECT_S_MAX),
            }
        )
        try:
            if avoid:
                others = await self._others(wanted.model, avoid)
                body |= {"allowed_worker_ids": others} if others else {}
            return await self._chosen(body)
        except (aiohttp.ClientError, TimeoutError) as error:
            why = f"the selection service cannot be reached: {type(error).__name__}: {error}"
            raise Unreachable.because(503, why, "1") from error

    async def _chosen(self, body: Mapping[str, Any]) -> Booking:
        timeout = aiohttp.ClientTimeout(total=SELECT_S_MAX + CALL_S_MAX)
        url = f"{self._url}{self._route}"
        async with self._http.post(url, json=body, timeout=timeout) as answer:
            content = await answer.read()
        if answer.status != 200:  # busy, shed, or no worker: passed to the client
            raise NoAnswer(answer.status, content, answer.headers.get("retry-after"))
        return Booking.of(json.loads(content))

    async def move_prefill(self, reservation_id: str) -> Booking | None:
        """Move the prefill leg of a pair to another rank, or None if there is none."""
        path = f"/reservations/{reservation_id}/move"
        chosen = await self.tell("POST", path, {"leg": "prefill"})
        return Booking.of(chosen) if chosen else None

    async def _others(self, model: str, avoid: Set[int]) -> list[int]:
        timeout = aiohttp.ClientTimeout(total=CALL_S_MAX)
        url, query = f"{self._url}/workers", {"model_name": model}
        async with self._http.get(url, params=query, timeout=timeout) as answer:
            workers = await answer.json()
        there = (w["worker_id"] for w in workers if w["lifecycle"] == "schedulable")
        return [worker_id for worker_id in there if worker_id not in avoid]

    async def tell(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send a report and return its answer, empty for a refusal or without a connection."""
        timeout = aiohttp.ClientTimeout(total=CALL_S_MAX)
        try:
            url = f"{self._url}{path}"
            async with self._http.request(method, url, json=body, timeout=timeout) as answer:
                if answer.status == 200:
                    told: dict[str, Any] = await answer.json()
                    return told
                if answer.status >= 300:
                    log.debug("%s %s: %d", method, path, answer.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            log.debug("%s %s: %r", method, path, error)
        return {}

    async def observed(self, model: str) -> Mapping[str, Any]:
        """Return the observation of the last ten minutes, or an empty one.

        With API keys this needs a key of the role metrics or operator besides caller.
        """
        timeout = aiohttp.ClientTimeout(total=CALL_S_MAX)
        url, query = f"{self._url}/planner/observation", {"model_name": model}
        try:
            async with self._http.get(
                url, params=query | {"window_s": str(OBSERVED_S)}, timeout=timeout
            ) as answer:
                if answer.status == 200:
                    found: dict[str, Any] = await answer.json()
                    return found
                self._warn_of_refusal(answer.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            log.debug("observation not received: %r", error)
        return {}

    def _warn_of_refusal(self, status: int) -> None:
        """Log once that first-token times stay unknown; 404 means that the model had no request."""
        if status == 404 or self._is_refusal_logged:
            return
        self._is_refusal_logged = True
        log.warning(
            "observation refused with status %d: waiting up to a minute for first tokens; the key "
            "needs the role metrics, or give --first-token-secs",
            status,
        )

    async def follow(
        self, moved: Callable[[Mapping[str, Any]], None], missed: Callable[[], None]
    ) -> None:
        """Follow moves by long poll until cancelled.

        moved: called for each event
        missed: called when events were lost, or the service restarted
        """
        after, is_told = 0, True
        while True:
            try:
                page = await self._page(after)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                if is_told:
                    log.warning("moves are not told of: %s: %s", type(error).__name__, error)
                is_told = False
                await asyncio.sleep(PAUSE_S)
                continue
            is_told = True
            if page.get("gap"):
                missed()
            for event in page["events"]:
                moved(event)
            after = page["next"]

    async def _page(self, after: int) -> Mapping[str, Any]:
        query = {"after": after, "timeout_ms": int(1000 * POLL_S)}
        timeout = aiohttp.ClientTimeout(total=POLL_S + CALL_S_MAX)
        url = f"{self._url}/migrations"
        async with self._http.get(url, params=query, timeout=timeout) as answer:
            answer.raise_for_status()  # 409: health checks are off
            page: Mapping[str, Any] = await answer.json()
            return page
