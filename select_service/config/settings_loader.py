"""Configuration object, the only reader of the command line and of the environment.

The table of all settings is in `table`; `--help`, `GET /config` and the documentation derive from
it.  An invalid value stops the start: a fleet must not run on a typo.  An unknown variable may be a
typo and is reported.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

from select_service.base.command_line import CommandParser, UsageError
from select_service.base.suggestions import nearest_name
from select_service.config import value_parsers as read
from select_service.config.dynamo_settings import (
    EXPIRY_S,
    OPPOSITE_FLAGS,
    REFERENCE_POLICY_SETTINGS,
    VARIABLES_WITHOUT_EFFECT,
)
from select_service.config.health_flags import HEALTH
from select_service.config.own_peer import other_endpoints, other_urls
from select_service.config.setting import ENVIRONMENT_PREFIX, ServiceSetting
from select_service.config.settings_table import GROUPS, SETTINGS
from select_service.core.placement.router_config import POLICY_NAMES

UNKNOWN_MAX = 32
"""Maximum number of unknown variables reported."""
COMMANDS = {
    "compile": "compile the kernels ahead of the first start",
    "cache": "remove the machine code of the kernels, before an uninstall",
    "keys": "create API keys and replica keys",
    "inspect": "print an engine's description as a record for POST /workers",
    "doctor": "find faults of a running service and its engines",
    "explain": "explain a decision of a running service",
    "replay": "replay recorded traffic under other policies",
}
"""Names of the other commands and their help texts."""
_OWN_VARIABLE = re.compile(r"(SELECT_SERVICE|DYN_ROUTER)_(\w+)")
_OWN_PREFIXES = ("SELECT_", "DYN_")
"""Prefixes of variables that are reported only if similar to a known variable."""
_VARIABLE_SIMILARITY_MIN = 0.85
_OF_KUBERNETES = re.compile(r"SELECT_SERVICE_(SERVICE_(HOST|PORT\w*)|PORT_\d+_\w+)")
"""Variables that Kubernetes sets in pods next to a service named `select-service`."""


DEFAULT = "default"
"""Origin of a value that was not given."""


class ConfigError(UsageError):
    """One-line error about an invalid setting and the expected value."""


class UnusableSetting(UsageError):
    """One-line error about a valid setting that cannot be used on this machine."""


class ConfiguredValue(NamedTuple):
    """Value of a setting and its origin."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of the process by name, with their origins."""

    values: Mapping[str, ConfiguredValue]
    without_effect: tuple[str, ...]
    unknown: Mapping[str, str | None]
    """Unknown variables and the most similar known one."""

    @property
    def created_file_mode(self) -> int:
        """Permission bits of created files."""
        return int(self["file_mode"], 8)

    @property
    def ignored_origins(self) -> list[str]:
        """Origins of given settings that the current policy ignores."""
        if self["policy"] == "reference":
            return []
        origins = (self.values[name].origin for name in REFERENCE_POLICY_SETTINGS)
        return list(dict.fromkeys(origin for origin in origins if origin != DEFAULT))

    @property
    def unused_settings(self) -> dict[str, str]:
        """Given settings without effect, and the setting each requires."""
        if self["health_checks"] == "on":
            needs_degradation = self["slo"] is not None and self["degradation"] == "off"
            return {"--slo": "--degradation observe"} if needs_degradation else {}
        given = {s.flag for s in HEALTH if s.flag and self.values[s.name].origin != DEFAULT}
        given -= {"--health-checks"}
        if self["workers_file"] is not None or self["discovery_config"] is not None:
            given -= {"--drain-timeout-secs"}  # workers dropped by a source drain this long
        return dict.fromkeys(sorted(given), "--health-checks on")

    def __getitem__(self, name: str) -> Any:
        return self.values[name].value

    def effective_settings(self) -> dict[str, dict[str, Any]]:
        """Return the settings as shown by GET /config and the log."""
        return {
            each.name: self.values[each.name]._asdict() | each.flag_and_variable()
            for each in SETTINGS
        }


def make_parser() -> CommandParser:
    """Return the argument parser.

    Values stay texts and are parsed like those of the environment.
    """
    result = CommandParser(
        "select-service",
        "KV-cache-aware worker selection and load accounting for LLM inference fleets.",
        {
            "select-service": "listen on 127.0.0.1:8092; workers register over HTTP",
            "select-service --workers-file workers.yaml": "with workers from a file",
            "select-service --host 0.0.0.0 --api-keys-file keys.toml": "for other machines",
        },
        "[COMMAND] [OPTION ...]",
        commands=COMMANDS,
        epilog=f"""\
Every flag can be given in the environment as {ENVIRONMENT_PREFIX}<FLAG>, for example
{ENVIRONMENT_PREFIX}PORT=8092; the command line wins, an empty variable counts as unset.""",
    )
    result.add_argument("--version", action="store_true", help="print the version and exit")
    for title, settings in GROUPS.items():
        variables = [
            f"  {', else '.join(each.variables)}\n      {each.help}{_default_suffix(each)}"
            for each in settings
            if not each.flag
        ]
        text = "Only in the environment:\n" + "\n".join(variables) if variables else None
        group = result.add_argument_group(title, text)
        for setting in settings:
            if setting.flag:
                _add_flags(group, setting, setting.flag)
                result.flags += [setting.flag, OPPOSITE_FLAGS.get(setting.flag, setting.flag)]
    return result


def _add_flags(group: argparse._ArgumentGroup, setting: ServiceSetting, flag: str) -> None:
    """Add the flag of a setting, and the flag that means its opposite."""
    opposite = OPPOSITE_FLAGS.get(flag)
    if opposite is None:
        _add_flag(group, setting, flag)
        return
    both = group.add_mutually_exclusive_group()
    _add_flag(both, setting, flag)
    both.add_argument(
        opposite,
        dest=setting.name,
        action="store_const",
        const="false",
        help=f"the same as {flag} false",
    )


def _add_flag(group: argparse._ActionsContainer, setting: ServiceSetting, flag: str) -> None:
    also = f" [{', '.join(setting.variables[1:])}]" if setting.variables[1:] else ""
    text = (setting.help + _default_suffix(setting) + also).replace("%", "%%")
    # The flag alone means true.
    alone: dict[str, Any] = (
        {"nargs": "?", "const": "true"} if setting.parse is read.true_or_false else {}
    )
    group.add_argument(flag, dest=setting.name, metavar=setting.kind, help=text, **alone)


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line.  Raises UsageError."""
    return make_parser().parse_arguments(argv)


def _default_suffix(setting: ServiceSetting) -> str:
    """Return the default for the help text; empty for a disabled or empty default."""
    text = "" if setting.default is None else _default_text(setting.default)
    return f" (default {text})" if text else ""


def _default_text(default: Any) -> str:
    """Return a default as written in the environment."""
    if isinstance(default, tuple):
        return ",".join(default)
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def load_config(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Config:
    """Return the configuration.  Raises ConfigError for the first invalid setting."""
    values = {
        s.name: _setting_value(s, getattr(arguments, s.name, None), environment) for s in SETTINGS
    }
    weight = values["overlap_score_weight"]
    if weight.value is not None:  # deprecated alias of one or two settings
        values["prefill_load_scale"] = weight
        if weight.value == 0.0:
            values["overlap_score_credit"] = weight
    _apply_expiry(values)
    _remove_own_peer(values)
    config = Config(values, _ignored_variables(environment), _unknown_variables(environment))
    # After all single values: a message about a combination presumes valid parts.
    _check_together(config)
    return config


def _apply_expiry(values: dict[str, ConfiguredValue]) -> None:
    """Let Dynamo's expiry of reservations set the lease, unless a lease is given."""
    expiry = values["active_request_expiry_s"]
    if expiry.value is not None and values["reservation_ttl_s"].origin == DEFAULT:
        values["reservation_ttl_s"] = expiry._replace(value=expiry.value or EXPIRY_S)


def _ignored_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the given variables of Dynamo without effect.  Raises ConfigError."""
    given = [name for name in VARIABLES_WITHOUT_EFFECT if environment.get(name)]
    for name in given:
        _parse_value(VARIABLES_WITHOUT_EFFECT[name], name, environment[name])
    return tuple(given)


def _remove_own_peer(values: dict[str, ConfiguredValue]) -> None:
    """Remove this process from the peer lists, so that all replicas can share the same lists."""
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
    """Raise ConfigError for settings that are valid alone but not together."""
    if config["replica_sync_peers"] and config["replica_sync_port"] is None:
        raise ConfigError("--replica-sync-peers requires --replica-sync-port")
    _check_replica_keys(config)
    if config["shadow_policy"] and not config["decisions"]:
        raise ConfigError("--shadow-policy cannot be used with --decisions 0")
    if config["decision_log"] and not config["decisions"]:
        raise ConfigError("--decision-log requires --decisions of 1 or more")
    if config["audit_required"] and config["audit_log"] is None:
        raise ConfigError("--audit-required requires --audit-log")
    if config["policy_options"] and config["policy"] != POLICY_NAMES[0]:
        raise ConfigError(
            f"--policy-options requires --policy {POLICY_NAMES[0]}, got --policy {config['policy']}"
        )
    _check_index_rules(config)
    _check_tls(config)
    _check_otel(config)
    _check_health(config)


def _check_index_rules(config: Config) -> None:
    """Raise ConfigError for rules of assumed blocks that contradict the use of KV events."""
    uses_events = config["use_kv_events"]
    if config["predicted_ttl_s"] is not None and not uses_events:
        raise ConfigError("DYN_ROUTER_PREDICTED_TTL_SECS requires DYN_ROUTER_USE_KV_EVENTS=true")
    if config["assumed_policy"] == "lru" and uses_events:
        raise ConfigError(
            "DYN_ROUTER_APPROXIMATE_CACHE_POLICY=lru requires DYN_ROUTER_USE_KV_EVENTS=false"
        )


def _check_tls(config: Config) -> None:
    """Raise ConfigError for incomplete TLS settings."""
    for certificate, key in (("tls_cert", "tls_key"), ("tls_client_cert", "tls_client_key")):
        for given, other in ((certificate, key), (key, certificate)):
            if config[given] is not None and config[other] is None:
                raise ConfigError(f"{_flag_name(given)} requires {_flag_name(other)}")
    if config["tls_client_ca"] is not None and config["tls_cert"] is None:
        raise ConfigError("--tls-client-ca requires --tls-cert")


def _flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_otel(config: Config) -> None:
    """Raise ConfigError if tracing is enabled and cannot work."""
    if not config["otel"]:
        return
    try:
        is_there = find_spec("opentelemetry.sdk.trace") is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise ConfigError("--otel requires: pip install 'select-service[otel]'")


def _check_replica_keys(config: Config) -> None:
    """Raise ConfigError for incomplete replica key settings."""
    given = [name for name in ("replica_key_file", "replica_keys_file") if config[name] is not None]
    if not given:
        return
    flag = _flag_name(given[0])
    if len(given) < 2:
        raise ConfigError("--replica-key-file and --replica-keys-file require each other")
    if config["replica_sync_port"] is None:
        raise ConfigError(f"{flag} requires --replica-sync-port")
    if config["replica_sync_insecure"]:
        raise ConfigError(f"{flag} cannot be used with --replica-sync-insecure")


HEALTH_DEPENDENT_SETTINGS = ("canary_config", "health_state", "slo")
"""Settings that require health checks, as --degradation does."""


def _check_health(config: Config) -> None:
    """Raise ConfigError for settings that require health checks."""
    if config["health_checks"] == "on":
        return
    given = [name for name in HEALTH_DEPENDENT_SETTINGS if config[name] is not None]
    if config["degradation"] != "off":
        given.append("degradation")
    if given:
        raise ConfigError(f"{_flag_name(given[0])} requires --health-checks on")


def _unknown_variables(environment: Mapping[str, str]) -> dict[str, str | None]:
    settings = {variable for setting in SETTINGS for variable in setting.variables}
    found: dict[str, str | None] = {}
    # Sorted: the log lists the same variables at every start.
    for name in sorted(environment.keys() - settings - VARIABLES_WITHOUT_EFFECT.keys()):
        if not environment[name] or _OF_KUBERNETES.fullmatch(name):
            continue
        if _OWN_VARIABLE.fullmatch(name):
            # Compared without the common prefix.
            found[name] = nearest_name(
                name, sorted(settings), lambda each: _OWN_VARIABLE.sub(r"\2", each)
            )
        elif name.startswith(_OWN_PREFIXES) and (
            meant := nearest_name(name, settings, str, _VARIABLE_SIMILARITY_MIN)
        ):
            found[name] = meant
    return dict(list(found.items())[:UNKNOWN_MAX])


def parse_config(argv: Sequence[str], environment: Mapping[str, str]) -> Config:
    """Return the configuration.  Raises ConfigError."""
    return load_config(parse_arguments(argv), environment)


def _setting_value(
    setting: ServiceSetting, given: str | None, environment: Mapping[str, str]
) -> ConfiguredValue:
    if given is not None:
        value = _parse_value(setting.parse, str(setting.flag), given)
        return ConfiguredValue(value, "command line")
    # The own variable comes first, then Dynamo's name for the same setting.
    for variable in setting.variables:
        if text := environment.get(variable):
            value = _parse_value(setting.parse, variable, text)
            return ConfiguredValue(value, f"environment {variable}")
    return ConfiguredValue(setting.default, DEFAULT)


def _parse_value(parse: Callable[[str], Any], source: str, text: str) -> Any:
    try:
        return parse(text)
    except read.PartError as error:
        raise ConfigError(f"{source}: {error}") from None
    except ValueError as expected:
        seen = repr(text[: read.SHOWN_CHARS_MAX])[1:-1]
        raise ConfigError(f"{source}: expected {expected}, got `{seen}`") from None
