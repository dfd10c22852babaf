"""Reasons of a tick's decision: every code, with a sentence for readers."""

from enum import StrEnum
from typing import Self


class Reason(StrEnum):
    """Reason codes of all stages. Codes of Dynamo's planner keep its names."""

    _value_: str
    sentence: str

    def __new__(cls, code: str, sentence: str) -> Self:
        """Create a reason from its code and the sentence for readers."""
        found = str.__new__(cls, code)
        found._value_, found.sentence = code, sentence
        return found

    # Codes of the load proposer.
    DISABLED = "disabled", "This kind of scaling is disabled."
    NO_FPM_DATA = (
        "no_fpm_data",
        "No engine reported its load in this tick, so there is no load proposal.",
    )
    SCALING_IN_PROGRESS = (
        "scaling_in_progress",
        "Replicas are still starting or ending; there is no new proposal.",
    )
    WORKER_COUNT_MISMATCH = (
        "worker_count_mismatch",
        "The engines that reported differ from the ready engines, or ranks are missing.",
    )
    INSUFFICIENT_DATA = (
        "insufficient_data",
        "The performance model or a limit of the engines is unknown so far.",
    )
    NO_CHANGE = "no_change", "The number of replicas is right."
    SCALE_UP = "scale_up", "Load or demand needs more replicas."
    SCALE_DOWN = "scale_down", "The load fits on fewer replicas with a margin."
    SCALE_DOWN_CAPPED = (
        "scale_down_capped_by_throughput",
        "The load would fit on fewer replicas; the floor of the forecast applies.",
    )
    SCALE_DOWN_REFUSED = (
        "scale_down_refused_consolidation",
        "With one replica less, latency or KV cache would exceed the limit.",
    )
    HOT_ENGINE = "hot_engine", "Too many requests are on engines above the latency target."
    IMBALANCE = (
        "imbalance",
        "One engine is hot while most are idle: check the routing, not the replicas.",
    )
    SELECTOR_QUEUE = (
        "selector_queue",
        "Requests queue at the selector or are refused: more replicas are needed.",
    )
    SILENT_ENGINES = (
        "silent_engines",
        "A few engines did not report; for a step down they count as the busiest.",
    )
    NO_FORECAST_YET = (
        "no_forecast_yet",
        "No step down before forecasts have been compared with real demand.",
    )
    STARTUP_DOWN = "startup_down", "Start-ups are withdrawn because the load was low for two ticks."
    # Codes of the throughput proposer.
    NO_TRAFFIC_DATA = (
        "no_traffic_data",
        "The traffic of this window is unknown (which does not mean zero).",
    )
    MODEL_NOT_READY = "model_not_ready", "The performance model of an engine is not ready."
    NO_PROMPT_LENGTHS = "no_prompt_lengths", "Requests arrive, the length of prompts is unknown."
    NO_OUTPUT_LENGTHS = (
        "no_output_lengths",
        "The length of answers is unknown: callers or Prometheus must report it to size decode.",
    )
    LIMITS_UNKNOWN = (
        "limits_unknown",
        "max_kv_tokens or max_num_batched_tokens of the engine is unknown: set decode_limits.",
    )
    PARTNER_NOT_READY = (
        "partner_not_ready",
        "The performance model of the other role is not ready; both roles keep their replicas.",
    )
    SET_LOWER_BOUND = (
        "set_lower_bound",
        "The forecast sets the minimum number of replicas; load may add more.",
    )
    SCALE = "scale", "The forecast needs another number of replicas."
    SLO_OUT_OF_REACH = (
        "slo_out_of_reach",
        "No number of replicas keeps the latency target for this traffic.",
    )
    LINKS_BUSY = (
        "links_busy",
        "The links between hosts are busy: more replicas on the same hosts do not help.",
    )
    LOCAL_PREFILL_UNKNOWN = (
        "local_prefill_unknown",
        "Decode ranks compute prompts, and no model says how long.",
    )
    IDLE = "idle", "There is no traffic; the minimum number of replicas is kept."
    # Codes of plugins and budgets.
    REJECTED = "rejected_by_plugin", "A plugin rejected the tick; `rejected` names it."
    OVERRIDDEN = "override_by_user_plugin", "A plugin has set the number as final."
    PLUGIN_DECIDED = (
        "plugin_decided",
        "A plugin gave or bounded the number; `decided_by` of the role names it.",
    )
    PLUGIN_FAILED = (
        "plugin_failed",
        "A plugin did not answer, or gave an invalid answer; `plugins` names it.",
    )
    ROLE_OUTSIDE_MODE = (
        "role_outside_mode",
        "A plugin named a role that this mode does not scale; the number is ignored.",
    )
    GPU_BUDGET_HOLD = "gpu_budget_guard_hold", "The GPU budget does not allow the step."
    GPU_BUDGET_RECONCILE = (
        "gpu_budget_reconcile",
        "The running replicas are outside of the GPU budget and are corrected.",
    )
    CAPACITY_LOST = (
        "capacity_lost",
        "Replicas are out for their health; others replace them within the budget.",
    )
    REPLACE = (
        "replace",
        "A lost replica is replaced in its place.",
    )
    BELOW_MINIMUM = (
        "below_min_endpoint",
        "Fewer replicas than the minimum run; the number is raised at once.",
    )
    WAKE_UP = (
        "wake_up",
        "Requests arrive while no replica is ready: at least one replica is needed.",
    )
    CLUSTER_BUDGET = (
        "cluster_budget",
        "The GPUs of the cluster were given to deployments with higher precedence.",
    )
    PENDING_STUCK = (
        "pending_stuck",
        "A start-up made no progress for too long; its target is withdrawn.",
    )
    STUCK_CEILING = (
        "pending_stuck_ceiling",
        "After a stuck start-up no replica is added for a while.",
    )
    # Codes of the stabiliser.
    UP = "up", "More replicas are needed, at once."
    DOWN = "down", "No higher need in the whole window: one replica less."
    HOLD = "hold", "The number of replicas is right, or was needed within the window."
    WITHIN_TOLERANCE = "within_tolerance", "The difference is within the tolerance."
    UP_COOLDOWN = "up_cooldown", "The last step up is too recent."
    DOWN_COOLDOWN = "down_cooldown", "The last change is too recent for a step down."
    PENDING = "pending", "Replicas are starting; no step down meanwhile."
    FIRST_WINDOW = "first_window", "The first window is incomplete; no step down yet."
    # Codes of the whole tick.
    BEFORE_FIRST_TICK = "before_first_tick", "The first tick is due at next_tick_s."
    REPLICAS_UNKNOWN = "replicas_unknown", "The number of replicas is unknown; nothing changes."
    OBSERVATION_STALE = "observation_stale", "No observation for three intervals; nothing changes."
    ADVISORY = "advisory", "Advisory mode: the decision is recorded and not applied."
