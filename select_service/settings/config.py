"""The configuration: the only reader of the command line and of the environment.

One table, `SETTINGS`, says for every setting its flag, its environment variables, its default, how
a text becomes a value and what it means.  `--help`, `GET /config` and the documentation follow from
it.  A value that makes no sense stops the start: a fleet must not run on a typo.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, NoReturn

from select_service.bodies.common import BUSY_TOKENS_MAX
from select_service.settings import values as read

ENVIRONMENT_PREFIX = "SELECT_SERVICE_"
INDEX_BLOCKS_MAX = 2**28
INDEX_BYTES_MIN = 2**24
INDEX_BYTES = 2**30
"""256 bytes for each of as many blocks as there may be by default; like holders take 36."""


class ConfigError(Exception):
    """One line that says which setting is wrong and what was expected."""


class Unusable(Exception):
    """One line about a setting that makes sense, but not on this machine."""


class Setting(NamedTuple):
    """`flag` is None for what only the environment can set; the first variable set counts."""

    name: str
    default: Any
    parse: Callable[[str], Any]
    help: str
    flag: str | None = None
    variables: tuple[str, ...] = ()


def _cli(
    flag: str,
    default: Any,
    parse: Callable[[str], Any],
    help_text: str,
    name: str = "",
    *,
    also: tuple[str, ...] = (),
) -> Setting:
    """also: further variables, of the reference"""
    word = flag.removeprefix("--").replace("-", "_")
    variable = ENVIRONMENT_PREFIX + word.upper()
    return Setting(name or word, default, parse, help_text, flag, (variable, *also))


SETTINGS: tuple[Setting, ...] = (
    _cli("--host", "0.0.0.0", read.text, "address to bind"),
    _cli("--port", 8092, read.whole(0, 65535), "HTTP port; 0 takes a free one"),
    _cli("--threads", 4, read.whole(1, 64), "threads that receive KV events"),
    _cli(
        "--log-level",
        "info",
        read.choice("debug", "info", "warning", "error"),
        "least level logged: debug, info, warning or error",
    ),
    _cli("--log-format", "text", read.choice("text", "json"), "text, or json: one object per line"),
    _cli(
        "--reservation-ttl-secs",
        3600.0,
        read.number(0, 1e9),
        "a reservation that nobody renews for so long expires; 0 = never",
        "reservation_ttl_s",
    ),
    _cli(
        "--index-max-blocks",
        4_194_304,
        read.whole(1024, INDEX_BLOCKS_MAX),
        "distinct blocks that the index of one partition holds at most",
        "index_blocks_max",
    ),
    _cli(
        "--index-max-bytes",
        INDEX_BYTES,
        read.whole(INDEX_BYTES_MIN, 2**48),
        "memory that the index of one partition takes at most, in bytes",
        "index_bytes_max",
    ),
    _cli(
        "--strict-fields",
        False,
        read.flag,
        "refuse requests with unknown fields or query parameters, which are else only told of",
    ),
    _cli("--policy", "reference", read.choice("reference"), "cost function"),
    _cli(
        "--indexer-peers",
        None,
        read.dump_peers,
        "comma-separated HTTP URLs of services whose index to begin with, the best one is taken",
    ),
    _cli(
        "--snapshot-path",
        None,
        read.text,
        "file that keeps the index over a restart; none = not kept",
    ),
    _cli(
        "--snapshot-interval-secs",
        60.0,
        read.number(1, 86_400),
        "how often the snapshot file is written; it is also written at the end",
        "snapshot_interval_s",
    ),
    _cli(
        "--replica-sync-port",
        None,
        read.whole(1, 65535),
        "port of the ZMQ socket that tells other replicas of active load; none = not shared",
    ),
    _cli(
        "--replica-sync-peers",
        None,
        read.peers,
        "comma-separated ZMQ endpoints of the other replicas, for example tcp://selector-b:9092",
    ),
    _cli(
        "--replica-sync-repair",
        True,
        read.flag,
        "fetch the reservations of a peer when its load and ours keep differing",
    ),
    _cli(
        "--advertise-url",
        None,
        read.url,
        "where other replicas find our HTTP interface; otherwise --port on the host of the events",
    ),
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
        "credit for blocks on the GPU",
        variables=("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",),
    ),
    Setting(
        "overlap_score_credit_decay",
        0.0,
        read.number(0, inf),
        "how fast that credit fades with a rank's prefill load",
        variables=("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",),
    ),
    Setting(
        "prefill_load_scale",
        1.0,
        read.number(0, inf),
        "weight of the prefill part of the cost",
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
    _cli(
        "--active-decode-blocks-threshold",
        None,
        read.number(0, 1),
        "part of a KV cache above which a rank is busy and gets no more; none = not judged",
        "decode_blocks_threshold",
    ),
    _cli(
        "--active-prefill-tokens-threshold",
        None,
        read.whole(0, BUSY_TOKENS_MAX),
        "active prefill tokens above which a rank is busy and gets no more; none = not judged",
        "prefill_tokens_threshold",
    ),
    _cli(
        "--queue-threshold",
        None,
        read.number_or_infinity,
        "requests wait while all candidates have more active prefill tokens than this many times "
        "their max_num_batched_tokens; none = nobody waits",
        also=("DYN_ROUTER_QUEUE_THRESHOLD",),
    ),
    _cli(
        "--queue-policy",
        "fcfs",
        read.choice("fcfs", "wspt"),
        "who goes first: fcfs, the first to come, or wspt, the least work",
        also=("DYN_ROUTER_QUEUE_POLICY",),
    ),
    _cli(
        "--policy-config",
        None,
        read.text,
        "YAML file of policy classes; turns queueing on",
        also=("DYN_ROUTER_POLICY_CONFIG",),
    ),
    _cli(
        "--queue-timeout-secs",
        60.0,
        read.number(0, 86_400),
        "how long a request waits at most; 0 = for ever",
        "queue_timeout_s",
    ),
    _cli("--queue-max-requests", 4096, read.whole(1, 1_000_000), "requests that wait at most"),
    _cli(
        "--queue-max-tokens",
        64_000_000,
        read.whole(1, 2**40),
        "prompt tokens of all waiting requests at most",
    ),
    _cli(
        "--priority-tiers",
        ("premium", "standard", "best_effort"),
        read.names,
        "comma-separated names of the priority tiers, highest first",
    ),
    _cli(
        "--priority-default-tier",
        None,
        read.text,
        "tier of requests that name none; none = the middle one, of two the lower",
    ),
    _cli(
        "--engine-metrics-interval-secs",
        1.0,
        read.number(0.1, 3600),
        "how often the metrics_endpoint of a worker is read",
        "engine_metrics_interval_s",
    ),
    _cli(
        "--engine-metrics-timeout-secs",
        1.0,
        read.number(0.1, 60),
        "how long one reading may take",
        "engine_metrics_timeout_s",
    ),
    _cli(
        "--engine-metrics-stale-secs",
        5.0,
        read.number(0.1, 3600),
        "age from which on a reading does not count",
        "engine_metrics_stale_s",
    ),
)

WITHOUT_EFFECT = (
    "DYN_ROUTER_REPLICA_SYNC",
    "DYN_ROUTER_PREDICTED_TTL_SECS",
    "DYN_ROUTER_OVERLAP_REFRESH_AFTER_SECS",
)
"""Variables of the reference that decide nothing here: reported, not refused."""


class Value(NamedTuple):
    """A setting's value and where it came from."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting of the process by name, with its origin."""

    values: Mapping[str, Value]
    without_effect: tuple[str, ...]

    def __getitem__(self, name: str) -> Any:
        return self.values[name].value

    def effective(self) -> dict[str, dict[str, Any]]:
        """What GET /config and the log show."""
        return {setting.name: self.values[setting.name]._asdict() for setting in SETTINGS}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parser() -> argparse.ArgumentParser:
    """The command line; values stay texts and are read like those of the environment."""
    result = _Parser(
        prog="select-service",
        description="KV-cache-aware worker selection and load accounting for LLM inference fleets.",
        epilog="Every flag can be given in the environment as "
        f"{ENVIRONMENT_PREFIX}<FLAG>, for example {ENVIRONMENT_PREFIX}PORT=8092; the command line "
        "wins. DYN_* router variables set the scheduling; see the documentation.",
        allow_abbrev=False,
    )
    result.add_argument("--version", action="store_true", help="print the version and exit")
    for setting in SETTINGS:
        if setting.flag:
            default = "" if setting.default is None else f" (default {_shown(setting.default)})"
            result.add_argument(
                setting.flag, dest=setting.name, metavar="VALUE", help=setting.help + default
            )
    return result


def _shown(default: Any) -> str:
    return ",".join(default) if isinstance(default, tuple) else str(default)


def load(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Config:
    """Raises ConfigError for the first setting that makes no sense."""
    values = {s.name: _value(s, getattr(arguments, s.name, None), environment) for s in SETTINGS}
    weight = values["overlap_score_weight"]
    if weight.value is not None:  # an old variable that stands for a newer one, or for two
        values["prefill_load_scale"] = weight
        if weight.value == 0.0:
            values["overlap_score_credit"] = weight
    if values["replica_sync_peers"].value and values["replica_sync_port"].value is None:
        raise ConfigError("--replica-sync-peers requires --replica-sync-port")
    return Config(values, tuple(name for name in WITHOUT_EFFECT if name in environment))


def parse(argv: Sequence[str], environment: Mapping[str, str]) -> Config:
    """Raises ConfigError."""
    return load(parser().parse_args(argv), environment)


def _value(setting: Setting, given: str | None, environment: Mapping[str, str]) -> Value:
    if given is not None:
        return Value(_parsed(setting, str(setting.flag), given), "command line")
    for variable in setting.variables:
        if variable in environment:
            text = environment[variable]
            return Value(_parsed(setting, variable, text), f"environment {variable}")
    return Value(setting.default, "default")


def _parsed(setting: Setting, source: str, text: str) -> Any:
    try:
        return setting.parse(text)
    except read.PartError as error:
        raise ConfigError(f"{source}: {error}") from None
    except ValueError as expected:
        shown = repr(text[: read.SHOWN_CHARS_MAX])[1:-1]
        raise ConfigError(f"{source}: expected {expected}, got `{shown}`") from None
