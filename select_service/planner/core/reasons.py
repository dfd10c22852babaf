"""Why a tick decided what it did: every code, and one sentence for people."""

from enum import StrEnum


class Reason(StrEnum):
    """The codes of all stages. Those of the reference planner keep its names."""

    # the load proposer
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
    # the throughput proposer
    NO_TRAFFIC_DATA = "no_traffic_data"
    MODEL_NOT_READY = "model_not_ready"
    PARTNER_NOT_READY = "partner_not_ready"
    SET_LOWER_BOUND = "set_lower_bound"
    SCALE = "scale"
    SLO_OUT_OF_REACH = "slo_out_of_reach"
    IDLE = "idle"
    # merge and budgets
    REJECTED = "rejected_by_plugin"
    OVERRIDDEN = "override_by_user_plugin"
    GPU_BUDGET_HOLD = "gpu_budget_guard_hold"
    GPU_BUDGET_RECONCILE = "gpu_budget_reconcile"
    BELOW_MINIMUM = "below_min_endpoint"
    WAKE_UP = "wake_up"
    CLUSTER_BUDGET = "cluster_budget"
    PENDING_STUCK = "pending_stuck"
    STUCK_CEILING = "pending_stuck_ceiling"
    # the stabiliser
    UP = "up"
    DOWN = "down"
    HOLD = "hold"
    WITHIN_TOLERANCE = "within_tolerance"
    UP_COOLDOWN = "up_cooldown"
    DOWN_COOLDOWN = "down_cooldown"
    PENDING = "pending"
    FIRST_WINDOW = "first_window"
    # the whole tick
    BEFORE_FIRST_TICK = "before_first_tick"
    REPLICAS_UNKNOWN = "replicas_unknown"
    OBSERVATION_STALE = "observation_stale"
    ADVISORY = "advisory"


SENTENCES: dict[Reason, str] = {
    Reason.DISABLED: "This kind of scaling is switched off.",
    Reason.NO_FPM_DATA: "No engine reported its load in this tick, so load says nothing.",
    Reason.SCALING_IN_PROGRESS: "Replicas are still starting or going; nothing new is proposed.",
    Reason.WORKER_COUNT_MISMATCH: (
        "The engines that reported are not those that should be ready, or ranks are missing."
    ),
    Reason.INSUFFICIENT_DATA: "The performance model or a limit of the engines is not known yet.",
    Reason.NO_CHANGE: "What is there is what is needed.",
    Reason.SCALE_UP: "Load or demand asks for more replicas.",
    Reason.SCALE_DOWN: "The same load fits on fewer replicas with a margin.",
    Reason.SCALE_DOWN_CAPPED: "Load would go lower; the floor of the forecast holds it up.",
    Reason.SCALE_DOWN_REFUSED: "One replica less would break the latency target or the KV cache.",
    Reason.HOT_ENGINE: "More requests than allowed sit on engines above the target.",
    Reason.IMBALANCE: "One engine is hot while most idle: routing is at fault, not the replicas.",
    Reason.SELECTOR_QUEUE: "Requests queue at the selector or are refused: more is needed.",
    Reason.SILENT_ENGINES: "A few engines are silent; going down, they count as the busiest.",
    Reason.NO_FORECAST_YET: "Nothing goes down before forecasts have been compared with what came.",
    Reason.STARTUP_DOWN: "Only start-ups are under way, and load has been low for two ticks.",
    Reason.NO_TRAFFIC_DATA: "The traffic of this window is unknown, which is not zero.",
    Reason.MODEL_NOT_READY: "No performance model yet says what one engine carries.",
    Reason.PARTNER_NOT_READY: "The model of the other role is not ready; both roles are held.",
    Reason.SET_LOWER_BOUND: "The forecast sets the least number of replicas; load may add.",
    Reason.SCALE: "The forecast asks for another number of replicas.",
    Reason.SLO_OUT_OF_REACH: "No number of replicas keeps the latency target for this traffic.",
    Reason.IDLE: "There is no traffic; the minimum is kept.",
    Reason.REJECTED: "An external proposer rejected the tick.",
    Reason.OVERRIDDEN: "An external proposer has set the number.",
    Reason.GPU_BUDGET_HOLD: "The GPU budget does not allow the step.",
    Reason.GPU_BUDGET_RECONCILE: "What runs is outside of the GPU budget and is brought back.",
    Reason.BELOW_MINIMUM: "Fewer replicas than the minimum run; they are raised at once.",
    Reason.WAKE_UP: "Requests come while nothing is ready: at least one replica is wanted.",
    Reason.CLUSTER_BUDGET: "The GPUs of the cluster went to deployments that need them more.",
    Reason.PENDING_STUCK: "A start-up has made no progress for too long; its target is withdrawn.",
    Reason.STUCK_CEILING: "After a stuck start-up nothing is added for a while.",
    Reason.UP: "More replicas are wanted, at once.",
    Reason.DOWN: "Nothing in the whole window wanted more: one replica less.",
    Reason.HOLD: "The number of replicas is right, or was needed within the window.",
    Reason.WITHIN_TOLERANCE: "The difference is within the tolerance.",
    Reason.UP_COOLDOWN: "The last step up was too recent.",
    Reason.DOWN_COOLDOWN: "The last change was too recent to go down.",
    Reason.PENDING: "Replicas are starting; nothing is taken away meanwhile.",
    Reason.FIRST_WINDOW: "Not a whole window has been seen yet; nothing is taken away.",
    Reason.BEFORE_FIRST_TICK: "The first tick is still to come, at next_tick_s.",
    Reason.REPLICAS_UNKNOWN: "It is not known how many replicas there are; everything is held.",
    Reason.OBSERVATION_STALE: "Nothing has been observed for three intervals; everything is held.",
    Reason.ADVISORY: "Advisory mode: decided and recorded, not scaled.",
}
