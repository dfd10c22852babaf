"""The configuration: the only reader of the command line and of the environment.

One table, `SETTINGS`, says for every setting its flag, its environment variables, its default, how
a text becomes a value and what it means.  `--help`, `GET /config` and the documentation follow from
it.  A value that makes no sense stops the start: a fleet must not run on a typo.
"""

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

from indexer.endpoints import endpoint_error
from select_service.http_url import service_url_error

ENVIRONMENT_PREFIX = "SELECT_SERVICE_"
INDEX_BLOCKS_MAX = 2**28
TRUE_WORDS = ("1", "true", "on", "yes")
FALSE_WORDS = ("0", "false", "off", "no")
DUMP_PEERS_MAX = 16
DIGITS_MAX = 20
NUMBER = re.compile(r"[0-9.eE+-]+")
URL_CHARS_MAX = 512
SHOWN_CHARS_MAX = 200
"""How much of a wrong value an error line repeats."""


class ConfigError(Exception):
    """One line that says which setting is wrong and what was expected."""


class Setting(NamedTuple):
    """`flag` is None for what only the environment can set; the first variable set counts."""

    name: str
    default: Any
    parse: Callable[[str], Any]
    help: str
    flag: str | None = None
    variables: tuple[str, ...] = ()


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        plain = text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
        if not plain or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text) if NUMBER.fullmatch(text) else math.nan
        except ValueError:
            value = math.nan
        if not low <= value <= high or math.isinf(value):
            upper = "" if math.isinf(high) else f" to {high:g}"
            raise ValueError(f"a number from {low:g}{upper or ' upwards'}")
        return value

    return parse


def _choice(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError("one of " + ", ".join(words))
        return text.lower()

    return parse


def _flag(text: str) -> bool:
    if text.lower() in TRUE_WORDS:
        return True
    if text.lower() in FALSE_WORDS:
        return False
    raise ValueError("one of " + ", ".join(TRUE_WORDS + FALSE_WORDS))


def _text(text: str) -> str:
    if not text:
        raise ValueError("a text that is not empty")
    return text


def _peers(text: str) -> tuple[str, ...]:
    """Distinct endpoints, sorted."""
    endpoints = {part.strip() for part in text.split(",") if part.strip()}
    for endpoint in sorted(endpoints):
        error = endpoint_error(endpoint)
        if error is not None:
            raise ValueError(f"ZMQ endpoints; invalid replica peer endpoint `{endpoint}`: {error}")
    return tuple(sorted(endpoints))


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or len(text) > URL_CHARS_MAX:
        raise ValueError("an http or https URL")
    return text


def _dump_peers(text: str) -> tuple[str, ...]:
    """Distinct, in the given order."""
    urls = tuple(dict.fromkeys(url.strip() for url in text.split(",") if url.strip()))
    if len(urls) > DUMP_PEERS_MAX:
        raise ValueError(f"at most {DUMP_PEERS_MAX} URLs")
    for url in urls:
        error = service_url_error(url)
        if error is not None:
            shown = repr(url[:SHOWN_CHARS_MAX])[1:-1]
            raise ValueError(
                f"http URLs of services, separated by commas; invalid peer `{shown}`: {error}"
            )
    return urls


def _absent(what: str) -> Callable[[str], NoReturn]:
    def parse(text: str) -> NoReturn:
        raise ValueError(f"nothing: {what} is not available in this version")

    return parse


def _cli(
    flag: str, default: Any, parse: Callable[[str], Any], help_text: str, name: str = ""
) -> Setting:
    word = flag.removeprefix("--").replace("-", "_")
    variable = ENVIRONMENT_PREFIX + word.upper()
    return Setting(name or word, default, parse, help_text, flag, (variable,))


_QUEUEING = "queueing"

SETTINGS: tuple[Setting, ...] = (
    _cli("--host", "0.0.0.0", _text, "address to bind"),
    _cli("--port", 8092, _whole(0, 65535), "HTTP port; 0 takes a free one"),
    _cli("--threads", 4, _whole(1, 64), "threads that receive KV events"),
    _cli(
        "--log-level",
        "info",
        _choice("debug", "info", "warning", "error"),
        "least level logged: debug, info, warning or error",
    ),
    _cli("--log-format", "text", _choice("text", "json"), "text, or json: one object per line"),
    _cli(
        "--reservation-ttl-secs",
        3600.0,
        _number(0, 1e9),
        "a reservation that nobody renews for so long expires; 0 = never",
        "reservation_ttl_s",
    ),
    _cli(
        "--index-max-blocks",
        4_194_304,
        _whole(1024, INDEX_BLOCKS_MAX),
        "distinct blocks that the index of one partition holds at most",
        "index_blocks_max",
    ),
    _cli("--policy", "reference", _choice("reference"), "cost function"),
    _cli(
        "--indexer-peers",
        None,
        _dump_peers,
        "comma-separated HTTP URLs of services whose index to begin with, the best one is taken",
    ),
    _cli(
        "--snapshot-path",
        None,
        _text,
        "file that keeps the index over a restart; none = not kept",
    ),
    _cli(
        "--snapshot-interval-secs",
        60.0,
        _number(1, 86_400),
        "how often the snapshot file is written; it is also written at the end",
        "snapshot_interval_s",
    ),
    _cli(
        "--replica-sync-port",
        None,
        _whole(1, 65535),
        "port of the ZMQ socket that tells other replicas of active load; none = not shared",
    ),
    _cli(
        "--replica-sync-peers",
        None,
        _peers,
        "comma-separated ZMQ endpoints of the other replicas, for example tcp://selector-b:9092",
    ),
    _cli(
        "--replica-sync-repair",
        True,
        _flag,
        "fetch the reservations of a peer when its load and ours keep differing",
    ),
    _cli(
        "--advertise-url",
        None,
        _url,
        "where other replicas find our HTTP interface; otherwise --port on the host of the events",
    ),
    Setting(
        "use_kv_events",
        True,
        _flag,
        "listen to KV events; without them no overlap is known",
        variables=("DYN_USE_KV_EVENTS",),
    ),
    Setting(
        "overlap_score_credit",
        1.0,
        _number(0, 1),
        "credit for blocks on the GPU",
        variables=("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",),
    ),
    Setting(
        "overlap_score_credit_decay",
        0.0,
        _number(0, math.inf),
        "how fast that credit fades with a rank's prefill load",
        variables=("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",),
    ),
    Setting(
        "prefill_load_scale",
        1.0,
        _number(0, math.inf),
        "weight of the prefill part of the cost",
        variables=("DYN_ROUTER_PREFILL_LOAD_SCALE",),
    ),
    Setting(
        "overlap_score_weight",
        None,
        _number(0, math.inf),
        "deprecated: sets the prefill load scale; 0 also sets the credit to 0",
        variables=("DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", "DYN_OVERLAP_SCORE_WEIGHT"),
    ),
    Setting(
        "host_cache_hit_weight",
        0.75,
        _number(0, 1),
        "credit for blocks in CPU memory",
        variables=("DYN_ROUTER_HOST_CACHE_HIT_WEIGHT",),
    ),
    Setting(
        "disk_cache_hit_weight",
        0.25,
        _number(0, 1),
        "credit for blocks on disk or in external storage",
        variables=("DYN_ROUTER_DISK_CACHE_HIT_WEIGHT",),
    ),
    Setting(
        "temperature",
        0.0,
        _number(0, math.inf),
        "0 takes the cheapest rank; above, ranks are drawn by cost",
        variables=("DYN_ROUTER_TEMPERATURE",),
    ),
    Setting(
        "track_prefill_tokens",
        True,
        _flag,
        "count prefill tokens as load",
        variables=("DYN_ROUTER_TRACK_PREFILL_TOKENS",),
    ),
    Setting(
        "track_active_blocks",
        True,
        _flag,
        "count live blocks as load",
        variables=("DYN_ROUTER_TRACK_ACTIVE_BLOCKS",),
    ),
    Setting(
        "track_output_blocks",
        True,
        _flag,
        "count output blocks as load",
        variables=("DYN_ROUTER_TRACK_OUTPUT_BLOCKS",),
    ),
    Setting(
        "assume_kv_reuse",
        True,
        _flag,
        "requests of one rank share equal blocks",
        variables=("DYN_ROUTER_ASSUME_KV_REUSE",),
    ),
    Setting("queue_threshold", None, _absent(_QUEUEING), "", None, ("DYN_ROUTER_QUEUE_THRESHOLD",)),
    Setting("policy_config", None, _absent(_QUEUEING), "", None, ("DYN_ROUTER_POLICY_CONFIG",)),
    Setting("queue_policy", None, _absent(_QUEUEING), "", None, ("DYN_ROUTER_QUEUE_POLICY",)),
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
        """What GET /config and the log show: settings that can be set in this version."""
        return {
            setting.name: self.values[setting.name]._asdict()
            for setting in SETTINGS
            if setting.help and not setting.help.startswith("not available")
        }


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
            default = "" if setting.default is None else f" (default {setting.default})"
            result.add_argument(
                setting.flag, dest=setting.name, metavar="VALUE", help=setting.help + default
            )
    return result


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
    except ValueError as expected:
        shown = repr(text[:SHOWN_CHARS_MAX])[1:-1]
        raise ConfigError(f"{source}: expected {expected}, got `{shown}`") from None
