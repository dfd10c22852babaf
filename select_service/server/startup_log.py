"""Log lines at start-up: address, settings, and settings without effect."""

import logging
from pathlib import Path
from typing import Any

from select_service.config.open_interfaces import (
    is_replica_port_unauthenticated,
    is_unauthenticated,
    replica_host,
)
from select_service.config.settings_loader import DEFAULT, Config
from select_service.files.atomic_file import is_world_accessible

SECRET_FILE_SETTINGS = (
    "replica_key_file",
    "engine_curve_key_file",
    "peer_api_key_file",
    "tls_key",
    "tls_client_key",
)

log = logging.getLogger("select_service")


def log_startup(config: Config, version: str, host: str, port: int) -> None:
    """Log the start-up lines, once the service accepts connections."""
    log.info("listening", extra={"fields": {"host": host, "port": port, "version": version}})
    if is_unauthenticated(config):
        log.warning(
            "insecure: no API keys, anyone reaching the port has full access",
            extra={"fields": {"host": host, "instead": "--api-keys-file"}},
        )
    if is_replica_port_unauthenticated(config):
        log.warning(
            "insecure: the replica port is unauthenticated",
            extra={"fields": {"host": replica_host(config), "instead": "--replica-keys-file"}},
        )
    for name in SECRET_FILE_SETTINGS:
        if config[name] is not None and is_world_accessible(Path(config[name])):
            fields = {"setting": "--" + name.replace("_", "-"), "path": config[name]}
            fields["instead"] = f"chmod o= {config[name]}"
            log.warning(
                "secret key readable by all users of this machine", extra={"fields": fields}
            )
    # Only settings that were given: a log line of a hundred defaults would hide them.
    settings = {
        setting.get("flag", setting["variable"]).removeprefix("--"): _logged_value(setting)
        for setting in config.effective_settings().values()
        if setting["origin"] != DEFAULT
    }
    fields = {**settings, "others": "defaults, see GET /config"}
    log.info("configuration", extra={"fields": fields})
    _warn_about_settings(config)


def _warn_about_settings(config: Config) -> None:
    """Warn about deprecated settings and settings without effect."""
    weight = config.values["overlap_score_weight"]
    if weight.value is not None:
        fields = {"setting": weight.origin, "instead": "DYN_ROUTER_PREFILL_LOAD_SCALE"}
        log.warning("deprecated variable", extra={"fields": fields})
    expiry = config.values["active_request_expiry_s"]
    if expiry.value is not None:
        lease = config.values["reservation_ttl_s"]
        fields = {"setting": expiry.origin, "lease_s": lease.value, "lease_of": lease.origin}
        log.warning("expiry is a lease here, renewed by every call", extra={"fields": fields})
    for origin in config.ignored_origins:
        fields = {"setting": origin, "policy": config["policy"], "heeded_by": "reference"}
        log.warning("setting ignored by the policy", extra={"fields": fields})
    for flag, needed in config.unused_settings.items():
        fields = {"setting": flag, "needs": needed}
        log.warning("setting without effect, requires another", extra={"fields": fields})
    for variable in config.without_effect:
        log.warning("variable without effect", extra={"fields": {"variable": variable}})
    for variable, similar in config.unknown.items():
        fields = {"variable": variable} | ({"did_you_mean": similar} if similar else {})
        log.warning("unknown variable", extra={"fields": fields})


def _logged_value(setting: dict[str, Any]) -> str:
    """Return a value as on the command line, with its origin."""
    value = setting["value"]
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    return f"{value} ({setting['origin']})"
