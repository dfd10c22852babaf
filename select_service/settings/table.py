"""Every setting: its flag, its environment variables, its default, how a text becomes a value."""

from collections.abc import Mapping
from math import inf

from select_service.bodies.common import BUSY_TOKENS_MAX
from select_service.core.decide.router_config import (
    POLICY_NAMES,
    POLICY_OPTIONS,
    RouterConfig,
)
from select_service.settings import values as read
from select_service.settings.health_flags import HEALTH
from select_service.settings.setting import Setting, cli
from select_service.settings.tls_flags import TLS

INDEX_BLOCKS_MAX = 2**28
INDEX_BYTES_MIN = 2**24
INDEX_BYTES = 2**30
"""256 bytes for each of as many blocks as there may be by default; like holders take 36."""


INPUT_LOOPS_MAX = 16
DECISIONS_MAX = 65_536

GROUPS: Mapping[str, tuple[Setting, ...]] = {
    "The service": (
        cli("--host", "127.0.0.1", read.host, "address to bind; others than loopback need keys"),
        cli("--port", 8092, read.whole(0, 65535), "HTTP port; 0 takes a free one"),
        cli(
            "--reuse-port",
            False,
            read.flag,
            "Linux: share the port with another process of this user, which is to take over",
        ),
        cli(
            "--drain-secs",
            5.0,
            read.number(0, 3600),
            "time for which requests are answered after SIGTERM, each the last of its connection",
            "drain_s",
        ),
        cli(
            "--keep-alive-secs",
            3900,
            read.whole(1, 86_400),
            "how long a connection may be idle; longer than the proxy before the service keeps one",
            "keep_alive_s",
        ),
        cli(
            "--file-mode",
            "0600",
            read.file_mode,
            "octal mode of the files that the service creates: state, snapshot, health, logs",
        ),
        cli("--threads", 4, read.whole(1, 64), "threads that receive KV events"),
        cli(
            "--log-level",
            "info",
            read.choice("debug", "info", "warning", "error"),
            "least level that is logged",
        ),
        cli(
            "--log-format",
            "text",
            read.choice("text", "json"),
            "format of the log; json: one object per line",
        ),
        cli(
            "--reservation-ttl-secs",
            3600.0,
            read.number(0, 1e9),
            "time after which a reservation that nobody renews expires; 0 = never",
            "reservation_ttl_s",
        ),
        cli(
            "--index-max-blocks",
            4_194_304,
            read.whole(1024, INDEX_BLOCKS_MAX),
            "distinct blocks that the index of one partition holds at most",
            "index_blocks_max",
        ),
        cli(
            "--index-max-bytes",
            INDEX_BYTES,
            read.whole(INDEX_BYTES_MIN, 2**48),
            "memory that the index of one partition takes at most, in bytes",
            "index_bytes_max",
        ),
        cli(
            "--strict-fields",
            False,
            read.flag,
            "refuse requests with unknown fields or query parameters, which are else only told of",
        ),
        cli(
            "--no-fast-path",
            False,
            read.flag,
            "answer every request in Python; else usual ones are answered in compiled code",
        ),
        cli(
            "--input-loops",
            0,
            read.whole(0, INPUT_LOOPS_MAX),
            "Linux: threads that accept connections and answer usual POST /select without Python",
        ),
        cli(
            "--policy",
            RouterConfig().policy,
            read.choice(*POLICY_NAMES),
            "rule by which a rank is chosen",
        ),
        cli(
            "--policy-options",
            (),
            read.some_of(*POLICY_OPTIONS),
            "comma-separated options of the policy work: decode-sensitive, strict-tail, no-memory",
            kind="OPTION[,OPTION]",
        ),
        cli(
            "--decisions",
            4096,
            read.whole(0, DECISIONS_MAX),
            "newest decisions that GET /decisions explains, 2 KiB each; 0 = none",
        ),
        cli(
            "--shadow-policy",
            None,
            read.policy(POLICY_NAMES, POLICY_OPTIONS),
            "policy that GET /shadow compares with what was decided, for example reference or "
            "work+strict-tail; none = nothing is compared",
            kind="POLICY",
        ),
        cli(
            "--otel",
            False,
            read.flag,
            "a span of OpenTelemetry for each selection, exported as the variables OTEL_* say, see "
            "docs/tracing.md",
        ),
        cli(
            "--decision-log",
            None,
            read.text,
            "file for a line of each decision, for `select-service replay`; 8 files of 64 MiB at "
            "most; none = not written",
        ),
    ),
    "Who may call": (
        cli(
            "--api-keys-file",
            None,
            read.text,
            "TOML or YAML file of the keys that may call, see docs/security.md; read again when it "
            "changes and on SIGHUP; none = everybody may call everything",
        ),
        cli(
            "--key-share",
            0.25,
            read.number(0.001, 1),
            "part of every limit that a key may use that is bound to tenants, see docs/security.md",
        ),
        cli(
            "--tenant-share",
            0.5,
            read.number(0.001, 1),
            "part of every limit that all keys may use together that are bound to the same tenant",
        ),
        cli(
            "--unbound-key-share",
            0.875,
            read.number(0.001, 1),
            "part of every limit that a key may use that is bound to no tenants",
        ),
        cli(
            "--insecure",
            False,
            read.flag,
            "let --host be an address that others can reach although no key is asked for",
        ),
        cli(
            "--allowed-hosts",
            None,
            read.hosts,
            "comma-separated names under which the service may be asked for, .example.com for all "
            "that end so, * for all; default: localhost without keys on loopback, else all",
            kind="NAME[,NAME]",
        ),
        cli(
            "--peer-api-key-file",
            None,
            read.text,
            "file with the key that this process presents to other selectors, of the role replica",
        ),
        cli(
            "--audit-log",
            None,
            read.text,
            "file for a line of JSON of each action of an operator; 8 files of 64 MiB; none "
            "= not written",
        ),
        cli(
            "--audit-required",
            False,
            read.flag,
            "refuse an action of an operator whose line cannot be written, before anything is done",
        ),
    ),
    "Where it may connect to": (
        cli(
            "--engine-curve-key-file",
            None,
            read.text,
            "file with our secret key (CURVE) for engines that ask who listens to their KV events",
        ),
        cli(
            "--connect-to",
            None,
            read.destinations,
            "comma-separated networks and names of engines and replicas, for example "
            "10.0.0.0/8,.svc.cluster.local; none = everywhere but to what is always refused, see "
            "docs/security.md",
            kind="NETWORK[,NETWORK]",
        ),
        cli(
            "--connect-to-loopback",
            None,
            read.flag,
            "permission to connect to this machine, over loopback, ipc and inproc; default: "
            "only where --host is loopback and no key is asked for",
        ),
    ),
    "TLS": TLS,
    "Discovery": (
        cli(
            "--workers-file",
            None,
            read.text,
            "YAML file of workers, see docs/discovery.md; read again when it changes; "
            "none = workers are registered over HTTP only",
        ),
        cli(
            "--discovery-config",
            None,
            read.text,
            "YAML file that lists sources of workers: files, names in the DNS, Kubernetes; see "
            "docs/discovery.md",
        ),
    ),
    "The index over a restart": (
        cli(
            "--indexer-peers",
            None,
            read.dump_peers,
            "comma-separated HTTP URLs of services to take the index from, the best one is taken",
            kind="URL[,URL]",
        ),
        cli(
            "--state-path",
            None,
            read.text,
            "file that keeps workers, thresholds and shedding over a restart; none = not kept",
        ),
        cli(
            "--snapshot-path",
            None,
            read.text,
            "file that keeps the index over a restart; none = not kept",
        ),
        cli(
            "--snapshot-interval-secs",
            60.0,
            read.number(1, 86_400),
            "time between two snapshots; one is also written at the end",
            "snapshot_interval_s",
        ),
    ),
    "Replicas": (
        cli(
            "--replica-sync-port",
            None,
            read.whole(1, 65535),
            "port of the ZMQ socket that tells other replicas of active load; none = not shared",
        ),
        cli(
            "--replica-sync-host",
            None,
            read.host,
            "address on which that port is opened; none = that of --host",
        ),
        cli(
            "--replica-key-file",
            None,
            read.text,
            "file with the secret key of this replica (CURVE), see docs/security.md",
        ),
        cli(
            "--replica-keys-file",
            None,
            read.text,
            "TOML or YAML file of the public keys of all replicas; read again when it changes",
        ),
        cli(
            "--replica-sync-insecure",
            False,
            read.flag,
            "share load without keys although others can reach the port, and believe peers where "
            "their lists are",
        ),
        cli(
            "--replica-sync-peers",
            None,
            read.peers,
            "comma-separated ZMQ endpoints of the other replicas, for example tcp://selector-b:9092",
            kind="ENDPOINT[,ENDPOINT]",
        ),
        cli(
            "--replica-sync-repair",
            True,
            read.flag,
            "fetch the reservations of a peer when its load and ours keep differing",
        ),
        cli(
            "--advertise-url",
            None,
            read.url,
            "where other replicas find our HTTP interface; else --port on the host of the events",
        ),
    ),
    "Scheduling": (
        Setting(
            "use_kv_events",
            True,
            read.flag,
            "listen to KV events; without them no overlap is known",
            variables=("DYN_USE_KV_EVENTS",),
        ),
        Setting(
            "overlap_score_credit",
            1.0,
            read.number(0, 1),
            "policy reference: credit for blocks on the GPU",
            variables=("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",),
        ),
        Setting(
            "overlap_score_credit_decay",
            0.0,
            read.number(0, inf),
            "policy reference: how fast that credit fades with a rank's prefill load",
            variables=("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",),
        ),
        Setting(
            "prefill_load_scale",
            1.0,
            read.number(0, inf),
            "policy reference: weight of the prefill part of the cost",
            variables=("DYN_ROUTER_PREFILL_LOAD_SCALE",),
        ),
        Setting(
            "overlap_score_weight",
            None,
            read.number(0, inf),
            "deprecated: sets the prefill load scale; 0 also sets the credit to 0",
            variables=("DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", "DYN_OVERLAP_SCORE_WEIGHT"),
        ),
        Setting(
            "host_cache_hit_weight",
            0.75,
            read.number(0, 1),
            "credit for blocks in CPU memory",
            variables=("DYN_ROUTER_HOST_CACHE_HIT_WEIGHT",),
        ),
        Setting(
            "disk_cache_hit_weight",
            0.25,
            read.number(0, 1),
            "credit for blocks on disk or in external storage",
            variables=("DYN_ROUTER_DISK_CACHE_HIT_WEIGHT",),
        ),
        Setting(
            "temperature",
            0.0,
            read.number(0, inf),
            "0 takes the cheapest rank; above, ranks are drawn by cost",
            variables=("DYN_ROUTER_TEMPERATURE",),
        ),
        Setting(
            "track_prefill_tokens",
            True,
            read.flag,
            "count prefill tokens as load",
            variables=("DYN_ROUTER_TRACK_PREFILL_TOKENS",),
        ),
        Setting(
            "track_active_blocks",
            True,
            read.flag,
            "count live blocks as load",
            variables=("DYN_ROUTER_TRACK_ACTIVE_BLOCKS",),
        ),
        Setting(
            "track_output_blocks",
            True,
            read.flag,
            "count output blocks as load",
            variables=("DYN_ROUTER_TRACK_OUTPUT_BLOCKS",),
        ),
        Setting(
            "assume_kv_reuse",
            True,
            read.flag,
            "requests of one rank share equal blocks",
            variables=("DYN_ROUTER_ASSUME_KV_REUSE",),
        ),
    ),
    "Admission": (
        cli(
            "--active-decode-blocks-threshold",
            None,
            read.number(0, 1),
            "part of a KV cache above which a rank is busy and gets no more; none = not judged",
            "decode_blocks_threshold",
            kind="FRACTION",
        ),
        cli(
            "--active-prefill-tokens-threshold",
            None,
            read.whole(0, BUSY_TOKENS_MAX),
            "active prefill tokens above which a rank is busy and gets no more; none = not judged",
            "prefill_tokens_threshold",
            kind="TOKENS",
        ),
        cli(
            "--queue-threshold",
            None,
            read.number_or_infinity,
            "requests wait while all candidates have more active prefill tokens than this many "
            "times their max_num_batched_tokens; none = nobody waits",
            also=("DYN_ROUTER_QUEUE_THRESHOLD",),
            kind="FACTOR",
        ),
        cli(
            "--queue-policy",
            "fcfs",
            read.choice("fcfs", "wspt", "work"),
            "who goes first: fcfs, the first to come, wspt, the least work, or work, both weighed; "
            "then requests wait by the work that is left on ranks",
            also=("DYN_ROUTER_QUEUE_POLICY",),
        ),
        cli(
            "--policy-config",
            None,
            read.text,
            "YAML file of policy classes; turns queueing on",
            also=("DYN_ROUTER_POLICY_CONFIG",),
        ),
        cli(
            "--queue-timeout-secs",
            60.0,
            read.number(0, 86_400),
            "longest wait of a request; 0 = for ever",
            "queue_timeout_s",
        ),
        cli("--queue-max-requests", 4096, read.whole(1, 1_000_000), "requests that wait at most"),
        cli(
            "--queue-max-tokens",
            64_000_000,
            read.whole(1, 2**40),
            "prompt tokens of all waiting requests at most",
        ),
        cli(
            "--priority-tiers",
            ("premium", "standard", "best_effort"),
            read.names,
            "comma-separated names of the priority tiers, highest first",
            kind="NAME[,NAME]",
        ),
        cli(
            "--priority-default-tier",
            None,
            read.text,
            "tier of requests that name none; none = the middle one, of two the lower",
            kind="NAME",
        ),
    ),
    "The engines' own metrics": (
        cli(
            "--engine-metrics-interval-secs",
            1.0,
            read.number(0.1, 3600),
            "time between two readings of a worker's metrics_endpoint",
            "engine_metrics_interval_s",
        ),
        cli(
            "--engine-metrics-timeout-secs",
            1.0,
            read.number(0.1, 60),
            "longest duration of one reading",
            "engine_metrics_timeout_s",
        ),
        cli(
            "--engine-metrics-stale-secs",
            5.0,
            read.number(0.1, 3600),
            "age from which on a reading does not count",
            "engine_metrics_stale_s",
        ),
    ),
    "Health of the engines": HEALTH,
}
"""By title, in the order in which they are shown."""

SETTINGS = tuple(setting for group in GROUPS.values() for setting in group)

OF_REFERENCE = (
    "overlap_score_credit",
    "overlap_score_credit_decay",
    "prefill_load_scale",
    "overlap_score_weight",
)
"""Settings that only the policy `reference` heeds."""
WITHOUT_EFFECT = (
    "DYN_ROUTER_REPLICA_SYNC",
    "DYN_ROUTER_PREDICTED_TTL_SECS",
    "DYN_ROUTER_OVERLAP_REFRESH_AFTER_SECS",
)
"""Variables of the reference that decide nothing here: reported, not refused."""
