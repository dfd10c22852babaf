"""Reachability of the service by its settings: open interfaces and accepted host names."""

from collections.abc import Iterable

from select_service.config.settings_loader import Config, ConfigError
from select_service.net.allowed_hosts import host_names_for, is_loopback


def is_unauthenticated(config: Config) -> bool:
    """Return whether other machines may call everything without a key."""
    return config["api_keys_file"] is None and not is_loopback(config["host"])


def replica_host(config: Config) -> str:
    """Return the address of the replica port."""
    return str(config["replica_sync_host"] or config["host"])


def is_replica_port_unauthenticated(config: Config) -> bool:
    """Return whether other machines may receive load events and act as a replica without a key."""
    is_plain = config["replica_sync_port"] is not None and config["replica_keys_file"] is None
    return is_plain and not is_loopback(replica_host(config))


def check_open_interfaces(config: Config) -> None:
    """Raise ConfigError for an open interface that is not explicitly permitted."""
    if is_unauthenticated(config) and not config["insecure"]:
        raise ConfigError(
            f"--host {config['host']} is reachable from other machines without API keys: give "
            "--api-keys-file, or --insecure to permit this"
        )
    if is_replica_port_unauthenticated(config) and not config["replica_sync_insecure"]:
        raise ConfigError(
            f"--replica-sync-port on {replica_host(config)} is reachable from other machines "
            "without keys: give --replica-key-file and --replica-keys-file, or "
            "--replica-sync-insecure to permit this"
        )


def allowed_hosts(config: Config) -> tuple[str, ...] | None:
    """Return the accepted host names; None means all."""
    asks_for_key = config["api_keys_file"] is not None
    return host_names_for(config["host"], config["allowed_hosts"], needs_key=asks_for_key)


def host_header_values(names: Iterable[str], port: int) -> list[bytes]:
    """Return the usual `host` header values for these names and for this machine."""
    known = [name for name in names if not name.startswith(".")]
    # Exact values for the fast path; other accepted hosts (subdomains) take the slow path.
    hosts = dict.fromkeys((*known, "127.0.0.1", "[::1]"))
    return [text.encode() for host in hosts for text in (f"{host}:{port}", host)]
