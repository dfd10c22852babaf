"""HTTP of the virtual connector, for an application to mount.

GET  /v1/decision?after=ID&timeout_ms=N      the newest; with `timeout_ms` one beyond `after`
POST /v1/decision/{decision_id}/complete     it is carried out; body: what is there now, or none
"""

from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from select_service.planner.connectors.base import ConnectorUnavailable
from select_service.planner.connectors.virtual import (
    WAIT_S_MAX,
    WAITERS_MAX,
    TooManyWaiters,
    VirtualConnector,
)
from select_service.planner.connectors.virtual_state import Completion, UnknownDecision
from select_service.planner.core.inputs import (
    REPLICAS_MAX,
    Role,
)
from select_service.planner.json_requests import Refused, answered, body_as, json_response

Find = Callable[[Request], VirtualConnector | None]
"""The connector that a request is about; None: there is none."""
_Count = Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]


class CompletedBody(Struct, forbid_unknown_fields=True):
    """What is there now; what is left out keeps what was said before."""

    num_prefill: _Count | None = None
    num_decode: _Count | None = None

    def counts(self) -> dict[Role, int]:
        """By role."""
        given = {Role.PREFILL: self.num_prefill, Role.DECODE: self.num_decode}
        return {role: count for role, count in given.items() if count is not None}


class DecisionBody(Struct):
    """The newest decision; -1: never decided."""

    decision_id: int
    num_prefill: int
    num_decode: int
    superseded: bool
    decided_at: float
    victims: tuple[int, ...]
    completed: bool
    kept: dict[Role, int] | None
    """A newer wish that will replace it if it lasts."""


class CompletionBody(Struct):
    """What became of an acknowledgement, and the newest decision."""

    decision_id: int
    status: Completion
    current: DecisionBody


def decision_routes(find: Find) -> list[Route]:
    """For one deployment `find` ignores the request; for several it reads `?deployment=`."""

    async def decision(request: Request) -> Response:
        return await _decision(_found(find, request), request)

    async def complete(request: Request) -> Response:
        return await _complete(_found(find, request), request)

    return [
        Route("/v1/decision", answered(decision), methods=["GET"]),
        Route("/v1/decision/{decision_id}/complete", answered(complete), methods=["POST"]),
    ]


def _found(find: Find, request: Request) -> VirtualConnector:
    connector = find(request)
    if connector is None:
        text = "no deployment with a virtual connector is meant: name it with ?deployment=NAME"
        raise Refused(404, "not_found", text)
    return connector


async def _decision(connector: VirtualConnector, request: Request) -> Response:
    after = _number(request, "after", -1, -1, 1 << 62)
    timeout_ms = _number(request, "timeout_ms", 0, 0, int(WAIT_S_MAX * 1000))
    try:
        await connector.after(after, timeout_ms / 1000)
    except TooManyWaiters:
        raise Refused(503, "capacity_exceeded", f"{WAITERS_MAX} callers wait already") from None
    return json_response(_shown(connector))


async def _complete(connector: VirtualConnector, request: Request) -> Response:
    text = request.path_params["decision_id"]
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Refused(400, "bad_request", f"{text[:40]!r}: expected the number of a decision")
    reported = await body_as(request, CompletedBody, str, optional=True)
    try:
        status = await connector.complete(int(text), reported.counts())
    except UnknownDecision:
        newest = connector.decision.decision_id
        error = f"no decision has the number {text}; the newest is {newest}"
        raise Refused(404, "not_found", error) from None
    except ConnectorUnavailable as error:
        raise Refused(503, "unavailable", f"cannot be kept: {error}") from None
    return json_response(CompletionBody(int(text), status, _shown(connector)))


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 20:
        number = int(text)
        if least <= number <= most:
            return number
    error = f"`{name}`: expected a whole number from {least} to {most}, not {text[:40]!r}"
    raise Refused(422, "invalid_parameter", error)


def _shown(connector: VirtualConnector) -> DecisionBody:
    decision, kept = connector.decision, connector.kept
    return DecisionBody(
        decision_id=decision.decision_id,
        num_prefill=decision.num_prefill,
        num_decode=decision.num_decode,
        superseded=decision.superseded,
        decided_at=decision.decided_at,
        victims=decision.victims,
        completed=not connector.is_open,
        kept=None if kept is None else dict(kept),
    )
