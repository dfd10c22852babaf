"""Settings and the file of promises -> what health goes by, where it is on."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from select_service.settings.config import DEFAULT, Config
from select_service.settings.yaml_file import by_model

if TYPE_CHECKING:  # where health is off, nothing of it is imported
    from select_service.core.health.capacity import Slo
    from select_service.core.health.rules import HealthRules
    from select_service.settings.canary_config import CanaryConfig

_RULES = {
    "health_interval_s": "interval_s",
    "health_timeout_s": "timeout_s",
    "health_retries": "retries",
    "health_confirm_s": "confirm_s",
    "health_failures": "failures",
    "breaker_recovery_s": "recovery_s",
    "breaker_backoff": "backoff",
    "health_max_eject": "max_eject",
    "health_slow_start_s": "slow_start_s",
    "drain_timeout_s": "drain_s",
    "dead_after_s": "dead_after_s",
}
"""Setting -> field of the rules."""

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Degradation: TypeAlias = Literal["off", "observe", "auto"]
_Positive = Annotated[float, Meta(gt=0, le=1e9)]


class HealthSettings(NamedTuple):
    """canaries: what engines are asked;  references: file that keeps what is right
    reporters: whose reports count without a reservation;  promises: by name of the model
    """

    rules: "HealthRules"
    canaries: "CanaryConfig"
    references: Path | None
    reporters: tuple[Network, ...]
    degradation: Degradation
    promises: Mapping[str, "Slo"]


class _Promise(msgspec.Struct, forbid_unknown_fields=True):
    ttft_ms: _Positive
    itl_ms: _Positive
    rps: _Positive


def health_settings(config: Config) -> HealthSettings | None:
    """None: health is off.  Raises ConfigError."""
    if config["health_checks"] == "off":
        return None
    from select_service.settings.canary_config import CanaryConfig, read_canary_config

    canaries = config["canary_config"]
    return HealthSettings(
        _rules(config),
        CanaryConfig() if canaries is None else read_canary_config(canaries),
        None if config["health_state"] is None else Path(config["health_state"]),
        tuple(map(ipaddress.ip_network, config["health_reporters"])),
        config["degradation"],
        {} if config["slo"] is None else _promises(config["slo"]),
    )


def _rules(config: Config) -> "HealthRules":
    """The document's values count where nobody has given one."""
    from select_service.core.health.rules import DOCUMENT, HealthRules

    is_document = config["health_profile"] == "document"
    given = {
        field: config[name]
        for name, field in _RULES.items()
        if not is_document or config.values[name].origin != DEFAULT
    }
    rules = (DOCUMENT if is_document else HealthRules())._replace(**given)
    return rules._replace(recovery_s_max=max(rules.recovery_s_max, rules.recovery_s))


def _promises(path: str) -> dict[str, "Slo"]:
    """By name of the model.  Raises ConfigError."""
    from select_service.core.health.capacity import Slo

    found = by_model("SLO file", path, _Promise)
    return {name: Slo(each.ttft_ms, each.itl_ms, each.rps) for name, each in found.items()}
