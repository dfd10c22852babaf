"""Strategies of the admission stage's machine: workers, requests and policy documents."""

from hypothesis import strategies as st

from tests.builders import a_select, a_select_and_reserve
from tests.models.admission import TIERS, names

WORKERS = st.sampled_from([1, 2, 3])
DP_RANKS = st.integers(0, 2)
PATHS = st.lists(st.sampled_from([1, 2]), max_size=4).map(tuple)
URLS = st.sampled_from(["http://e:1/metrics", "http://e:2/metrics"])
SECONDS = st.sampled_from([0.0, 0.5, 1.0, 2.5, 5.0, 60.0])
ANY = st.integers(0, 2**16)
SHAPES = st.fixed_dictionaries(
    {
        "dp_size": st.sampled_from([1, 1, 2, 3]),
        "batch_tokens": st.sampled_from([0, 4, 8, 8, 16, 16, 16, None]),
        "kv_blocks": st.sampled_from([10, 4, 3, None]),
        "taints": st.sampled_from([frozenset(), frozenset("a"), frozenset("ab")]),
    }
)
PROMPTS = st.fixed_dictionaries({"path": PATHS, "more": st.integers(1, 9)})
ANYWHERE = {"pinned": None, "allowed": None, "required": frozenset()}
PLACES = st.sampled_from(
    [ANYWHERE] * 8
    + [{**ANYWHERE, "pinned": (worker, rank)} for worker in (1, 2) for rank in (0, 1)]
    + [{**ANYWHERE, "allowed": frozenset(allowed)} for allowed in ([1], [2], [1, 3], [])]
    + [{**ANYWHERE, "required": frozenset(required)} for required in ("a", "ab")]
    + [{"pinned": (1, 0), "allowed": frozenset([allowed]), "required": "a"} for allowed in (1, 2)]
    + [{"pinned": None, "allowed": frozenset([1, 2]), "required": "b"}]
).map(lambda place: {**place, "required": frozenset(place["required"])})
URGENCIES = st.fixed_dictionaries(
    {
        "strict": st.sampled_from([0, 0, 0, 1, 2]),
        "jump": st.sampled_from([0.0, 0.0, -3.0, 0.5, 2.0]),
        "tier": st.sampled_from([None, None, *TIERS]),
        "timeout_ms": st.sampled_from([None] * 8 + [0, 1000, 2500]),
        "flow": st.sampled_from(["", "", "a", "b", "c"]),
        "deadline_ms": st.sampled_from([None] * 6 + [0, 1000, 4000, 60_000]),
        "header": st.sampled_from([None, "chat", "batch", "vip", "no such class"]),
    }
)

ONE_CLASS = {
    "default_policy_family": "default",
    "uncached_isl_buckets": [{"min_tokens": 0, "bucket": "all"}],
    "policy_classes": [
        {
            "name": "default",
            "policy_family": "default",
            "cache_bucket": "all",
            "queue_policy": "fcfs",
            "prefill_busy_threshold_frac": 0.5,
        }
    ],
}
FOUR_CLASSES = {
    "default_policy_family": "chat",
    "uncached_isl_buckets": [
        {"min_tokens": 0, "bucket": "short"},
        {"min_tokens": 9, "bucket": "long"},
    ],
    "policy_classes": [
        {
            "name": "chat-short",
            "policy_family": "chat",
            "cache_bucket": "short",
            "quantum": 3,
            "fairness_weights": {"a": 3, "b": 0.5},
            "prefill_busy_threshold": 8,
            "cached_token_queue_limit_per_worker": 12,
        },
        {
            "name": "chat-long",
            "policy_family": "chat",
            "cache_bucket": "long",
            "queue_policy": "wspt",
            "quantum": 5,
            "prefill_busy_threshold": 0,
            "prefill_busy_threshold_frac": 0.25,
        },
        {
            "name": "batch-short",
            "policy_family": "batch",
            "cache_bucket": "short",
            "queue_policy": "lcfs",
            "prefill_busy_threshold": 0,
            "request_queue_limit_per_worker": 2,
        },
        {
            "name": "batch-long",
            "policy_family": "batch",
            "cache_bucket": "long",
            "prefill_busy_threshold_frac": 0.0,
            "raw_isl_token_queue_limit_per_worker": 30,
        },
        {"name": "vip", "quantum": 40, "prefill_busy_threshold": 20},
    ],
}


def with_policy(policy):
    return {**ONE_CLASS, "policy_classes": [{**ONE_CLASS["policy_classes"][0], **policy}]}


def body_of(asked, timeout_ms):
    fields = {
        "model_name": asked.key[0],
        "tenant_id": asked.key[1],
        "token_ids": None,
        "block_hashes": list(asked.path),
        "sequence_hashes": names(asked.path),
        "isl_tokens": asked.isl,
        "strict_priority": asked.strict,
        "priority_jump": asked.jump,
        "priority_tier": asked.tier,
        "timeout_ms": timeout_ms,
        "fairness_id": asked.flow or None,
        "deadline_ms": None if asked.due_s == float("inf") else int(1000 * asked.due_s),
        "routing_constraints": {"required_taints": sorted(asked.required)},
    }
    if asked.pinned is not None:
        fields["pinned_worker"] = {"worker_id": asked.pinned[0], "dp_rank": asked.pinned[1]}
    if asked.allowed is not None:
        fields["allowed_worker_ids"] = sorted(asked.allowed)
    if asked.reserves:
        return a_select_and_reserve(reservation_id=asked.reservation_id, **fields)
    return a_select(**fields)
