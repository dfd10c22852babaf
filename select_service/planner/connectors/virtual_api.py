"""HTTP routes of the virtual connector, for an application to mount.

GET  /v1/decision?after=ID&timeout_ms=N      newest decision; with `timeout_ms` one beyond `after`
POST /v1/decision/{decision_id}/complete     acknowledgement; body: current replicas, or none
"""

from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from select_service.planner.connectors.connector import ConnectorUnavailable
from select_service.planner.connectors.virtual_connector import (
    WAIT_S_MAX,
    WAITERS_MAX,
    TooManyPolls,
    VirtualConnector,
)
from select_service.planner.connectors.virtual_state import (
    AcknowledgementEffect,
    UnknownDecisionNumber,
)
from select_service.planner.core.tick_input import REPLICAS_MAX, Role
from select_service.planner.json_bodies import (
    PlannerRefusal,
    json_answer,
    read_json_body,
)

FindConnector = Callable[[Request], VirtualConnector | None]
"""Function that returns the connector of a request, or None."""
_Count = Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]


class AcknowledgementBody(Struct, forbid_unknown_fields=True):
    """Current replicas; omitted roles keep their last reported number."""

    num_prefill: _Count | None = None
    num_decode: _Count | None = None

    def given_counts(self) -> dict[Role, int]:
        """Return the given counts by role."""
        given = {Role.PREFILL: self.num_prefill, Role.DECODE: self.num_decode}
        return {role: count for role, count in given.items() if count is not None}


class DecisionBody(Struct):
    """Newest decision; -1 means never decided."""

    decision_id: int
    num_prefill: int
    num_decode: int
    superseded: bool
    decided_at: float
    victims: tuple[int, ...]
    replace: tuple[int, ...]
    completed: bool
    kept: dict[Role, int] | None
    """Newer desired counts that replace the decision if they persist."""


class AcknowledgedBody(Struct):
    """Outcome of an acknowledgement, with the newest decision."""

    decision_id: int
    status: AcknowledgementEffect
    current: DecisionBody


def decision_routes(find: FindConnector) -> list[Route]:
    """Return the routes of the virtual connector. The application answers `PlannerRefusal`.

    find: function that ignores the request for one deployment, else reads `?deployment=`
    """

    async def decision(request: Request) -> Response:
        """Handle GET /v1/decision."""
        return await _answer_decision(_find_connector(find, request), request)

    async def complete(request: Request) -> Response:
        """Handle POST /v1/decision/{decision_id}/complete."""
        return await _answer_acknowledgement(_find_connector(find, request), request)

    return [
        Route("/v1/decision", decision, methods=["GET"]),
        Route("/v1/decision/{decision_id}/complete", complete, methods=["POST"]),
    ]


def _find_connector(find: FindConnector, request: Request) -> VirtualConnector:
    """Return the connector of a request. Raises PlannerRefusal."""
    connector = find(request)
    if connector is None:
        text = "no single deployment with a virtual connector matches: add ?deployment=NAME"
        raise PlannerRefusal(404, "not_found", text)
    return connector


async def _answer_decision(connector: VirtualConnector, request: Request) -> Response:
    """Answer with the newest decision, after a wait if requested."""
    after = _integer_parameter(request, "after", -1, -1, 1 << 62)
    timeout_ms = _integer_parameter(request, "timeout_ms", 0, 0, int(WAIT_S_MAX * 1000))
    try:
        await connector.wait_for_decision(after, timeout_ms / 1000)
    except TooManyPolls:
        raise PlannerRefusal(
            503, "capacity_exceeded", f"limit of {WAITERS_MAX} waiting callers reached; retry later"
        ) from None
    return json_answer(_decision_body(connector))


async def _answer_acknowledgement(connector: VirtualConnector, request: Request) -> Response:
    """Record an acknowledgement and answer with its outcome."""
    text = request.path_params["decision_id"]
    # str.isdigit accepts other scripts, and int() would accept numbers of any length.
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise PlannerRefusal(
            400, "bad_request", f"{text[:40]!r}: expected the number of a decision"
        )
    reported = await read_json_body(request, AcknowledgementBody, str, optional=True)
    try:
        status = await connector.acknowledge(int(text), reported.given_counts())
    except UnknownDecisionNumber:
        newest = connector.decision.decision_id
        error = f"decision {text} does not exist; the newest is {newest}"
        raise PlannerRefusal(404, "not_found", error) from None
    except ConnectorUnavailable as error:
        raise PlannerRefusal(503, "unavailable", f"the state cannot be written: {error}") from None
    return json_answer(AcknowledgedBody(int(text), status, _decision_body(connector)))


def _integer_parameter(request: Request, name: str, default: int, least: int, most: int) -> int:
    """Return an integer query parameter within its bounds. Raises PlannerRefusal."""
    text = request.query_params.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 20:
        number = int(text)
        if least <= number <= most:
            return number
    error = f"`{name}`: expected a whole number from {least} to {most}, not {text[:40]!r}"
    raise PlannerRefusal(422, "invalid_parameter", error)


def _decision_body(connector: VirtualConnector) -> DecisionBody:
    """Return the body of the newest decision."""
    kept = connector.kept_counts
    return DecisionBody(
        **asdict(connector.decision),
        completed=not connector.is_open,
        kept=None if kept is None else dict(kept),
    )
