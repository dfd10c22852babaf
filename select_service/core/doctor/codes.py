"""Everything that can be found: how heavy it is, and what to do about it."""

from collections.abc import Mapping
from typing import NamedTuple

from select_service.bodies.doctor import Severity


class Code(NamedTuple):
    """severity: `fault`: something does not work; `warning`: it works worse than it could, or will
    stop working; `note`: worth knowing
    fix: what to do, for people
    """

    severity: Severity
    fix: str


CODES: Mapping[str, Code] = {
    # --- of workers
    "worker_incomplete": Code(
        "fault", "PATCH the worker with what is missing, or register it again with all of it."
    ),
    "worker_drains": Code(
        "note",
        "POST /workers/{worker_id}/undrain when it is to serve, with `by` `planner` for a planner "
        "that is gone; of a source, say it again.",
    ),
    "engine_unreachable": Code(
        "fault",
        "Start the engine, or register where it listens (`endpoint`); look at firewalls between "
        "the service and it.",
    ),
    "engine_no_answer": Code(
        "fault", "The port is open, HTTP is not answered: look at the engine's log, restart it."
    ),
    "engine_unknown": Code(
        "note",
        "Nothing; what the engine is cannot be compared with its record. vLLM and SGLang say it.",
    ),
    "block_size_differs": Code(
        "fault",
        "Register the worker with the block size of the engine (`select-service inspect URL`): "
        "until then its events are not indexed, or prompts do not match them.",
    ),
    "model_name_differs": Code(
        "note",
        "Nothing if it is meant; else register the worker under the name that the engine serves.",
    ),
    "ranks_differ": Code(
        "warning", "Register the worker with the `data_parallel_size` of the engine."
    ),
    "events_unreachable": Code(
        "fault",
        "Let the engine publish there (--kv-events-config), or register where it does "
        "(`kv_events_endpoint`).",
    ),
    "events_not_connected": Code(
        "fault",
        "The port is open and no stream of KV events: register the port of `endpoint` in the "
        "engine's --kv-events-config, and not that of its replays or of HTTP; and its public key "
        "(`curve_server_key`) where it has one.",
    ),
    "events_silent": Code(
        "warning",
        "Switch KV events and prefix caching on in the engine (vLLM: enable_kv_cache_events and "
        "--enable-prefix-caching); let `topic` be one that is not filtered.",
    ),
    "events_lost": Code(
        "warning",
        "Let the engine replay (`replay_endpoint`, with buffer_steps for some minutes); look for a "
        "network or a service that cannot follow.",
    ),
    "events_unreadable": Code(
        "warning", "The engine publishes what this version cannot read: say so to its maintainers."
    ),
    "events_not_indexed": Code(
        "warning",
        "Register each rank with its own endpoint, and `is_eagle` and block size as the engine has "
        "them.",
    ),
    "replay_missing": Code(
        "note",
        "Set replay_endpoint in the engine's --kv-events-config and register it: without it events "
        "that are lost stay lost.",
    ),
    "replay_unreachable": Code(
        "warning",
        "Set replay_endpoint in the engine's --kv-events-config, or register where it replays "
        "(`replay_endpoint`).",
    ),
    "replay_silent": Code(
        "warning",
        "The port is open and no replay comes: is it the port of replays (not of events), and is "
        "the engine's publisher alive? Restart it.",
    ),
    "blocks_not_found": Code(
        "fault",
        "What the engine announced is not found by its own tokens: send prompts as the engine sees "
        "them (same tokenizer, LoRA name, cache salt), and see the dropped events of the worker.",
    ),
    "predictions_wrong": Code(
        "warning",
        "Callers' tokens differ from those that the engine sees, or its events are lost: compare "
        "tokenizer, chat template, LoRA name and salt.",
    ),
    "probe_refused": Code(
        "warning", "The engine does not answer a prompt of token ids: see its log."
    ),
    "check_refused": Code(
        "warning",
        "Register the worker under the name that the engine serves (`select-service inspect URL`), "
        "or say in --canary-config which `api` the model's engines have.",
    ),
    "clock_off": Code("warning", "Let both machines follow the same NTP servers."),
    "ranks_left_out": Code("note", "Ask with --worker for one worker; further ranks are alike."),
    "not_examined": Code(
        "warning", "Ask for fewer workers at a time (--worker); something answers very slowly."
    ),
    # --- of the service
    "no_workers": Code(
        "warning", "Register workers (POST /workers, --workers-file), and see GET /workers."
    ),
    "descriptors_short": Code(
        "warning", "Raise the limit of open files (ulimit -n, LimitNOFILE, nofile of the image)."
    ),
    "memory_short": Code(
        "warning", "Raise the limit of memory, or lower --index-max-bytes or --index-max-blocks."
    ),
    "cpu_stolen": Code(
        "warning", "Move to a host with CPU to spare: others take it from this machine."
    ),
    "cpu_throttled": Code(
        "warning", "Raise the CPU limit of the container, or take it away and keep the request."
    ),
    "loop_late": Code(
        "warning",
        "Give the process more CPU; fewer long prompts at a time, or --input-loops, help as well.",
    ),
    "kernels_generic": Code(
        "note", "Compile for this processor: `select-service compile`, without NUMBA_CPU_NAME."
    ),
    "open_to_everybody": Code(
        "warning", "Give keys (--api-keys-file), or bind 127.0.0.1: docs/security.md."
    ),
    "keys_stale": Code(
        "fault", "Put the file of keys right; keys that were taken out still count."
    ),
    "certificate_stale": Code(
        "fault", "Put the files of the certificate right; the older one is shown until then."
    ),
    "certificate_ends": Code(
        "warning", "Renew the certificate; the files are read when they change."
    ),
    "peer_unreachable": Code(
        "fault", "Start the replica, open its --replica-sync-port, or deregister it."
    ),
    "peer_is_self": Code("note", "Deregister it: a replica needs no connection to itself."),
    "peer_differs": Code(
        "warning",
        "Register the same workers at all replicas, and leave --replica-sync-repair on; it should "
        "pass within seconds.",
    ),
    "peer_silent": Code("warning", "Look at the replica: its log, its CPU, the network to it."),
    "state_not_kept": Code(
        "fault", "Make room on the disk of --state-path, and let the process write there."
    ),
    "snapshot_not_kept": Code(
        "fault", "Make room on the disk of --snapshot-path, and let the process write there."
    ),
    "recovery_failed": Code(
        "warning", "See the log for the peers of --indexer-peers; the index fills again by itself."
    ),
    "source_unread": Code("fault", "Put right what the source says of itself in GET /discovery."),
    "source_refused": Code(
        "warning", "See `reasons`, `conflicting` and `unanswered` of the source in GET /discovery."
    ),
}
