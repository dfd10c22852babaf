"""The configuration: the only reader of the command line and of the environment.

The table of all settings is in `table`; `--help`, `GET /config` and the documentation follow from
it.  A value that makes no sense stops the start: a fleet must not run on a typo.  A variable that
nobody reads may be one, so it is told.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

from select_service.command_line import CommandParser, UsageError
from select_service.core.decide.router_config import POLICY_NAMES
from select_service.settings import values as read
from select_service.settings.health_flags import HEALTH
from select_service.settings.own_peer import other_endpoints, other_urls
from select_service.settings.setting import ENVIRONMENT_PREFIX, Setting
from select_service.settings.table import GROUPS, OF_REFERENCE, SETTINGS, WITHOUT_EFFECT
from select_service.spelling import nearest

UNKNOWN_MAX = 32
"""Variables that are told of."""
COMPILE, CACHE, EXPLAIN, INSPECT, REPLAY, KEYS, DOCTOR = (
    "compile",
    "cache",
    "explain",
    "inspect",
    "replay",
    "keys",
    "doctor",
)
COMMANDS = {
    COMPILE: "the kernels, ahead of the first start",
    CACHE: "the machine code of the kernels, to be removed before an uninstall",
    KEYS: "new keys of those who may call, and of replicas",
    INSPECT: "what an engine says of itself, as a record for POST /workers",
    DOCTOR: "what is wrong with a running service and its engines",
    EXPLAIN: "why a running service chose a rank",
    REPLAY: "what other policies would have done with one's traffic",
}
"""First words of the other commands, and what those are for."""
_OURS = re.compile(r"(SELECT_SERVICE|DYN_ROUTER)_(\w+)")
_LIKE_OURS = ("SELECT_", "DYN_")
"""Other variables that begin so are told of only when they are much like one of ours."""
_MUCH_LIKE = 0.85
_OF_KUBERNETES = re.compile(r"SELECT_SERVICE_(SERVICE_(HOST|PORT\w*)|PORT_\d+_\w+)")
"""What a pod finds in its environment beside a service of the name `select-service`."""


DEFAULT = "default"
"""The origin of a value that nobody gave."""


class ConfigError(UsageError):
    """One line that says which setting is wrong and what was expected."""


class Unusable(UsageError):
    """One line about a setting that makes sense, but not on this machine."""


class Value(NamedTuple):
    """A setting's value and where it came from."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting of the process by name, with its origin."""

    values: Mapping[str, Value]
    without_effect: tuple[str, ...]
    unknown: Mapping[str, str | None]
    """Variables that look like ours and are not -> the most similar one of ours."""

    @property
    def not_heeded(self) -> list[str]:
        """Where settings were given that the policy of this process does not heed."""
        if self["policy"] == "reference":
            return []
        origins = (self.values[name].origin for name in OF_REFERENCE)
        return list(dict.fromkeys(origin for origin in origins if origin != DEFAULT))

    @property
    def not_used(self) -> dict[str, str]:
        """Settings of health that were given and do not count -> what they need."""
        if self["health_checks"] == "on":
            needs_degradation = self["slo"] is not None and self["degradation"] == "off"
            return {"--slo": "--degradation observe"} if needs_degradation else {}
        given = {s.flag for s in HEALTH if s.flag and self.values[s.name].origin != DEFAULT}
        given -= {"--health-checks"}
        if self["workers_file"] is not None or self["discovery_config"] is not None:
            given -= {"--drain-timeout-secs"}  # workers that a source drops leave as long as that
        return dict.fromkeys(sorted(given), "--health-checks on")

    def __getitem__(self, name: str) -> Any:
        return self.values[name].value

    def effective(self) -> dict[str, dict[str, Any]]:
        """What GET /config and the log show."""
        return {each.name: self.values[each.name]._asdict() | each.handles() for each in SETTINGS}


def parser() -> CommandParser:
    """The command line; values stay texts and are read like those of the environment."""
    result = CommandParser(
        "select-service",
        "KV-cache-aware worker selection and load accounting for LLM inference fleets.",
        {
            "select-service": "on 127.0.0.1:8092; workers register over HTTP",
            "select-service --workers-file workers.yaml": "workers of a file",
            "select-service --host 0.0.0.0 --api-keys-file keys.toml": "for others, with keys",
        },
        "[COMMAND] [OPTION ...]",
        commands=COMMANDS,
        epilog=f"""\
Every flag can be given in the environment as {ENVIRONMENT_PREFIX}<FLAG>, for example
{ENVIRONMENT_PREFIX}PORT=8092; the command line wins, an empty variable counts as not set.""",
    )
    result.add_argument("--version", action="store_true", help="print the version and exit")
    for title, settings in GROUPS.items():
        variables = [line for each in settings if not each.flag for line in _variable_help(each)]
        text = "Only in the environment:\n" + "\n".join(variables) if variables else None
        group = result.add_argument_group(title, text)
        for setting in settings:
            if setting.flag:
                _add_flag(group, setting, setting.flag)
                result.flags.append(setting.flag)
    return result


def _add_flag(group: argparse._ArgumentGroup, setting: Setting, flag: str) -> None:
    also = f" [{', '.join(setting.variables[1:])}]" if setting.variables[1:] else ""
    text = (setting.help + _default_of(setting) + also).replace("%", "%%")
    if setting.parse is read.flag:  # alone it means yes
        group.add_argument(
            flag, dest=setting.name, metavar=setting.kind, help=text, nargs="?", const="true"
        )
    else:
        group.add_argument(flag, dest=setting.name, metavar=setting.kind, help=text)


def _variable_help(setting: Setting) -> list[str]:
    variables = ", else ".join(setting.variables)
    return [f"  {variables}", f"      {setting.help}{_default_of(setting)}"]


def arguments_of(argv: Sequence[str]) -> argparse.Namespace:
    """Raises UsageError."""
    return parser().read(argv)


def _default_of(setting: Setting) -> str:
    """Nothing for what is off or empty."""
    text = "" if setting.default is None else _default_text(setting.default)
    return f" (default {text})" if text else ""


def _default_text(default: Any) -> str:
    """As one would write it in the environment."""
    if isinstance(default, tuple):
        return ",".join(default)
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def load(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Config:
    """Raises ConfigError for the first setting that makes no sense."""
    values = {s.name: _value(s, getattr(arguments, s.name, None), environment) for s in SETTINGS}
    weight = values["overlap_score_weight"]
    if weight.value is not None:  # an old variable that stands for a newer one, or for two
        values["prefill_load_scale"] = weight
        if weight.value == 0.0:
            values["overlap_score_credit"] = weight
    _leave_ourselves_out(values)
    without_effect = tuple(name for name in WITHOUT_EFFECT if environment.get(name))
    config = Config(values, without_effect, _unknown(environment))
    _check_together(config)
    return config


def _leave_ourselves_out(values: dict[str, Value]) -> None:
    """All replicas can be given the same lists of peers."""
    own_url, peers, dumps = (
        values[name] for name in ("advertise_url", "replica_sync_peers", "indexer_peers")
    )
    if peers.value:
        port = values["replica_sync_port"].value
        others = other_endpoints(peers.value, own_url.value, port)
        values["replica_sync_peers"] = peers._replace(value=others)
    if dumps.value:
        values["indexer_peers"] = dumps._replace(value=other_urls(dumps.value, own_url.value))


def _check_together(config: Config) -> None:
    """Raises ConfigError for settings that make sense alone, but not with each other."""
    if config["replica_sync_peers"] and config["replica_sync_port"] is None:
        raise ConfigError("--replica-sync-peers requires --replica-sync-port")
    _check_replica_keys(config)
    if config["shadow_policy"] and not config["decisions"]:
        raise ConfigError("--shadow-policy needs decisions: it cannot be used with --decisions 0")
    if config["decision_log"] and not config["decisions"]:
        raise ConfigError("--decision-log requires --decisions of 1 or more")
    if config["audit_required"] and config["audit_log"] is None:
        raise ConfigError("--audit-required requires --audit-log")
    if config["policy_options"] and config["policy"] != POLICY_NAMES[0]:
        raise ConfigError(
            f"--policy-options are those of {POLICY_NAMES[0]}: --policy {config['policy']} has none"
        )
    if config["input_loops"] and sys.platform != "linux":
        raise ConfigError("--input-loops: only Linux has what they need")
    if config["input_loops"] and config["no_fast_path"]:
        raise ConfigError("--input-loops cannot be used with --no-fast-path")
    if config["input_loops"] and config["api_keys_file"]:
        raise ConfigError(
            "--input-loops cannot be used with --api-keys-file: the loops answer without Python, "
            "which is what asks for keys"
        )
    _check_tls(config)
    _check_otel(config)
    _check_health(config)


def _check_tls(config: Config) -> None:
    """Raises ConfigError."""
    for certificate, key in (("tls_cert", "tls_key"), ("tls_client_cert", "tls_client_key")):
        for given, other in ((certificate, key), (key, certificate)):
            if config[given] is not None and config[other] is None:
                raise ConfigError(f"{_flag(given)} requires {_flag(other)}")
    if config["tls_client_ca"] is not None and config["tls_cert"] is None:
        raise ConfigError("--tls-client-ca requires --tls-cert")
    if config["input_loops"] and config["tls_cert"] is not None:
        raise ConfigError(
            "--input-loops cannot be used with --tls-cert: the loops answer what they read from "
            "sockets themselves, and TLS is Python's"
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_otel(config: Config) -> None:
    """Raises ConfigError."""
    if not config["otel"]:
        return
    if config["input_loops"]:
        raise ConfigError(
            "--input-loops cannot be used with --otel: the loops answer without Python, which is "
            "what makes spans"
        )
    try:
        is_there = find_spec("opentelemetry.sdk.trace") is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise ConfigError("--otel needs: pip install 'select-service[otel]'")


def _check_replica_keys(config: Config) -> None:
    """Raises ConfigError."""
    given = [name for name in ("replica_key_file", "replica_keys_file") if config[name] is not None]
    if not given:
        return
    flag = _flag(given[0])
    if len(given) < 2:
        raise ConfigError("--replica-key-file and --replica-keys-file need each other")
    if config["replica_sync_port"] is None:
        raise ConfigError(f"{flag} requires --replica-sync-port")
    if config["replica_sync_insecure"]:
        raise ConfigError(f"{flag} cannot be used with --replica-sync-insecure")


OF_HEALTH = ("canary_config", "health_state", "slo")
"""Settings that mean something only while ranks are checked, as --degradation does."""


def _check_health(config: Config) -> None:
    """Raises ConfigError."""
    if config["health_checks"] == "on":
        return
    given = [name for name in OF_HEALTH if config[name] is not None]
    if config["degradation"] != "off":
        given.append("degradation")
    if given:
        raise ConfigError(f"{_flag(given[0])} requires --health-checks on")


def _unknown(environment: Mapping[str, str]) -> dict[str, str | None]:
    settings = {variable for setting in SETTINGS for variable in setting.variables}
    found: dict[str, str | None] = {}
    for name in sorted(environment.keys() - settings - set(WITHOUT_EFFECT)):
        if not environment[name] or _OF_KUBERNETES.fullmatch(name):
            continue
        if _OURS.fullmatch(name):
            found[name] = nearest(name, sorted(settings), _end_of)
        elif name.startswith(_LIKE_OURS) and (meant := nearest(name, settings, str, _MUCH_LIKE)):
            found[name] = meant
    return dict(list(found.items())[:UNKNOWN_MAX])


def _end_of(variable: str) -> str:
    """The beginning is the same for many."""
    return _OURS.sub(r"\2", variable)


def parse(argv: Sequence[str], environment: Mapping[str, str]) -> Config:
    """Raises ConfigError."""
    return load(arguments_of(argv), environment)


def _value(setting: Setting, given: str | None, environment: Mapping[str, str]) -> Value:
    if given is not None:
        return Value(_parsed(setting, str(setting.flag), given), "command line")
    for variable in setting.variables:
        if text := environment.get(variable):
            return Value(_parsed(setting, variable, text), f"environment {variable}")
    return Value(setting.default, DEFAULT)


def _parsed(setting: Setting, source: str, text: str) -> Any:
    try:
        return setting.parse(text)
    except read.PartError as error:
        raise ConfigError(f"{source}: {error}") from None
    except ValueError as expected:
        seen = repr(text[: read.SHOWN_CHARS_MAX])[1:-1]
        raise ConfigError(f"{source}: expected {expected}, got `{seen}`") from None
