"""Health settings, including the canary file and the SLO file."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import astuple

from select_service.config.per_model_file import read_by_model
from select_service.config.settings_loader import DEFAULT, Config

if TYPE_CHECKING:  # imported only if health checks are on
    from select_service.config.canary_file import CanaryFile
    from select_service.core.health.capacity_estimate import ServiceObjective, SpareRules
    from select_service.core.health.health_rules import HealthRules
    from select_service.core.health.migration.move_cost import MigrationLimits

_RULES = {
    "health_interval_s": "interval_s",
    "health_timeout_s": "timeout_s",
    "health_retries": "retries",
    "health_confirm_s": "confirm_s",
    "health_failures": "failures",
    "breaker_recovery_s": "recovery_s",
    "breaker_backoff": "backoff",
    "breaker_connect_s": "connect_s",
    "health_max_eject": "max_eject",
    "health_slow_start_s": "slow_start_s",
    "drain_timeout_s": "drain_s",
    "dead_after_s": "dead_after_s",
}
"""Field of the health rules by setting."""

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Degradation: TypeAlias = Literal["off", "observe", "auto"]
_Positive = Annotated[float, Meta(gt=0, le=1e9)]


class HealthSettings(NamedTuple):
    """Settings of health checks.

    canaries: prompts for engines
    references: file of reference answers
    reporters: networks with failure reports that count without a reservation
    promises: SLO by model name
    ratios: smallest capacity ratios of the degradation levels 0 to 3
    """

    rules: "HealthRules"
    canaries: "CanaryFile"
    references: Path | None
    reporters: tuple[Network, ...]
    degradation: Degradation
    promises: Mapping[str, "ServiceObjective"]
    ratios: tuple[float, ...]
    migration: "MigrationLimits"
    spares: "SpareRules"


class _Promise(msgspec.Struct, forbid_unknown_fields=True):
    ttft_ms: _Positive
    itl_ms: _Positive
    rps: _Positive


def health_settings(config: Config) -> HealthSettings | None:
    """Return the health settings; None means health checks are off.  Raises ConfigError."""
    if config["health_checks"] == "off":
        return None
    from select_service.config.canary_file import CanaryFile, read_canary_config
    from select_service.core.health.capacity_estimate import SpareRules

    canaries = config["canary_config"]
    return HealthSettings(
        _make_rules(config),
        CanaryFile() if canaries is None else read_canary_config(canaries),
        None if config["health_state"] is None else Path(config["health_state"]),
        tuple(map(ipaddress.ip_network, config["health_reporters"])),
        config["degradation"],
        {} if config["slo"] is None else _read_promises(config["slo"]),
        _ratios_of(config),
        _make_limits(config),
        SpareRules(config["spares_fraction"], config["spares_from"]),
    )


def _ratios_of(config: Config) -> tuple[float, ...]:
    """Return the smallest capacity ratios of the degradation levels 0 to 3."""
    return tuple(map(float, config["degradation_ratios"]))


def _make_limits(config: Config) -> "MigrationLimits":
    """Return the limits of migrations; links that are not given keep their defaults."""
    from select_service.core.health.migration.move_cost import LINKS, MigrationLimits, WorkerLink

    given = {}
    for part in config["migration_links"]:
        name, _, numbers = part.partition("=")
        bandwidth, _, setup_ms = numbers.partition(":")
        given[name] = WorkerLink(float(bandwidth), float(setup_ms))
    return MigrationLimits(config["migration_max_ms"], {**LINKS, **given})


def _make_rules(config: Config) -> "HealthRules":
    """Return the rules; the profile's values apply where no value was given."""
    from select_service.core.health.health_rules import DESIGN_DOCUMENT_RULES, HealthRules

    is_document = config["health_profile"] == "document"
    given = {
        field: config[name]
        for name, field in _RULES.items()
        if not is_document or config.values[name].origin != DEFAULT
    }
    rules = (DESIGN_DOCUMENT_RULES if is_document else HealthRules())._replace(**given)
    # Below the last ratio every request is refused, so no rank may be spared beyond it.
    rules = rules._replace(capacity_floor=_ratios_of(config)[-1])
    # A configured delay above the usual maximum raises the maximum.
    return rules._replace(recovery_s_max=max(rules.recovery_s_max, rules.recovery_s))


def _read_promises(path: str) -> dict[str, "ServiceObjective"]:
    """Return the SLOs by model name.  Raises ConfigError."""
    from select_service.core.health.capacity_estimate import ServiceObjective

    found = read_by_model("SLO file", path, _Promise)
    return {name: ServiceObjective(*astuple(each)) for name, each in found.items()}
