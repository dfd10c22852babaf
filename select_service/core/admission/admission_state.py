"""State of the admission stage, for operators."""

from msgspec import UNSET

from select_service.core.admission.admission_gate import AdmissionGate
from select_service.schemas.admission import (
    AdmissionState,
    BusyThresholdView,
    ClassState,
    DegradedModel,
)


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
        classes=[
            ClassState(
                policy_class=name,
                waiting_requests=waiting.requests,
                waiting_isl_tokens=waiting.isl_tokens,
            )
            for name, waiting in sorted(gate.backlog_by_class().items())
        ],
        thresholds=thresholds,
        outcomes=gate.tally.outcome_counts(),
        # The field is absent, not empty, while no model is degraded.
        degraded=_degraded_models(gate) or UNSET,
    )


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
