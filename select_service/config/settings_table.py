"""Table of all settings: flag, environment variables, default and parser."""

from collections.abc import Mapping

from select_service.config import value_parsers as read
from select_service.config.dynamo_settings import (
    ACTIVE_REQUESTS,
    ASSUMED_INDEX,
    SCHEDULING,
    SESSIONS,
)
from select_service.config.health_flags import HEALTH
from select_service.config.setting import (
    ServiceSetting,
    flag_setting,
    path_setting,
    switch_setting,
)
from select_service.core.placement.router_config import POLICY_NAMES, POLICY_OPTIONS, RouterConfig
from select_service.schemas.common import BUSY_TOKENS_MAX

INDEX_BLOCKS_MAX = 2**28
INDEX_BYTES_MIN = 2**24
INDEX_BYTES = 2**30
"""Default memory limit: 256 bytes for each block of the default limit; similar holders need 36."""


DECISIONS_MAX = 65_536

GROUPS: Mapping[str, tuple[ServiceSetting, ...]] = {
    "Service": (
        flag_setting(
            "--host",
            "127.0.0.1",
            read.bind_host,
            "address to bind; non-loopback addresses require --api-keys-file or --insecure",
        ),
        flag_setting("--port", 8092, read.whole_number(0, 65535), "HTTP port; 0 = a free port"),
        switch_setting(
            "--reuse-port",
            "share the port with another process of this user, for a handover (Linux)",
        ),
        flag_setting(
            "--drain-secs",
            5.0,
            read.finite_number(0, 3600),
            "time after SIGTERM in which requests are still answered, each closing its connection",
        ),
        flag_setting(
            "--keep-alive-secs",
            3900,
            read.whole_number(1, 86_400),
            "idle time limit of connections; give more than the proxy in front uses",
        ),
        flag_setting(
            "--file-mode",
            "0600",
            read.file_mode,
            "octal mode of created files: state, snapshot, health, logs",
        ),
        flag_setting(
            "--threads", 4, read.whole_number(1, 64), "number of threads that receive KV events"
        ),
        flag_setting(
            "--log-level",
            "info",
            read.one_of_words("debug", "info", "warning", "error"),
            "minimum level of log lines",
        ),
        flag_setting(
            "--log-format",
            "text",
            read.one_of_words("text", "json"),
            "format of the log; json: one object per line",
        ),
        flag_setting(
            "--reservation-ttl-secs",
            3600.0,
            read.finite_number(0, 1e9),
            "time without renewal after which a reservation expires; 0 = never",
        ),
        flag_setting(
            "--index-max-blocks",
            4_194_304,
            read.whole_number(1024, INDEX_BLOCKS_MAX),
            "maximum number of distinct blocks in the index of a partition",
            "index_blocks_max",
        ),
        flag_setting(
            "--index-max-bytes",
            INDEX_BYTES,
            read.whole_number(INDEX_BYTES_MIN, 2**48),
            "maximum memory of the index of a partition, bytes; assumed blocks may take it again",
            "index_bytes_max",
        ),
        switch_setting(
            "--strict-fields", "reject unknown fields and query parameters instead of warning"
        ),
        switch_setting("--no-fast-path", "answer all requests in Python instead of compiled code"),
        flag_setting(
            "--policy", RouterConfig().policy, read.one_of_words(*POLICY_NAMES), "placement policy"
        ),
        flag_setting(
            "--policy-options",
            (),
            read.words_of(*POLICY_OPTIONS),
            "comma-separated options of --policy work: " + ", ".join(POLICY_OPTIONS),
            kind="OPTION[,OPTION]",
        ),
        flag_setting(
            "--decisions",
            4096,
            read.whole_number(0, DECISIONS_MAX),
            "number of recent decisions kept for GET /decisions, 2 KiB each; 0 = none",
        ),
        flag_setting(
            "--shadow-policy",
            None,
            read.policy_name(POLICY_NAMES, POLICY_OPTIONS),
            "policy that GET /shadow compares with the decisions, for example reference (Dynamo's"
            " rule) or work+strict-tail (default: no comparison)",
            kind="POLICY",
        ),
        switch_setting(
            "--otel",
            "OpenTelemetry span for each selection, exported according to OTEL_* variables, see "
            "docs/guides/monitoring.md",
        ),
        path_setting(
            "--decision-log",
            "file with a line per decision, for `select-service replay`; at most 8 files of 64 "
            "MiB (default: not written)",
        ),
    ),
    "Access": (
        path_setting(
            "--api-keys-file",
            "TOML or YAML file of API keys, see docs/guides/security.md; reloaded after a change "
            "and on SIGHUP (default: no keys, all callers may do everything)",
        ),
        flag_setting(
            "--key-share",
            0.25,
            read.finite_number(0.001, 1),
            "maximum fraction of each limit for a key bound to tenants, see "
            "docs/guides/security.md",
        ),
        flag_setting(
            "--tenant-share",
            0.5,
            read.finite_number(0.001, 1),
            "maximum fraction of each limit for all keys of a tenant together",
        ),
        flag_setting(
            "--unbound-key-share",
            0.875,
            read.finite_number(0.001, 1),
            "maximum fraction of each limit for a key not bound to tenants",
        ),
        switch_setting(
            "--insecure", "permit a --host reachable from other machines without API keys"
        ),
        flag_setting(
            "--allowed-hosts",
            None,
            read.host_names,
            "comma-separated host names accepted in requests; .example.com matches subdomains, * "
            "matches all (default: localhost on loopback without keys, else all)",
            kind="NAME[,NAME]",
        ),
        path_setting(
            "--peer-api-key-file",
            "file of the API key sent to other selectors; the key needs the role replica",
        ),
        path_setting(
            "--audit-log",
            "file with a JSON line per operator action; at most 8 files of 64 MiB (default: not "
            "written)",
        ),
        switch_setting(
            "--audit-required", "refuse operator actions whose audit line cannot be written"
        ),
    ),
    "Outgoing connections": (
        path_setting(
            "--engine-curve-key-file",
            "file of the secret CURVE key for engines with authenticated KV events",
        ),
        flag_setting(
            "--connect-to",
            None,
            read.egress_destinations,
            "comma-separated networks and host names of engines and replicas, for example "
            "10.0.0.0/8,.svc.cluster.local (default: all except those always refused, see "
            "docs/guides/security.md)",
            kind="NETWORK[,NETWORK]",
        ),
        flag_setting(
            "--connect-to-loopback",
            None,
            read.true_or_false,
            "permit connections to this machine over loopback, ipc and inproc (default: only if "
            "--host is loopback and no API keys are configured)",
        ),
    ),
    "TLS": (
        path_setting(
            "--tls-cert",
            "PEM file of the server certificate followed by its intermediate certificates; "
            "reloaded after a change and on SIGHUP (default: plain HTTP)",
        ),
        path_setting("--tls-key", "PEM file of the server's private key, without a passphrase"),
        path_setting(
            "--tls-client-ca",
            "PEM file of CAs that must have issued client certificates (default: none required)",
        ),
        path_setting("--tls-ca", "PEM file of additional CAs for outgoing HTTPS"),
        path_setting("--tls-client-cert", "PEM file of the client certificate for outgoing HTTPS"),
        path_setting("--tls-client-key", "PEM file of the client's private key"),
    ),
    "Discovery": (
        path_setting(
            "--workers-file",
            "YAML file of workers, see docs/guides/discovery.md; reloaded after a change "
            "(default: workers are registered over HTTP only)",
        ),
        path_setting(
            "--discovery-config",
            "YAML file of discovery sources (files, DNS names, Kubernetes), see "
            "docs/guides/discovery.md",
        ),
    ),
    "Persistence and recovery": (
        flag_setting(
            "--indexer-peers",
            None,
            read.dump_peers,
            "comma-separated URLs of selectors to recover the index from; the best dump is used",
            kind="URL[,URL]",
        ),
        path_setting(
            "--state-path",
            "file of workers, thresholds and shedding across restarts (default: not persisted)",
        ),
        path_setting(
            "--snapshot-path", "file of the index across restarts (default: not persisted)"
        ),
        flag_setting(
            "--snapshot-interval-secs",
            60.0,
            read.finite_number(1, 86_400),
            "interval between two snapshots; another one is written at shutdown",
        ),
    ),
    "Replicas": (
        flag_setting(
            "--replica-sync-port",
            None,
            read.whole_number(1, 65535),
            "port of the ZMQ socket that publishes load to other replicas (default: not shared)",
        ),
        flag_setting(
            "--replica-sync-host",
            None,
            read.bind_host,
            "address of --replica-sync-port (default: that of --host)",
        ),
        path_setting(
            "--replica-key-file",
            "file of the secret CURVE key of this replica, see docs/guides/security.md",
        ),
        path_setting(
            "--replica-keys-file",
            "TOML or YAML file of the public keys of all replicas; reloaded after a change",
        ),
        switch_setting(
            "--replica-sync-insecure",
            "permit a replica port reachable from other machines without keys, and trust the URLs"
            " that peers announce",
        ),
        flag_setting(
            "--replica-sync-peers",
            None,
            read.replica_peers,
            "comma-separated ZMQ endpoints of the other replicas, for example "
            "tcp://selector-b:9092",
            kind="ENDPOINT[,ENDPOINT]",
        ),
        flag_setting(
            "--replica-sync-repair",
            True,
            read.true_or_false,
            "fetch the reservations of a peer after a persistent divergence of load",
        ),
        flag_setting(
            "--advertise-url",
            None,
            read.service_url,
            "URL of this HTTP interface for other replicas (default: --port on the event host)",
        ),
    ),
    "Scheduling": SCHEDULING,
    "Sessions and pending selections": SESSIONS,
    "Active requests": ACTIVE_REQUESTS,
    "Assumed index": ASSUMED_INDEX,
    "Admission": (
        flag_setting(
            "--active-decode-blocks-threshold",
            None,
            read.finite_number(0, 1),
            "fraction of the KV cache above which a rank is busy (default: not checked)",
            "decode_blocks_threshold",
            kind="FRACTION",
        ),
        flag_setting(
            "--active-prefill-tokens-threshold",
            None,
            read.whole_number(0, BUSY_TOKENS_MAX),
            "active prefill tokens above which a rank is busy (default: not checked)",
            "prefill_tokens_threshold",
            kind="TOKENS",
        ),
        flag_setting(
            "--queue-threshold",
            None,
            read.number_or_infinity,
            "queueing starts when all candidates exceed this multiple of their "
            "max_num_batched_tokens in active prefill tokens (default: no queueing)",
            kind="FACTOR",
        ).with_variables("DYN_ROUTER_QUEUE_THRESHOLD"),
        flag_setting(
            "--queue-policy",
            "fcfs",
            read.one_of_words("fcfs", "lcfs", "wspt", "work"),
            "order of queued requests: fcfs = first come, first served; lcfs = last come, first "
            "served; wspt = least work first; "
            "work = both weighted, with queueing by the remaining work of ranks",
        ).with_variables("DYN_ROUTER_QUEUE_POLICY"),
        path_setting(
            "--policy-config", "YAML file of policy classes; enables queueing"
        ).with_variables("DYN_ROUTER_POLICY_CONFIG"),
        flag_setting(
            "--queue-timeout-secs",
            60.0,
            read.finite_number(0, 86_400),
            "maximum queueing time of a request; 0 = unlimited",
        ),
        flag_setting(
            "--queue-max-requests",
            4096,
            read.whole_number(1, 1_000_000),
            "maximum number of queued requests",
        ),
        flag_setting(
            "--queue-max-tokens",
            64_000_000,
            read.whole_number(1, 2**40),
            "maximum number of prompt tokens of all queued requests",
        ),
        flag_setting(
            "--priority-tiers",
            ("premium", "standard", "best_effort"),
            read.distinct_names,
            "comma-separated names of the priority tiers, highest first",
            kind="NAME[,NAME]",
        ),
        flag_setting(
            "--priority-default-tier",
            None,
            read.non_empty_text,
            "tier of requests without one (default: the middle tier; of two, the lower)",
            kind="NAME",
        ),
    ),
    "Cache elsewhere": (
        path_setting(
            "--shared-caches",
            "YAML file of shared caches by model, see docs/guides/shared-caches.md (default: none)",
        ),
        flag_setting(
            "--shared-cache-timeout-ms",
            5.0,
            read.finite_number(0.1, 1000),
            "longest wait of a request for its look-up in a shared cache",
        ),
        switch_setting(
            "--kv-sources",
            "name in answers a rank from which fetching beats computing",
        ),
    ),
    "Engine metrics": (
        flag_setting(
            "--engine-metrics-interval-secs",
            1.0,
            read.finite_number(0.1, 3600),
            "interval between two scrapes of a worker's metrics_endpoint",
        ),
        flag_setting(
            "--engine-metrics-timeout-secs",
            1.0,
            read.finite_number(0.1, 60),
            "time limit of a scrape",
        ),
        flag_setting(
            "--engine-metrics-stale-secs",
            5.0,
            read.finite_number(0.1, 3600),
            "age above which a reading is ignored",
        ),
    ),
    "Health checks": HEALTH,
}
"""Settings by group title, in display order."""

SETTINGS = tuple(setting for group in GROUPS.values() for setting in group)
