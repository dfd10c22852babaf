"""Egress policy from the settings."""

import ipaddress

from select_service.config.settings_loader import Config, ConfigError
from select_service.net.allowed_hosts import is_loopback
from select_service.net.egress_policy import EgressPolicy, parse_network


def make_egress_policy(config: Config) -> EgressPolicy:
    """Return the egress policy.  Raises ConfigError for a configured peer that it forbids."""
    listed: tuple[str, ...] = config["connect_to"] or ()
    networks = [text for text in listed if _is_network(text)]
    found = EgressPolicy(
        tuple(map(parse_network, networks)),
        tuple(text for text in listed if text not in networks),
        _allows_loopback(config),
    )
    for peer in config["replica_sync_peers"] or ():
        _reject_peer("--replica-sync-peers", peer, found.endpoint_refusal(peer))
    for url in config["indexer_peers"] or ():
        _reject_peer("--indexer-peers", url, found.url_refusal(url))
    return found


def _allows_loopback(config: Config) -> bool:
    """Return whether loopback destinations are permitted.

    If only this machine can call, its users can reach loopback services without this service
    anyway; remote callers would reach them through this service.
    """
    given: bool | None = config["connect_to_loopback"]
    if given is not None:
        return given
    return is_loopback(config["host"]) and config["api_keys_file"] is None


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def _reject_peer(flag: str, place: str, refusal: str | None) -> None:
    if refusal is not None:
        raise ConfigError(f"{flag}: {place} is refused: {refusal}")
