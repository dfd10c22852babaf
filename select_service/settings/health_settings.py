"""Settings and the file of promises -> what health goes by, where it is on."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from select_service.settings.config import DEFAULT, Config, ConfigError

if TYPE_CHECKING:  # where health is off, nothing of it is imported
    from select_service.core.health.capacity import Slo
    from select_service.core.health.rules import HealthRules

SLO_BYTES_MAX = 1 << 20
SLO_MODELS_MAX = 1024
_YAML_FAULTS = (ValueError, LookupError, AttributeError, RecursionError)
"""What the YAML reader lets out for dates, numbers and tagged scalars that it cannot make."""
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
    """reporters: whose reports count without a reservation;  promises: by name of the model"""

    rules: "HealthRules"
    reporters: tuple[Network, ...]
    degradation: Degradation
    promises: Mapping[str, "Slo"]


class _Promise(msgspec.Struct, forbid_unknown_fields=True):
    ttft_ms: _Positive
    itl_ms: _Positive
    rps: _Positive


_Promises: TypeAlias = Annotated[dict[str, _Promise], Meta(max_length=SLO_MODELS_MAX)]


class _SloFile(msgspec.Struct, forbid_unknown_fields=True):
    models: _Promises


def health_settings(config: Config) -> HealthSettings | None:
    """None: health is off.  Raises ConfigError."""
    if config["health_checks"] == "off":
        return None
    return HealthSettings(
        _rules(config),
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
    """By name of the model, as the file has them at its top or under `models`.

    Raises ConfigError.
    """
    from select_service.core.health.capacity import Slo

    document = _document(path)
    has_models = isinstance(document, dict) and list(document) == ["models"]
    try:
        if has_models:
            found = msgspec.convert(document, _SloFile).models
        else:
            found = msgspec.convert(document, _Promises)
    except msgspec.ValidationError as error:
        raise ConfigError(f"SLO file {path}: {' '.join(str(error).split())}") from None
    return {name: Slo(each.ttft_ms, each.itl_ms, each.rps) for name, each in found.items()}


def _document(path: str) -> object:
    """Raises ConfigError."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(SLO_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"SLO file {path}: {error.strerror}") from None
    if len(text) > SLO_BYTES_MAX:
        raise ConfigError(f"SLO file {path}: it is larger than {SLO_BYTES_MAX} bytes")
    try:
        document: object = msgspec.yaml.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"SLO file {path}: {' '.join(str(error).split())}") from None
    except _YAML_FAULTS as error:
        raise ConfigError(f"SLO file {path}: a value cannot be read: {error}") from None
    return document
