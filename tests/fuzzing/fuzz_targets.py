"""Table of the fuzz targets."""

import importlib
from collections.abc import Callable
from typing import NamedTuple


class FuzzTarget(NamedTuple):
    """Target of fuzzing.

    about: input of the target
    module, check, seeds: module and function names, imported on use
    parsers: packages with Python code that guides the search; empty if only machine code does
    kernels: modules with machine code that guides the search, too, with checks of array bounds
    """

    about: str
    module: str
    check: str
    seeds: str
    parsers: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()

    def load(self) -> tuple[Callable[[bytes], None], list[bytes]]:
        """Return the check and its seeds."""
        module = importlib.import_module(f"tests.fuzzing.{self.module}")
        return getattr(module, self.check), getattr(module, self.seeds)()


SCHEMAS = ("select_service.http", "select_service.api", "select_service.core.placement")
EVENTS, DUMPS = ("indexer.events",), ("indexer.dumps", "indexer.index")
FILES = ("select_service.config", "select_service.files", "select_service.auth")
PLANNER = ("select_service.planner",)
DISCOVERY = ("select_service.core.registry.discovery",)
REPLICATION = ("select_service.core.replication",)
HEALTH = ("select_service.adapters.health",)
STORES = ("select_service.adapters.shared_caches", "select_service.core.shared_caches")
TARGETS: dict[str, FuzzTarget] = {
    "requests": FuzzTarget(
        "requests, by the compiled reader and by the ordinary path",
        *("request_checks", "check_requests", "request_seeds"),
        kernels=("tests.fastpath.request_kernels",),
    ),
    "kv_events": FuzzTarget(
        "KV events, by the compiled reader and by the parser",
        *("event_checks", "check_kv_events", "event_seeds", EVENTS),
        kernels=EVENTS,
    ),
    "bodies": FuzzTarget(
        "bodies of all routes", "http_checks", "check_bodies", "body_seeds", SCHEMAS
    ),
    "queries": FuzzTarget(
        "query strings of all routes", "http_checks", "check_queries", "query_seeds", SCHEMAS
    ),
    "responses": FuzzTarget(
        "HTTP responses, in one piece and in two",
        *("http_checks", "check_responses", "response_seeds", ("select_service.net",)),
    ),
    "json_dumps": FuzzTarget(
        "JSON dumps, and their adoption by an index",
        *("dump_checks", "check_json_dumps", "json_dump_seeds", DUMPS),
        kernels=DUMPS,
    ),
    "compact_dumps": FuzzTarget(
        "compact dumps and snapshots with right checksums, and their adoption",
        *("dump_checks", "check_compact_dumps", "compact_dump_seeds", DUMPS),
        kernels=DUMPS,
    ),
    "compact_frames": FuzzTarget(
        "frames of compact dumps",
        *("dump_checks", "check_raw_compact_dumps", "raw_compact_dump_seeds", DUMPS),
    ),
    "peer_messages": FuzzTarget(
        "messages between replicas",
        *("answer_checks", "check_peer_messages", "peer_seeds", REPLICATION),
    ),
    "metrics": FuzzTarget(
        "metrics of engines",
        *("answer_checks", "check_metrics", "metrics_seeds", ("select_service.core.workers",)),
    ),
    "canaries": FuzzTarget(
        "answers to health checks", "answer_checks", "check_canaries", "canary_seeds", HEALTH
    ),
    "engine_facts": FuzzTarget(
        "facts from engines", "answer_checks", "check_engine_facts", "fact_seeds", DISCOVERY
    ),
    "kubernetes": FuzzTarget(
        "pods and EndpointSlices",
        *("answer_checks", "check_kubernetes", "kubernetes_seeds", DISCOVERY),
    ),
    "planner_answers": FuzzTarget(
        "answers to the planner",
        *("answer_checks", "check_planner_answers", "planner_answer_seeds", PLANNER),
    ),
    "store_answers": FuzzTarget(
        "answers of shared caches", "store_checks", "check_stores", "store_seeds", STORES
    ),
    "client_answers": FuzzTarget(
        "answers to the Python client",
        *("answer_checks", "check_client_answers", "client_seeds", ("select_service.client",)),
    ),
    "settings": FuzzTarget(
        "YAML files of settings, keys, workers and the planner",
        *("file_checks", "check_settings_files", "settings_seeds", FILES + PLANNER + DISCOVERY),
    ),
    "toml_keys": FuzzTarget(
        "TOML files of keys", "file_checks", "check_toml_keys", "toml_seeds", FILES
    ),
    "environment": FuzzTarget(
        "settings of the environment",
        *("file_checks", "check_environments", "environment_seeds", FILES),
    ),
    "logs": FuzzTarget(
        "traces and decision logs",
        *("file_checks", "check_logs", "log_seeds"),
        (*PLANNER, "select_service.files", "select_service.sim.replay"),
    ),
    "profiles": FuzzTarget(
        "measured profiles", "file_checks", "check_profiles", "profile_seeds", PLANNER
    ),
    "archives": FuzzTarget(
        "measured profiles as archives", "file_checks", "check_archives", "archive_seeds", PLANNER
    ),
    "states": FuzzTarget(
        "persisted state, health references, policies and sessions",
        *("file_checks", "check_states", "state_seeds", ("select_service.files",)),
    ),
    "texts": FuzzTarget(
        "URLs, endpoints, networks, keys and lists of hashes",
        *("text_checks", "check_texts", "text_seeds", ("select_service.net", "indexer")),
    ),
}
