"""Client for programs that carry out a planner's decisions: start and end engines.

async with VirtualConnectorClient("http://planner:8095") as planner:
    while True:
        decision = await planner.wait()
        end_and_start_engines(decision)
        await planner.complete(decision, num_decode=4)
"""

import asyncio
from typing import NamedTuple, Self
from urllib.parse import quote

import msgspec
from msgspec import Struct

from select_service.client.errors import Refused, Unavailable
from select_service.client.httpx_transport import HttpxTransport
from select_service.client.transport import (
    ClientRequest,
    ClientResponse,
    Transport,
    TransportError,
)

POLL_S = 50.0
"""Time of a long poll, seconds; the planner answers after at most 60 s."""
CALL_S_MAX = 10.0
"""Time limit of a call beside the poll, seconds."""
PAUSE_S, PAUSE_S_MAX = 0.5, 10.0
"""Pause after a call that the planner did not answer, doubled up to a maximum, seconds."""


class ScalingDecision(NamedTuple):
    """Decision of a planner.

    num_prefill, num_decode: replicas to run, with those that are replaced; None means that this
        role was never decided
    victims: workers that were drained, and are to be ended first
    replace: workers that are out for their health: to be ended, and started anew in their places
    is_completed: whether the decision was acknowledged
    """

    decision_id: int
    num_prefill: int | None
    num_decode: int | None
    victims: tuple[int, ...] = ()
    replace: tuple[int, ...] = ()
    is_completed: bool = False


class _Decision(Struct):
    decision_id: int
    num_prefill: int
    num_decode: int
    victims: tuple[int, ...] = ()
    replace: tuple[int, ...] = ()
    completed: bool = False


class _Acknowledged(Struct):
    status: str


class _Refusal(Struct):
    error: str = ""
    code: str = ""


class VirtualConnectorClient:
    """Client of a deployment with a virtual connector. Belongs to one event loop."""

    def __init__(
        self, url: str, *, deployment: str | None = None, transport: Transport | None = None
    ) -> None:
        """Create the client.

        url: URL of the planner
        deployment: name, if the planner has several deployments
        transport: connections; None means own ones
        """
        self._url = url.rstrip("/")
        self._query = "" if deployment is None else f"deployment={quote(deployment, safe='')}"
        self._transport = transport or HttpxTransport()
        self._after = -1
        """Number of the last decision that `wait` has returned."""

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def read(self) -> ScalingDecision | None:
        """Return the newest decision; None before the first.  Raises Refused, Unavailable."""
        return await self._read_decision("", CALL_S_MAX)

    async def wait(self) -> ScalingDecision:
        """Return the next decision that is to be carried out, however long it takes.

        The first call returns the newest decision unless that was acknowledged, so that a restarted
        program continues. While the planner does not answer, the wait goes on. Raises Refused, for
        example for a wrong deployment.
        """
        pause_s = PAUSE_S
        while True:
            try:
                query = f"after={self._after}&timeout_ms={round(POLL_S * 1000)}"
                decision = await self._read_decision(query, POLL_S + CALL_S_MAX)
            except (Unavailable, Refused) as error:
                if isinstance(error, Refused) and error.status < 500:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(2.0 * pause_s, PAUSE_S_MAX)
                continue
            pause_s = PAUSE_S
            # A planner that lost its state begins again with 0.
            if decision is None or decision.decision_id < self._after:
                self._after = -1
            if decision is None or decision.decision_id == self._after:
                continue
            self._after = decision.decision_id
            if not decision.is_completed:
                return decision

    async def complete(
        self,
        decision: ScalingDecision,
        *,
        num_prefill: int | None = None,
        num_decode: int | None = None,
    ) -> bool:
        """Acknowledge a decision; return False if a newer one has replaced it.

        num_prefill, num_decode: replicas that run now; None means as decided
        Raises Refused, Unavailable; the call may be repeated.
        """
        counts = {"num_prefill": num_prefill, "num_decode": num_decode}
        body = {name: count for name, count in counts.items() if count is not None}
        target = f"/v1/decision/{decision.decision_id}/complete"
        answer = await self._call("POST", target, "", msgspec.json.encode(body), CALL_S_MAX)
        return msgspec.json.decode(answer.content, type=_Acknowledged).status == "completed"

    async def _read_decision(self, query: str, timeout_s: float) -> ScalingDecision | None:
        """Return the newest decision; None before the first."""
        answer = await self._call("GET", "/v1/decision", query, None, timeout_s)
        try:
            found = msgspec.json.decode(answer.content, type=_Decision)
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"{self._url}: no decision of a planner: {error}") from None
        if found.decision_id < 0:
            return None
        return ScalingDecision(
            found.decision_id,
            found.num_prefill if found.num_prefill >= 0 else None,
            found.num_decode if found.num_decode >= 0 else None,
            found.victims,
            found.replace,
            found.completed,
        )

    async def _call(
        self, method: str, path: str, query: str, content: bytes | None, timeout_s: float
    ) -> ClientResponse:
        """Return a 2xx answer.  Raises Refused, Unavailable."""
        parts = "&".join(part for part in (self._query, query) if part)
        target = f"{path}?{parts}" if parts else path
        headers = {} if content is None else {"content-type": "application/json"}
        request = ClientRequest(method, target, content, headers)
        try:
            answer = await self._transport.send(self._url, request, timeout_s)
        except TransportError as error:
            raise Unavailable(f"{self._url}: {error}", may_be_done=error.was_sent) from None
        if 200 <= answer.status < 300:
            return answer
        try:
            refusal = msgspec.json.decode(answer.content, type=_Refusal)
        except (ValueError, RecursionError):
            refusal = _Refusal(error="not an answer of a planner: check the URL")
        raise Refused(answer.status, refusal.code, refusal.error)
