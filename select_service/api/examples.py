"""Example bodies of the routes, shown in the OpenAPI document; tests keep them valid."""

from collections.abc import Mapping
from typing import Any

_SCOPE = {"model_name": "llama-3-8b", "tenant_id": "default"}
_HASHED_PROMPT = {
    "block_hashes": [11, 12, 13, 14],
    "sequence_hashes": [21, 22, 23, 24],
    "isl_tokens": 70,
}
_TOKENS = {"token_ids": list(range(100, 132))}
_RANK = {"worker_id": 1, "dp_rank": 0}

_SELECTION = {
    "selection_id": "turn-17",
    **_SCOPE,
    **_RANK,
    "endpoint": "http://worker-1:8000",
    "block_size": 16,
    "overlap": {"longest_matched": 32, "gpu": 32, "dp": {"0": 32, "1": 0}, "cpu": 32, "disk": 32},
    "effective_prefill_tokens": 38,
}
_RESERVED = {"selection_id": "turn-17", "reservation_id": "request-123", **_SELECTION}
_RESERVATION = {
    "reservation_id": "request-123",
    **_SCOPE,
    **_RANK,
    "endpoint": "http://worker-1:8000",
}
_VLLM_WORKER = {
    "worker_id": 1,
    **_SCOPE,
    "endpoint": "http://worker-1:8000",
    "block_size": 16,
    "data_parallel_size": 2,
    "kv_events_endpoints": {"0": "tcp://worker-1:5557", "1": "tcp://worker-1:5558"},
    "replay_endpoint": "tcp://worker-1:6557",
}
_BUSY_THRESHOLD: Mapping[str, Any] = {
    "model": "llama-3-8b",
    "active_decode_blocks_threshold": 0.85,
    "active_prefill_tokens_threshold": 10000,
}
_ADMISSION: Mapping[str, Any] = {
    "tiers": ["premium", "standard", "best_effort"],
    "default_tier": "standard",
    "shed_tier": None,
    "shed_tiers": [],
    "queueing": True,
    "queue_timeout_s": 60.0,
    "waiting_requests": 3,
    "waiting_isl_tokens": 4096,
    "classes": [
        {"policy_class": "default", "waiting_requests": 3, "waiting_isl_tokens": 4096},
    ],
    "thresholds": [_BUSY_THRESHOLD],
    "outcomes": {
        "admitted": 120934,
        "busy": 211,
        "shed": 0,
        "queue_full": 0,
        "queue_timeout": 2,
        "client_gone": 1,
        "no_rank": 0,
    },
}
_RECORD: Mapping[str, Any] = {
    "worker_id": 1,
    **_SCOPE,
    "lifecycle": "schedulable",
    "endpoint": "http://worker-1:8000",
    "kv_events_endpoint": None,
    "kv_events_endpoints": {"0": "tcp://worker-1:5557", "1": "tcp://worker-1:5558"},
    "replay_endpoint": "tcp://worker-1:6557",
    "block_size": 16,
    "data_parallel_start_rank": None,
    "data_parallel_size": 2,
    "max_num_batched_tokens": None,
    "total_kv_blocks": None,
    "stable_routing_id": None,
    "is_eagle": None,
    "taints": [],
    "topology_domains": {},
    "kv_transfer_domain": None,
    "kv_transfer_enforcement": None,
    "kv_transfer_preferred_weight": None,
}
_RANK_LOAD = {
    **_RANK,
    "potential_prefill_tokens": 38,
    "potential_decode_blocks": 5,
    "active_requests": 1,
}

REQUESTS: Mapping[str, Mapping[str, Any]] = {
    "select_and_reserve": {
        "tokens": {"reservation_id": "request-123", **_SCOPE, **_TOKENS},
        "hashes": {
            "selection_id": "turn-17",
            "reservation_id": "request-123",
            **_SCOPE,
            **_HASHED_PROMPT,
        },
        "constrained": {
            **_SCOPE,
            **_TOKENS,
            "allowed_worker_ids": [1, 2],
            "routing_constraints": {
                "required_taints": ["h100"],
                "preferred_taints": {"zone-a": 0.5},
            },
            "router_config_override": {"router_temperature": 0.2},
        },
    },
    "select": {
        "impatient": {
            **_SCOPE,
            **_TOKENS,
            "priority_tier": "premium",
            "strict_priority": 1,
            "timeout_ms": 2000,
        },
        "tokens": {"selection_id": "turn-17", **_SCOPE, **_TOKENS},
        "pinned": {**_SCOPE, **_HASHED_PROMPT, "pinned_worker": _RANK},
    },
    "create_reservation": {
        "hashes": {
            "reservation_id": "request-123",
            **_SCOPE,
            **_RANK,
            "sequence_hashes": [21, 22, 23, 24],
            "isl_tokens": 70,
            "effective_prefill_tokens": 38,
        }
    },
    "set_busy_threshold": {
        "both": dict(_BUSY_THRESHOLD),
        "clear one": {"model": "llama-3-8b", "active_prefill_tokens_threshold": None},
    },
    "shed": {"begin": {"tier": "best_effort"}, "end": {"tier": None}},
    "output_block": {"plain": {}, "decay": {"decay_fraction": 0.5}},
    "register_worker": {
        "two ranks": _VLLM_WORKER,
        "one rank": {
            "worker_id": 2,
            **_SCOPE,
            "endpoint": "http://worker-2:8000",
            "block_size": 16,
            "kv_events_endpoint": "tcp://worker-2:5557",
            "replay_endpoint": "tcp://worker-2:6557",
        },
    },
    "patch_worker": {"taints": {"taints": ["h100", "zone-a"]}},
    "register_peer": {"peer": {"endpoint": "tcp://selector-b:9092"}},
    "deregister_peer": {"peer": {"endpoint": "tcp://selector-b:9092"}},
    "potential_loads": {"tokens": {**_SCOPE, **_TOKENS}},
    "overlap_scores": {"tokens": {**_SCOPE, **_TOKENS}},
}
"""operation id -> name of the example -> body."""

ANSWERS: Mapping[tuple[str, int], Any] = {
    ("select_and_reserve", 200): _RESERVED,
    ("select", 200): _SELECTION,
    ("create_reservation", 201): _RESERVATION,
    ("list_reservations", 200): {
        "reservations": [
            {
                "reservation_id": "request-123",
                **_SCOPE,
                **_RANK,
                "state": "prefill",
                "isl_tokens": 70,
                "prompt_blocks": 4,
                "output_blocks": 0,
                "prefill_tokens": 38,
                "age_seconds": 0.125,
                "expires_in_seconds": 3599.875,
                "origin": "local",
                "router_id": 4242424242,
            }
        ],
        "total": 1,
        "next": None,
        "router_id": 4242424242,
    },
    ("prefill_complete", 200): {"status": "ok"},
    ("output_block", 200): {"status": "ok"},
    ("renew_reservation", 200): {"status": "ok"},
    ("free_reservation", 200): {"status": "ok"},
    ("register_worker", 201): _RECORD,
    ("list_workers", 200): [
        {
            **_RECORD,
            "kv_events": {
                "0": {
                    "state": "connected",
                    "last_sequence": 4711,
                    "batches": 4712,
                    "gaps": 0,
                    "replayed": 0,
                    "lost": 0,
                    "restarts": 0,
                    "decode_errors": 0,
                    "last_error": None,
                    "seconds_since_last_event": 0.042,
                }
            },
        }
    ],
    ("patch_worker", 200): {**_RECORD, "taints": ["h100", "zone-a"]},
    ("delete_worker", 200): {**_RECORD, "lifecycle": "unschedulable"},
    ("register_peer", 200): {"status": "ok"},
    ("register_peer", 201): {"status": "ok"},
    ("deregister_peer", 200): {"status": "ok"},
    ("list_peers", 200): ["tcp://selector-b:9092"],
    ("replica_status", 200): {
        "enabled": True,
        "router_id": 4242424242,
        "repair": True,
        "frames_out": 3021,
        "digests_out": 120,
        "frames_dropped_out": 0,
        "frames_queued": 0,
        "subscribers": 1,
        "peers": [
            {
                "endpoint": "tcp://selector-b:9092",
                "self": False,
                "connected": True,
                "router_id": 7171717171,
                "frames_in": 2517,
                "frames_out": 3139,
                "applied": 2400,
                "digests": 116,
                "lost": 0,
                "dropped": {"known": 1},
                "seconds_since_last_frame": 0.31,
                "divergence_reservations": 0,
                "divergence_prefill_tokens": 0,
                "divergence": [],
                "repairs": {
                    "runs": 1,
                    "failed": 0,
                    "added": 12,
                    "dropped": 0,
                    "changed": 0,
                    "repeated": 0,
                    "refused": 0,
                },
                "last_error": None,
                "seconds_since_last_error": None,
            }
        ],
    },
    ("set_busy_threshold", 200): _BUSY_THRESHOLD,
    ("busy_thresholds", 200): {"thresholds": [_BUSY_THRESHOLD]},
    ("shed", 200): {**_ADMISSION, "shed_tier": "best_effort", "shed_tiers": ["best_effort"]},
    ("admission_state", 200): _ADMISSION,
    ("loads", 200): [
        {**_SCOPE, "loads": [_RANK_LOAD], "pending_count": 0, "pending_isl_tokens": 0}
    ],
    ("potential_loads", 200): [_RANK_LOAD],
    ("overlap_scores", 200): {
        "block_size": 16,
        "num_blocks": 2,
        "workers": [
            {
                **_RANK,
                "device_blocks": 1,
                "host_pinned_blocks": 2,
                "disk_blocks": 2,
                "host_pinned_extension_blocks": 1,
                "disk_extension_blocks": 0,
                "shared_beyond_device_blocks": None,
                "router_credit_blocks": 1.75,
            }
        ],
        "shared_cache": {"enabled": False, "total_hit_blocks": 0, "ranges": [], "error": None},
    },
    ("dump", 200): {
        "llama-3-8b:default": {
            "block_size": 16,
            "events": [
                {
                    "worker_id": 1,
                    "storage_tier": "device",
                    "event": {
                        "event_id": 0,
                        "data": {
                            "stored": {
                                "parent_hash": None,
                                "start_position": None,
                                "blocks": [
                                    {
                                        "block_hash": 9001,
                                        "tokens_hash": 14643705804678351452,
                                        "mm_extra_info": None,
                                    }
                                ],
                            }
                        },
                        "dp_rank": 0,
                    },
                }
            ],
        }
    },
    ("config", 200): {
        "version": "0.1.0",
        "settings": {"port": {"value": 8092, "origin": "default"}},
    },
    ("health", 200): {"status": "ok"},
    ("ready", 200): {"ready": True, "schedulable_workers": 1, "workers": [_RECORD]},
    ("ready", 503): {"ready": False, "schedulable_workers": 0, "workers": []},
}

PATH_VALUES: Mapping[str, Any] = {"worker_id": 1, "reservation_id": "request-123"}
"""Example values of path parameters."""
