"""Who can reach the service by its settings, and under which names."""

import ipaddress
from collections.abc import Iterable

from select_service.settings.config import Config, ConfigError

LOOPBACK_NAME = "localhost"
ANY = "*"


def is_loopback(host: str) -> bool:
    """Can nobody reach this address but from the same machine?"""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == LOOPBACK_NAME


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
    """Names under which the service may be asked for; None: all.

    A page in a browser can let a name of its own lead to an address that the browser can reach, and
    then talk to what listens there.  It can neither show a key nor do that without a name, so names
    matter where no key is asked for, and addresses never do.
    """
    given = config["allowed_hosts"]
    here = (LOOPBACK_NAME,) if is_loopback(config["host"]) else ()
    if given is not None:
        return None if ANY in given else (*given, *here)
    return here if here and config["api_keys_file"] is None else None


def usual_hosts(names: Iterable[str], port: int) -> list[bytes]:
    """Values of `host` that clients send for these names and for this machine."""
    known = [name for name in names if not name.startswith(".")]
    hosts = dict.fromkeys((*known, "127.0.0.1", "[::1]"))
    return [text.encode() for host in hosts for text in (f"{host}:{port}", host)]
