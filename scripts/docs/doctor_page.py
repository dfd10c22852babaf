# ruff: noqa: E501 -- long lines are lines of the page
"""Page of all findings of the doctor, from the table of codes."""

from collections.abc import Mapping

from scripts.docs.markdown import code, marked, table
from select_service.core.doctor.finding_codes import FINDING_CODES

INTRODUCTION = """\
# Doctor codes

All findings of `select-service doctor` and `GET /doctor`; [troubleshooting](../guides/troubleshooting.md) shows how to
run them. Codes are stable. `fault`: something does not work; `warning`: it works worse than it could, or will stop
working; `note`: worth knowing.
"""
WORKERS: Mapping[str, str] = {
    "worker_incomplete": "`lifecycle` is `incomplete`; the reasons are listed",
    "worker_drains": "an operator, the planner or a source took the worker out",
    "engine_unreachable": "no TCP connection to `endpoint`",
    "engine_no_answer": "a connection, but no answer to `/health`, `/v1/models`, `/metrics` or `/server_info`",
    "engine_unknown": "the engine answers HTTP, but is neither vLLM nor SGLang",
    "block_size_differs": "the engine or its events have another block size than the record, and no event of full attention has that of the record",
    "model_name_differs": "the engine serves the model under other names",
    "ranks_differ": "the engine has another number of data-parallel ranks",
    "cache_facts_missing": "the engine reports [facts about its KV cache](api-workers.md#kv-cache-facts) that the record lacks",
    "events_unreachable": "no TCP connection to the endpoint of KV events",
    "events_not_connected": "a TCP connection, but no event stream",
    "events_silent": "no event in spite of requests or an answered prompt, or none for 600 s with requests",
    "events_lost": "batches are missing in the index and were not replayed",
    "events_unreadable": "batches that could not be decoded",
    "events_not_indexed": "events of another rank or form were dropped",
    "unknown_event_fields": "events have fields that this version does not know, [named in `unknown_fields`](api-workers.md#kv-events-of-a-rank)",
    "cache_groups_bounded": "overlaps of a rank are [upper bounds](../explanation/exactness.md#models-with-several-caches), for the reasons given",
    "no_dense_group": "only windows or states are published",
    "ends_inside_blocks": "a group of full attention or states publishes the ends of prompts inside its blocks",
    "eagle_events_plain": "events without lookahead and pairs of a worker with `is_eagle`",
    "eagle_not_registered": "events with lookahead of a worker without `is_eagle`",
    "engine_replaced": "the topic of the events named another pod or model",
    "replay_missing": "no replay endpoint is registered",
    "replay_unreachable": "no TCP connection to the replay endpoint",
    "replay_silent": "no valid replay within 3 s",
    "blocks_not_found": "announced blocks, or those of the `--probe` prompt, are not found by their tokens",
    "predictions_wrong": "too few blocks of placed prompts were announced afterwards",
    "index_assumed": "the index of the rank comes from bookings alone",
    "index_assumed_silent": "a rank with requests has sent no KV event for `--assume-silent-secs`",
    "assumed_size_unknown": "the same without `total_kv_blocks` and without reported cached tokens",
    "overlap_over_claimed": "callers reported more than 10 % of the expected tokens as not cached",
    "probe_refused": "`/v1/completions` refused a prompt of token ids",
    "capacity_lost": "health has taken ranks of the worker out, without a drain by anybody",
    "check_refused": "the engine answers health checks with 3xx or 4xx, so its health is unknown",
    "clock_off": "the clock differs by more than 2 s (events) or 3 s (HTTP `date`)",
    "ranks_left_out": "only 16 ranks of a worker are examined",
    "not_examined": "the 25 s of one call were over",
}
SERVICE: Mapping[str, str] = {
    "no_workers": "no worker can be chosen",
    "descriptors_short": "open files from 80 % of the limit; a fault from 95 %",
    "memory_short": "memory from 80 % of the limit of the control group or machine; a fault from 95 %",
    "cpu_stolen": "more than 5 % steal during the examined second",
    "cpu_throttled": "more than 10 % of the periods throttled",
    "loop_late": "event loop more than 10 ms late on average, or one turn more than 250 ms",
    "kernels_generic": "kernels are portable, or `NUMBA_CPU_NAME` names a processor",
    "open_to_everybody": "no keys on an address that other machines can reach",
    "keys_stale": "the file of keys is invalid; the previous keys stay in force",
    "certificate_stale": "certificate files are invalid; the previous ones stay in use",
    "certificate_ends": "the certificate expires within 14 days; a fault when expired",
    "peer_unreachable": "no connection to a peer of the replica plane",
    "peer_is_self": "the peer is this process",
    "peer_differs": "reservations differ at the beginning of the examination and a second later",
    "peer_silent": "connected, but no message for 5 s",
    "state_not_kept": "the last write of the `--state-path` file failed",
    "snapshot_not_kept": "the snapshot could not be written, and the last one is three intervals old",
    "recovery_failed": "no source gave an index at the start",
    "source_unread": "a source of workers cannot be read; its previous content stays in force",
    "source_refused": "workers of a source that are refused, owned by another source or not answering",
    "prefill_without_decode": "all workers of a model and tenant have the role `prefill`",
    "link_unknown": "pairs were chosen, and workers lack `kv_transfer` with bytes and link speed, or `prefill_tokens_per_s`",
    "connectors_differ": "pairs were chosen, and workers of one model and tenant differ in the `kind` of `kv_transfer`",
    "shared_cache_unreachable": "most look-ups fail or are late",
    "shared_cache_never_matches": "no hit in 50 look-ups, though workers held 5 % of the tokens",
    "shared_cache_unpriced": "hits, but ranks without a price",
    "kv_sources_unpriced": "`--kv-sources`, and a model without any rank with a price",
    "first_tokens_unreported": "no first token reported for 20 pairs or more",
}


def doctor_page() -> str:
    """Return the page; every code needs a row here."""
    missing = FINDING_CODES.keys() ^ (WORKERS.keys() | SERVICE.keys())
    if missing:
        message = f"no condition for {sorted(missing)}"
        raise KeyError(message)
    sections = [INTRODUCTION.strip(), "## Workers", _table(WORKERS), "## Service", _table(SERVICE)]
    return marked(__name__, "\n\n".join(sections))


def _table(conditions: Mapping[str, str]) -> str:
    rows = [
        (code(name), FINDING_CODES[name].severity, condition, FINDING_CODES[name].fix)
        for name, condition in conditions.items()
    ]
    return table(("code", "severity", "condition", "fix"), rows)
