"""Who can reach the service by its settings, and under which names."""

from collections.abc import Iterable

from select_service.allowed_names import is_loopback, names_at
from select_service.settings.config import Config, ConfigError


def is_open(config: Config) -> bool:
    """May everybody who can reach the machine call everything?"""
    return config["api_keys_file"] is None and not is_loopback(config["host"])


def replica_host(config: Config) -> str:
    """Where the port of the replica plane is opened."""
    return str(config["replica_sync_host"] or config["host"])


def are_replicas_open(config: Config) -> bool:
    """May everybody who can reach the machine hear of load, and be taken for a replica?"""
    is_plain = config["replica_sync_port"] is not None and config["replica_keys_file"] is None
    return is_plain and not is_loopback(replica_host(config))


def check_reach(config: Config) -> None:
    """Raises ConfigError where others could call everything, and nobody has said that they may."""
    if is_open(config) and not config["insecure"]:
        raise ConfigError(
            f"--host {config['host']} lets others reach the service, and without --api-keys-file "
            "they may call everything; --insecure says that this is meant"
        )
    if are_replicas_open(config) and not config["replica_sync_insecure"]:
        raise ConfigError(
            f"--replica-sync-port on {replica_host(config)} tells everybody of load who reaches "
            "it; give replicas keys (--replica-key-file and --replica-keys-file), or "
            "--replica-sync-insecure says that this is meant"
        )


def allowed_hosts(config: Config) -> tuple[str, ...] | None:
    """Names under which the service may be asked for; None: all."""
    asks_for_key = config["api_keys_file"] is not None
    return names_at(config["host"], config["allowed_hosts"], asks_for_key=asks_for_key)


def usual_hosts(names: Iterable[str], port: int) -> list[bytes]:
    """Values of `host` that clients send for these names and for this machine."""
    known = [name for name in names if not name.startswith(".")]
    hosts = dict.fromkeys((*known, "127.0.0.1", "[::1]"))
    return [text.encode() for host in hosts for text in (f"{host}:{port}", host)]
