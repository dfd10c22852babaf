"""All possible findings: severity and fix."""

from collections.abc import Mapping
from typing import NamedTuple

from select_service.schemas.doctor import Severity


class FindingCode(NamedTuple):
    """Kind of finding.

    severity: `fault`: something does not work; `warning`: something works worse than possible, or
        will stop working; `note`: worth knowing
    fix: what to do
    """

    severity: Severity
    fix: str


FINDING_CODES: Mapping[str, FindingCode] = {
    "worker_incomplete": FindingCode(
        "fault", "PATCH the worker with the missing fields, or register it again completely."
    ),
    "worker_drains": FindingCode(
        "note",
        "Send POST /workers/{worker_id}/undrain to return it to service (with `by` `planner` if "
        "the planner is gone), or list the worker in its source again.",
    ),
    "engine_unreachable": FindingCode(
        "fault",
        "Start the engine, or register its listening address (`endpoint`); check firewalls between "
        "service and engine.",
    ),
    "engine_no_answer": FindingCode(
        "fault",
        "The port is open but HTTP is not answered: check the engine's log, and restart it.",
    ),
    "engine_unknown": FindingCode(
        "note",
        "Nothing to do. Only vLLM and SGLang report settings that can be compared with the record.",
    ),
    "block_size_differs": FindingCode(
        "fault",
        "Register the worker with the block size of the engine (`select-service inspect URL`): "
        "until then its events are not indexed, or prompts do not match them.",
    ),
    "model_name_differs": FindingCode(
        "note",
        "Nothing if intended; else register the worker under the name that the engine serves.",
    ),
    "ranks_differ": FindingCode(
        "warning", "Register the worker with the `data_parallel_size` of the engine."
    ),
    "cache_facts_missing": FindingCode(
        "warning",
        "PATCH the worker with these facts as `kv_cache`, and `eagle_drop` if the engine "
        "speculates: without them overlaps may be too long, and look exact.",
    ),
    "events_unreachable": FindingCode(
        "fault",
        "Let the engine publish at this address (--kv-events-config), or register its real address "
        "(`kv_events_endpoint`).",
    ),
    "events_not_connected": FindingCode(
        "fault",
        "The port is open but is no KV event stream: register the port of `endpoint` in the "
        "engine's --kv-events-config, and not that of its replays or of HTTP; and its public key "
        "(`curve_server_key`) where it has one.",
    ),
    "events_silent": FindingCode(
        "warning",
        "Switch KV events and prefix caching on in the engine (vLLM: enable_kv_cache_events and "
        "--enable-prefix-caching); let `topic` be one that is not filtered.",
    ),
    "events_lost": FindingCode(
        "warning",
        "Let the engine replay (`replay_endpoint`, with buffer_steps for some minutes); check "
        "whether network or service are overloaded.",
    ),
    "events_unreadable": FindingCode(
        "warning",
        "The engine publishes events that this version cannot decode: tell the maintainers.",
    ),
    "events_not_indexed": FindingCode(
        "warning",
        "Register each rank with its own endpoint, and `is_eagle` and block size as the engine has "
        "them.",
    ),
    "unknown_event_fields": FindingCode(
        "note",
        "The engine is newer than this version, or its publisher has fields of its own: update the "
        "service if overlaps of this engine are lower than before.",
    ),
    "cache_groups_bounded": FindingCode(
        "warning",
        "Register what the reasons name (`kv_cache`), or read the overlaps of this worker as upper "
        "bounds: docs/reference/engines-and-models.md.",
    ),
    "no_dense_group": FindingCode(
        "note",
        "Nothing: the reusable prefix follows from windows and states alone.",
    ),
    "ends_inside_blocks": FindingCode(
        "note",
        "Nothing; if `cache_groups_bounded` says that the engine's names are unknown, register "
        "`hash` in `kv_cache`. The smaller size is no block size to register.",
    ),
    "eagle_events_plain": FindingCode(
        "fault",
        "Register the worker without `is_eagle`, and with `eagle_drop` in `kv_cache` if it "
        "speculates: the engine hashes blocks alone, so until then no prompt matches them.",
    ),
    "eagle_not_registered": FindingCode(
        "warning",
        "Register the worker with `is_eagle`: the engine hashes each block with the token behind "
        "it, so overlaps are up to a block too high.",
    ),
    "engine_replaced": FindingCode(
        "warning",
        "Register the new engine as a worker of its own and delete this one, unless the same "
        "worker was meant to move to another pod.",
    ),
    "replay_missing": FindingCode(
        "note",
        "Set replay_endpoint in the engine's --kv-events-config and register it: without it events "
        "that are lost stay lost.",
    ),
    "replay_unreachable": FindingCode(
        "warning",
        "Set replay_endpoint in the engine's --kv-events-config, or register where it replays "
        "(`replay_endpoint`).",
    ),
    "replay_silent": FindingCode(
        "warning",
        "The port is open but sends no replay: check that the port is that of replays, not of "
        "events, and restart the engine if its publisher is dead.",
    ),
    "blocks_not_found": FindingCode(
        "fault",
        "Send prompts with the tokens that the engine uses (same tokenizer, LoRA name, cache "
        "salt), and check the dropped events of the worker.",
    ),
    "predictions_wrong": FindingCode(
        "warning",
        "Clients' tokens differ from the engine's tokens, or events are lost: compare "
        "tokenizer, chat template, LoRA name and salt.",
    ),
    "index_assumed": FindingCode(
        "note",
        "Nothing to do if the engine cannot publish KV events; else register its events endpoint, "
        "without `index`.",
    ),
    "index_assumed_silent": FindingCode(
        "warning",
        "Check that the engine still publishes KV events, and restart its publisher; until events "
        "come again its bookings are assumed (--assume-silent-secs).",
    ),
    "assumed_size_unknown": FindingCode(
        "warning",
        "Register `total_kv_blocks`, or report `cached_tokens` with prefill_complete: until then "
        "blocks are assumed that the engine has evicted.",
    ),
    "overlap_over_claimed": FindingCode(
        "warning",
        "Check `total_kv_blocks` of a rank without KV events, and that its prefix cache is on; "
        "report flushed caches to `/workers/{worker_id}/cache_cleared`.",
    ),
    "probe_refused": FindingCode(
        "warning", "The engine rejects a prompt of token ids: check its log."
    ),
    "check_refused": FindingCode(
        "warning",
        "Register the worker under the name that the engine serves (`select-service inspect URL`), "
        "or set the `api` of the model's engines in --canary-config.",
    ),
    "capacity_lost": FindingCode(
        "fault",
        "Restart the engine (see its log and GET /health/fleet), or let select-planner replace it.",
    ),
    "clock_off": FindingCode("warning", "Let both machines follow the same NTP servers."),
    "ranks_left_out": FindingCode(
        "note", "Use --worker to examine all ranks of one worker; further ranks are usually alike."
    ),
    "not_examined": FindingCode(
        "warning", "Examine fewer workers at a time (--worker); some endpoint answers very slowly."
    ),
    "no_workers": FindingCode(
        "warning", "Register workers (POST /workers, --workers-file), and see GET /workers."
    ),
    "descriptors_short": FindingCode(
        "warning", "Raise the limit of open files (ulimit -n, LimitNOFILE, nofile of the image)."
    ),
    "memory_short": FindingCode(
        "warning", "Raise the limit of memory, or lower --index-max-bytes or --index-max-blocks."
    ),
    "cpu_stolen": FindingCode(
        "warning", "Move to a host with spare CPU: other virtual machines use the CPU of this one."
    ),
    "cpu_throttled": FindingCode(
        "warning", "Raise the CPU limit of the container, or remove the limit and keep the request."
    ),
    "loop_late": FindingCode(
        "warning",
        "Give the process more CPU; fewer long prompts at a time help as well.",
    ),
    "kernels_generic": FindingCode(
        "note", "Compile for this processor: `select-service compile`, without NUMBA_CPU_NAME."
    ),
    "open_to_everybody": FindingCode(
        "warning",
        "Configure API keys (--api-keys-file), or bind 127.0.0.1: docs/guides/security.md.",
    ),
    "keys_stale": FindingCode(
        "fault", "Fix the API key file; until then removed keys remain valid."
    ),
    "certificate_stale": FindingCode(
        "fault", "Fix the certificate files; until then the previous certificate is in use."
    ),
    "certificate_ends": FindingCode(
        "warning", "Renew the certificate; changed files are reloaded automatically."
    ),
    "peer_unreachable": FindingCode(
        "fault", "Start the replica, open its --replica-sync-port, or deregister it."
    ),
    "peer_is_self": FindingCode("note", "Deregister it: a replica needs no connection to itself."),
    "peer_differs": FindingCode(
        "warning",
        "Register the same workers at all replicas, and leave --replica-sync-repair on; it should "
        "pass within seconds.",
    ),
    "peer_silent": FindingCode(
        "warning", "Check the replica: its log, its CPU, and the network to it."
    ),
    "state_not_kept": FindingCode(
        "fault", "Make room on the disk of --state-path, and make its folder writable."
    ),
    "snapshot_not_kept": FindingCode(
        "fault", "Make room on the disk of --snapshot-path, and make its folder writable."
    ),
    "recovery_failed": FindingCode(
        "warning", "Check the log for the peers of --indexer-peers; the index refills by itself."
    ),
    "shared_cache_unreachable": FindingCode(
        "warning",
        "Check url and load of the shared cache, or raise --shared-cache-timeout-ms.",
    ),
    "shared_cache_never_matches": FindingCode(
        "warning",
        "Compare the layout in the file, or LMCache's chunk size and hash seed, with the engines.",
    ),
    "shared_cache_unpriced": FindingCode(
        "warning",
        "Register `prefill_tokens_per_s`, and `bytes_per_token` and `link_gbps` of `kv_transfer`.",
    ),
    "kv_sources_unpriced": FindingCode(
        "warning",
        "Register `prefill_tokens_per_s`, and `bytes_per_token` and `link_gbps` of `kv_transfer`, "
        "or remove --kv-sources: it takes requests off the fast path.",
    ),
    "source_unread": FindingCode("fault", "Fix the error of the source shown in GET /discovery."),
    "source_refused": FindingCode(
        "warning",
        "Check `reasons`, `conflicting` and `unanswered` of the source in GET /discovery.",
    ),
    "prefill_without_decode": FindingCode(
        "warning",
        "Register workers with the role `decode` or `both` for the model, or leave `role` out.",
    ),
    "link_unknown": FindingCode(
        "warning",
        "Register the workers with `kv_transfer` (`bytes_per_token`, `link_gbps`, `host`) and "
        "`prefill_tokens_per_s`; until then moving a token costs half a token of prefill, which "
        "is far too much for fast links and too little for slow ones.",
    ),
    "connectors_differ": FindingCode(
        "warning",
        "Engines of different connectors cannot exchange KV blocks: register them as different "
        "models or tenants, or let all use one connector (`kind` of `kv_transfer`).",
    ),
    "first_tokens_unreported": FindingCode(
        "note",
        "Call POST /reservations/{reservation_id}/first_token when the decode engine's first "
        "token arrives: without the call a link counts as busy for two seconds after each prefill.",
    ),
}
