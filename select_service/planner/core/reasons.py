"""Reasons of a tick's decision: every code, with a sentence for readers."""

from enum import StrEnum


class Reason(StrEnum):
    """Reason codes of all stages. Codes of the reference planner keep its names."""

    # Codes of the load proposer.
    DISABLED = "disabled"
    NO_FPM_DATA = "no_fpm_data"
    SCALING_IN_PROGRESS = "scaling_in_progress"
    WORKER_COUNT_MISMATCH = "worker_count_mismatch"
    INSUFFICIENT_DATA = "insufficient_data"
    NO_CHANGE = "no_change"
    SCALE_UP = "scale_up"
    SCALE_DOWN = "scale_down"
    SCALE_DOWN_CAPPED = "scale_down_capped_by_throughput"
    SCALE_DOWN_REFUSED = "scale_down_refused_consolidation"
    HOT_ENGINE = "hot_engine"
    IMBALANCE = "imbalance"
    SELECTOR_QUEUE = "selector_queue"
    SILENT_ENGINES = "silent_engines"
    NO_FORECAST_YET = "no_forecast_yet"
    STARTUP_DOWN = "startup_down"
    # Codes of the throughput proposer.
    NO_TRAFFIC_DATA = "no_traffic_data"
    MODEL_NOT_READY = "model_not_ready"
    PARTNER_NOT_READY = "partner_not_ready"
    SET_LOWER_BOUND = "set_lower_bound"
    SCALE = "scale"
    SLO_OUT_OF_REACH = "slo_out_of_reach"
    IDLE = "idle"
    # Codes of the merge and of budgets.
    REJECTED = "rejected_by_plugin"
    OVERRIDDEN = "override_by_user_plugin"
    GPU_BUDGET_HOLD = "gpu_budget_guard_hold"
    GPU_BUDGET_RECONCILE = "gpu_budget_reconcile"
    BELOW_MINIMUM = "below_min_endpoint"
    WAKE_UP = "wake_up"
    CLUSTER_BUDGET = "cluster_budget"
    PENDING_STUCK = "pending_stuck"
    STUCK_CEILING = "pending_stuck_ceiling"
    # Codes of the stabiliser.
    UP = "up"
    DOWN = "down"
    HOLD = "hold"
    WITHIN_TOLERANCE = "within_tolerance"
    UP_COOLDOWN = "up_cooldown"
    DOWN_COOLDOWN = "down_cooldown"
    PENDING = "pending"
    FIRST_WINDOW = "first_window"
    # Codes of the whole tick.
    BEFORE_FIRST_TICK = "before_first_tick"
    REPLICAS_UNKNOWN = "replicas_unknown"
    OBSERVATION_STALE = "observation_stale"
    ADVISORY = "advisory"


SENTENCES: dict[Reason, str] = {
    Reason.DISABLED: "This kind of scaling is disabled.",
    Reason.NO_FPM_DATA: "No engine reported its load in this tick, so there is no load proposal.",
    Reason.SCALING_IN_PROGRESS: "Replicas are still starting or ending; there is no new proposal.",
    Reason.WORKER_COUNT_MISMATCH: (
        "The engines that reported differ from the ready engines, or ranks are missing."
    ),
    Reason.INSUFFICIENT_DATA: "The performance model or a limit of the engines is unknown so far.",
    Reason.NO_CHANGE: "The number of replicas is right.",
    Reason.SCALE_UP: "Load or demand needs more replicas.",
    Reason.SCALE_DOWN: "The load fits on fewer replicas with a margin.",
    Reason.SCALE_DOWN_CAPPED: (
        "The load would fit on fewer replicas; the floor of the forecast applies."
    ),
    Reason.SCALE_DOWN_REFUSED: "With one replica less, latency or KV cache would exceed the limit.",
    Reason.HOT_ENGINE: "Too many requests are on engines above the latency target.",
    Reason.IMBALANCE: "One engine is hot while most are idle: check the routing, not the replicas.",
    Reason.SELECTOR_QUEUE: (
        "Requests queue at the selector or are refused: more replicas are needed."
    ),
    Reason.SILENT_ENGINES: (
        "A few engines did not report; for a step down they count as the busiest."
    ),
    Reason.NO_FORECAST_YET: "No step down before forecasts have been compared with real demand.",
    Reason.STARTUP_DOWN: "Start-ups are withdrawn because the load was low for two ticks.",
    Reason.NO_TRAFFIC_DATA: "The traffic of this window is unknown (which does not mean zero).",
    Reason.MODEL_NOT_READY: "The performance model of an engine is not ready.",
    Reason.PARTNER_NOT_READY: (
        "The performance model of the other role is not ready; both roles keep their replicas."
    ),
    Reason.SET_LOWER_BOUND: "The forecast sets the minimum number of replicas; load may add more.",
    Reason.SCALE: "The forecast needs another number of replicas.",
    Reason.SLO_OUT_OF_REACH: "No number of replicas keeps the latency target for this traffic.",
    Reason.IDLE: "There is no traffic; the minimum number of replicas is kept.",
    Reason.REJECTED: "An external proposer rejected the tick.",
    Reason.OVERRIDDEN: "An external proposer has set the number.",
    Reason.GPU_BUDGET_HOLD: "The GPU budget does not allow the step.",
    Reason.GPU_BUDGET_RECONCILE: (
        "The running replicas are outside of the GPU budget and are corrected."
    ),
    Reason.BELOW_MINIMUM: "Fewer replicas than the minimum run; the number is raised at once.",
    Reason.WAKE_UP: "Requests arrive while no replica is ready: at least one replica is needed.",
    Reason.CLUSTER_BUDGET: (
        "The GPUs of the cluster were given to deployments with higher precedence."
    ),
    Reason.PENDING_STUCK: "A start-up made no progress for too long; its target is withdrawn.",
    Reason.STUCK_CEILING: "After a stuck start-up no replica is added for a while.",
    Reason.UP: "More replicas are needed, at once.",
    Reason.DOWN: "No higher need in the whole window: one replica less.",
    Reason.HOLD: "The number of replicas is right, or was needed within the window.",
    Reason.WITHIN_TOLERANCE: "The difference is within the tolerance.",
    Reason.UP_COOLDOWN: "The last step up is too recent.",
    Reason.DOWN_COOLDOWN: "The last change is too recent for a step down.",
    Reason.PENDING: "Replicas are starting; no step down meanwhile.",
    Reason.FIRST_WINDOW: "The first window is incomplete; no step down yet.",
    Reason.BEFORE_FIRST_TICK: "The first tick is due at next_tick_s.",
    Reason.REPLICAS_UNKNOWN: "The number of replicas is unknown; nothing changes.",
    Reason.OBSERVATION_STALE: "No observation for three intervals; nothing changes.",
    Reason.ADVISORY: "Advisory mode: the decision is recorded and not applied.",
}
