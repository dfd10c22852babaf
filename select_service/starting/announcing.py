"""The log lines of a start: where it listens, what is set, and what of that makes no difference."""

import logging
from pathlib import Path
from typing import Any

from select_service.settings.config import DEFAULT, Config
from select_service.settings.reach import are_replicas_open, is_open, replica_host
from select_service.whole_file import is_open_to_everybody

OF_SECRETS = (
    "replica_key_file",
    "engine_curve_key_file",
    "peer_api_key_file",
    "tls_key",
    "tls_client_key",
)

log = logging.getLogger("select_service")


def announce(config: Config, version: str, host: str, port: int) -> None:
    """Once, when the service takes connections."""
    log.info("listening", extra={"fields": {"host": host, "port": port, "version": version}})
    if is_open(config):
        log.warning(
            "insecure: no key is asked for, so everybody who reaches the port may call everything",
            extra={"fields": {"host": host, "instead": "--api-keys-file"}},
        )
    if are_replicas_open(config):
        log.warning(
            "insecure: replicas have no keys, so everybody who reaches the port hears of load",
            extra={"fields": {"host": replica_host(config), "instead": "--replica-keys-file"}},
        )
    for name in OF_SECRETS:
        if config[name] is not None and is_open_to_everybody(Path(config[name])):
            fields = {"setting": "--" + name.replace("_", "-"), "path": config[name]}
            fields["instead"] = f"chmod o= {config[name]}"
            log.warning("everybody on this machine can read a secret key", extra={"fields": fields})
    settings = {
        setting.get("flag", setting["variable"]).removeprefix("--"): _as_logged(setting)
        for setting in config.effective().values()
        if setting["origin"] != DEFAULT
    }
    fields = {**settings, "others": "as by default, see GET /config"}
    log.info("configuration", extra={"fields": fields})
    _warn(config)


def _warn(config: Config) -> None:
    """Of settings that are old, or do not count."""
    weight = config.values["overlap_score_weight"]
    if weight.value is not None:
        fields = {"setting": weight.origin, "instead": "DYN_ROUTER_PREFILL_LOAD_SCALE"}
        log.warning("deprecated variable", extra={"fields": fields})
    for origin in config.not_heeded:
        fields = {"setting": origin, "policy": config["policy"], "heeded_by": "reference"}
        log.warning("the policy does not heed a setting", extra={"fields": fields})
    for flag, needed in config.not_used.items():
        fields = {"setting": flag, "needs": needed}
        log.warning("a setting does not count without another", extra={"fields": fields})
    for variable in config.without_effect:
        log.warning("variable has no effect", extra={"fields": {"variable": variable}})
    for variable, similar in config.unknown.items():
        fields = {"variable": variable} | ({"did_you_mean": similar} if similar else {})
        log.warning("unknown variable", extra={"fields": fields})


def _as_logged(setting: dict[str, Any]) -> str:
    """Return the value as a command line has it, and where it came from."""
    value = setting["value"]
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    return f"{value} ({setting['origin']})"
