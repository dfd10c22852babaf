"""Attributes of a selection span (docs/guides/monitoring.md)."""

from typing import Any

from msgspec import UNSET
from opentelemetry.trace import Span, Status, StatusCode

from select_service.core.decision_maker import PlacementDecision
from select_service.core.placement import decision_ring_layout as layout
from select_service.core.placement.decision_decoder import row_policy
from select_service.core.placement.decision_ring import DecisionRing
from select_service.schemas.common import DEFAULT_NAME
from select_service.schemas.reservations import Reservation, ReservationRequest
from select_service.schemas.selection import Selection, SelectRequest

OWN = "select_service."
CLIENT_GONE = "client_gone"
"""Outcome name that `api.resource` uses too."""
SELECTED, REFUSED, FAILED = "selected", "refused", "failed"


class SelectionSpan:
    """Started span; `end` hands it to the exporter."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def record_request(self, body: SelectRequest | ReservationRequest) -> None:
        """Record the model and tenant of the request."""
        self._span.set_attribute("gen_ai.request.model", body.model_name)
        named = (each for each in (body.tenant_id, body.routing_group) if isinstance(each, str))
        self._span.set_attribute(OWN + "tenant_id", next(named, DEFAULT_NAME))

    def record_decision(self, decision: PlacementDecision, ring: DecisionRing | None) -> None:
        """Record a decision.

        ring: recorded decisions; None means that decisions are not recorded
        """
        found = _of_selection(decision.selection)
        if decision.number is not None and ring is not None:
            found |= _of_row(ring, decision.number)
        if decision.queue_wait is not None:
            found[OWN + "queue.policy_class"] = decision.queue_wait.policy_class
            found[OWN + "queue.position"] = decision.queue_wait.position
            found[OWN + "queue.wait"] = decision.queue_wait.seconds
        self._span.set_attributes(found)

    def record_reservation(self, reservation: Reservation, request: ReservationRequest) -> None:
        """Record a reservation on a rank chosen by the caller."""
        found = _of_rank(reservation)
        found[OWN + "reservation_id"] = reservation.reservation_id
        if request.effective_prefill_tokens is not None:
            found[OWN + "effective_prefill_tokens"] = request.effective_prefill_tokens
        self._span.set_attributes(found)

    def end_span(self, status: int, code: str | None) -> None:
        """End the span.

        code: error code, or CLIENT_GONE
        """
        span = self._span
        if code == CLIENT_GONE:
            span.set_attribute(OWN + "outcome", CLIENT_GONE)
            span.end()
            return
        span.set_attribute("http.response.status_code", status)
        if code is not None:
            span.set_attribute(OWN + "refusal.code", code)
        # A 503 with a code is an intended rejection, not a failure of the service.
        is_failed = status >= 500 and code in (None, "internal_error")
        outcome = FAILED if is_failed else SELECTED if status < 400 else REFUSED
        span.set_attribute(OWN + "outcome", outcome)
        if status >= 500:
            span.set_attribute("error.type", code or str(status))
            span.set_status(Status(StatusCode.ERROR))
        span.end()


def _of_rank(chosen: Selection | Reservation) -> dict[str, Any]:
    """Return the attributes of a rank.

    Worker ids are unsigned 64-bit numbers, which do not fit the signed attribute type, hence
    strings.
    """
    return {
        OWN + "worker_id": str(chosen.worker_id),
        OWN + "dp_rank": chosen.dp_rank,
        OWN + "endpoint": chosen.endpoint,
    }


def _of_selection(selection: Selection) -> dict[str, Any]:
    overlap, size = selection.overlap, selection.block_size
    found = _of_rank(selection) | {
        OWN + "block_size": size,
        OWN + "overlap.gpu_tokens": overlap.gpu,
        OWN + "overlap.cpu_tokens": overlap.cpu,
        OWN + "overlap.disk_tokens": overlap.disk,
        OWN + "overlap.blocks": overlap.longest_matched // size,
        OWN + "effective_prefill_tokens": selection.effective_prefill_tokens,
    }
    if selection.reservation_id is not UNSET:
        found[OWN + "reservation_id"] = selection.reservation_id
    if selection.selection_id is not UNSET:
        found[OWN + "selection_id"] = selection.selection_id
    return found


def _of_row(ring: DecisionRing, number: int) -> dict[str, Any]:
    row = ring.find_by_number(number)
    if row is None:
        return {OWN + "decision": number}
    return {
        OWN + "decision": number,
        OWN + "policy": row_policy(row).name,
        OWN + "candidates": int(row[layout.N_ELIGIBLE]),
        OWN + "prompt.tokens": int(row[layout.ISL_TOKENS]),
        OWN + "prompt.blocks": int(row[layout.N_BLOCKS]),
    }
