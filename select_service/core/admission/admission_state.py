"""State of the admission stage, for operators."""

from collections.abc import Mapping
from heapq import nlargest

from msgspec import UNSET

from select_service.core.admission.admission_gate import AdmissionGate
from select_service.core.admission.waiting_list import Backlog
from select_service.core.admission.waiting_ticket import UNNAMED_FLOW
from select_service.schemas.admission import (
    AdmissionState,
    BusyThresholdView,
    ClassState,
    DegradedModel,
    FlowState,
)

FLOWS_SHOWN_MAX = 16
"""Flows of a class in an answer."""


def make_admission_state(
    gate: AdmissionGate, thresholds: list[BusyThresholdView]
) -> AdmissionState:
    """Return the answer of GET /admission."""
    tiers, rules = gate.shedding.tiers, gate.rules
    return AdmissionState(
        tiers=list(tiers.names),
        default_tier=tiers.names[tiers.default],
        shed_tier=tiers.shed_tier,
        shed_tiers=list(tiers.shed_names),
        queueing=rules is not None,
        queue_timeout_s=None if rules is None else rules.timeout_s or None,
        waiting_requests=gate.waiting.requests,
        waiting_isl_tokens=gate.waiting.isl_tokens,
        classes=list_class_states(gate),
        thresholds=thresholds,
        outcomes=gate.tally.outcome_counts(),
        # The field is absent, not empty, while no model is degraded.
        degraded=_degraded_models(gate) or UNSET,
    )


def list_class_states(gate: AdmissionGate) -> list[ClassState]:
    """Return the queues of the policy classes, by name."""
    flows = gate.waiting.backlog_by_flow()
    return [
        ClassState(
            policy_class=name,
            waiting_requests=waiting.requests,
            waiting_isl_tokens=waiting.isl_tokens,
            deadline_exceeded=gate.tally.missed_deadlines[name],
            flows=_largest_flows(flows.get(name, {})),
        )
        for name, waiting in sorted(gate.backlog_by_class().items())
    ]


def _largest_flows(flows: Mapping[str, Backlog]) -> list[FlowState]:
    if flows.keys() <= {UNNAMED_FLOW}:
        return []
    largest = nlargest(FLOWS_SHOWN_MAX, flows.items(), key=lambda item: item[1])
    return [
        FlowState(
            fairness_id=name,
            waiting_requests=waiting.requests,
            waiting_isl_tokens=waiting.isl_tokens,
        )
        for name, waiting in largest
    ]


def _degraded_models(gate: AdmissionGate) -> list[DegradedModel]:
    names = gate.shedding.tiers.names
    return [
        DegradedModel(
            model_name=model_name,
            level=brake.level,
            shed_tier=None if brake.shed_from is None else names[brake.shed_from],
            refuses_new=brake.refuses_all,
            batch_multiplier=brake.batch_share,
            latency_multiplier=brake.latency_share,
        )
        for model_name, brake in sorted(gate.shedding.rules.items())
    ]
