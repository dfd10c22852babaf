"""Settings that exist for compatibility with Dynamo's selection service.

Source of names, defaults and limits: Dynamo 1.3.1 and 1.6.1, measured.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from select_service.config import value_parsers as read
from select_service.config.setting import (
    ServiceSetting,
    dynamo_setting,
    flag_setting,
    switch_setting,
)

SESSION_TTL_S_MAX = 31_536_000.0
SELECTIONS_MAX = 1 << 20
SELECTION_BYTES_MAX = 1 << 40
SELECTION_TTL_S_MAX = 1e9
EXPIRY_S = 300.0
"""Expiry of reservations in Dynamo, which also replaces 0."""

SCHEDULING = (
    ServiceSetting(
        "use_kv_events",
        True,
        read.true_or_false,
        "subscribe to KV events; without them ranks are assumed to hold what was booked on them",
        variables=("DYN_ROUTER_USE_KV_EVENTS", "DYN_USE_KV_EVENTS"),
    ),
    ServiceSetting(
        "overlap_score_credit",
        1.0,
        read.finite_number(0, inf),
        "Dynamo's rule (policy reference): credit for a block on the GPU",
        variables=("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",),
    ),
    dynamo_setting(
        "conditional_disagg_decode_busy_threshold",
        None,
        read.finite_number(0, inf),
        "share of total_kv_blocks above which answers call the chosen rank decode_busy",
    ),
    dynamo_setting(
        "conditional_disagg_prefill_busy_threshold",
        None,
        read.finite_number(0, inf),
        "share of max_num_batched_tokens above which advisory answers call it prefill_busy",
    ),
    ServiceSetting(
        "overlap_score_credit_decay",
        0.0,
        read.finite_number(0, inf),
        "Dynamo's rule: decay of that credit with a rank's prefill load",
        variables=("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",),
    ),
    dynamo_setting(
        "prefill_load_scale",
        1.0,
        read.finite_number(0, inf),
        "Dynamo's rule: weight of the prefill part of the cost",
    ),
    dynamo_setting(
        "decode_active_request_weight",
        0.0,
        read.finite_number(0, inf),
        "Dynamo's rule: cost of each live reservation of a rank, in blocks",
    ),
    ServiceSetting(
        "overlap_score_weight",
        None,
        read.finite_number(0, inf),
        "deprecated: sets the prefill load scale; 0 also sets the credit to 0",
        variables=("DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", "DYN_OVERLAP_SCORE_WEIGHT"),
    ),
    dynamo_setting(
        "host_cache_hit_weight",
        0.75,
        read.finite_number(0, 1),
        "credit for blocks in CPU memory",
    ),
    dynamo_setting(
        "disk_cache_hit_weight",
        0.25,
        read.finite_number(0, 1),
        "credit for blocks on disk or in external storage",
    ),
    dynamo_setting(
        "temperature",
        0.0,
        read.finite_number(0, inf),
        "0 = the cheapest rank; above 0, ranks are sampled by cost",
    ),
    dynamo_setting(
        "track_prefill_tokens", True, read.true_or_false, "count prefill tokens as load"
    ),
    dynamo_setting("track_active_blocks", True, read.true_or_false, "count live blocks as load"),
    dynamo_setting("track_output_blocks", True, read.true_or_false, "count output blocks as load"),
    ServiceSetting(
        "active_request_expiry_s",
        None,
        read.finite_number(0, 1e9),
        "time without renewal after which a reservation expires, if --reservation-ttl-secs is not "
        f"given; 0 = {EXPIRY_S:g}, as in Dynamo",
        variables=("DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS",),
    ),
)

SESSIONS = (
    flag_setting(
        "--session-affinity-ttl-secs",
        None,
        read.finite_number(1, SESSION_TTL_S_MAX),
        "time without a live reservation after which a session is forgotten, 1 second to a year "
        "(default: 600 s)",
    ),
    flag_setting(
        "--session-affinity-mode",
        None,
        read.one_of_words("soft", "hard"),
        "soft = a session's last rank may hold cache that no event shows; hard = the requests of a "
        "session go to its rank, as in Dynamo (default: soft; hard with --policy reference and "
        "--session-affinity-ttl-secs)",
    ),
    flag_setting(
        "--selection-cache-ttl-secs",
        120.0,
        read.finite_number(0, SELECTION_TTL_S_MAX),
        "time in which a selection can be booked by its selection_id",
    ),
    flag_setting(
        "--selection-cache-max-entries",
        4096,
        read.whole_number(0, SELECTIONS_MAX),
        "maximum number of selections kept for a booking by selection_id; 0 = none",
    ),
    flag_setting(
        "--selection-cache-max-bytes",
        1 << 28,
        read.whole_number(0, SELECTION_BYTES_MAX),
        "maximum memory of these selections",
    ),
)

ACTIVE_REQUESTS = (
    flag_setting(
        "--router-assume-kv-reuse",
        True,
        read.true_or_false,
        "count equal blocks of requests on one rank once; false = only blocks of given hashes",
        "assume_kv_reuse",
    ).with_variables("DYN_ROUTER_ASSUME_KV_REUSE"),
    flag_setting(
        "--router-tracking-hash",
        read.PUBLIC_TRACKING_HASH,
        read.tracking_hash,
        "identity of prompt blocks of active requests; Dynamo's keyed-xxh3-v1 is not supported",
        "tracking_hash",
        kind="NAME",
    ).with_variables("DYN_ROUTER_TRACKING_HASH"),
    flag_setting(
        "--router-tracking-key-file",
        None,
        read.unsupported_tracking_key,
        "not supported: refused, like all settings of keyed hashes",
        "tracking_key_file",
        kind="FILE",
    ).with_variables("DYN_ROUTER_TRACKING_KEY_FILE"),
    flag_setting(
        "--router-tracking-key-id",
        None,
        read.unsupported_tracking_key,
        "not supported: refused, like all settings of keyed hashes",
        "tracking_key_id",
    ).with_variables("DYN_ROUTER_TRACKING_KEY_ID"),
)
OPPOSITE_FLAGS: Mapping[str, str] = {
    "--router-assume-kv-reuse": "--no-router-assume-kv-reuse",
}
"""Flags that mean false for another flag, which cannot be given beside them."""

DYNAMO_TTL_S = 120.0
"""Time in which Dynamo assumes a block, if only its policy `ttl` is given."""

ASSUMED_INDEX = (
    switch_setting(
        "--no-assumed-index",
        "assume no cached blocks of ranks without KV events; their overlap is then 0",
    ),
    flag_setting(
        "--assume-silent-secs",
        120.0,
        read.finite_number(0, 86_400),
        "time with requests but without KV events after which a rank that has sent some is assumed "
        "to hold what was booked on it; 0 = never",
    ),
    ServiceSetting(
        "assumed_ttl_s",
        None,
        read.finite_number(0, inf),
        "time after the last booking of a block during which a rank without KV events is assumed "
        "to hold it (default: limited by the size of its KV cache)",
        variables=("DYN_ROUTER_TTL_SECS",),
    ),
    ServiceSetting(
        "assumed_policy",
        None,
        read.one_of_words("ttl", "lru"),
        "rule by which assumed blocks leave; lru requires KV events to be off",
        variables=("DYN_ROUTER_APPROXIMATE_CACHE_POLICY",),
    ),
    ServiceSetting(
        "predicted_ttl_s",
        None,
        read.finite_number(0, inf),
        "time after its booking during which a block without an event is assumed; requires KV "
        "events (default: not assumed)",
        variables=("DYN_ROUTER_PREDICTED_TTL_SECS",),
    ),
)

REFERENCE_POLICY_SETTINGS = (
    "overlap_score_credit",
    "overlap_score_credit_decay",
    "prefill_load_scale",
    "decode_active_request_weight",
    "overlap_score_weight",
)
"""Settings that only the policy `reference` uses."""
VARIABLES_WITHOUT_EFFECT: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(
        (
            "DYN_ROUTER_ACTIVE_SEQUENCE_DIRECT_ZMQ",
            "DYN_ROUTER_ACTIVE_SEQUENCE_ZMQ_RCVHWM",
            "DYN_ROUTER_CONDITIONAL_DISAGG",
            "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD",
            "DYN_ROUTER_CONDITIONAL_DISAGG_POLICY",
            "DYN_ROUTER_DECODE_POLICY",
            "DYN_ROUTER_MIN_INITIAL_WORKERS",
            "DYN_ROUTER_MODEL_CARD_WAIT_SECS",
            "DYN_ROUTER_OVERLAP_REFRESH_AFTER_SECS",
            "DYN_ROUTER_PREFILL_POLICY",
            "DYN_ROUTER_REPLICA_SYNC",
            "DYN_ROUTER_ZMQ_ENDPOINTS_PER_SUB",
            "DYN_USE_REMOTE_INDEXER",
        ),
        str,
    ),
    "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_RATIO_THRESHOLD": read.finite_number(0, 1),
    "DYN_ROUTER_EVENT_THREADS": read.whole_number(1, 2**32 - 1),
    "DYN_ROUTER_PREFILL_LOAD_MODEL": read.one_of_words("none", "ais", "aic"),
    "DYN_ROUTER_WORKER_SELECTION_POLICY": read.unsupported_worker_selection,
    "DYN_SHARED_CACHE_MULTIPLIER": read.finite_number(0, 1),
    "DYN_SHARED_CACHE_TYPE": read.one_of_words("none", "hicache"),
}
"""Variables of Dynamo without effect here; reported, and rejected where Dynamo does so."""
