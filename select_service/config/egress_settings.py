"""Egress policy from the settings."""

from select_service.config.settings_loader import Config, ConfigError
from select_service.net.allowed_hosts import is_loopback
from select_service.net.egress_policy import EgressPolicy, parse_network


def make_egress_policy(config: Config) -> EgressPolicy:
    """Return the egress policy.  Raises ConfigError for a configured peer that it forbids."""
    listed: tuple[str, ...] = config["connect_to"] or ()
    networks = [text for text in listed if "/" in text]  # as `egress_destinations` writes them
    found = EgressPolicy(
        tuple(map(parse_network, networks)),
        tuple(text for text in listed if text not in networks),
        _allows_loopback(config),
    )
    endpoints, urls = config["replica_sync_peers"] or (), config["indexer_peers"] or ()
    peers = [("--replica-sync-peers", each, found.endpoint_refusal(each)) for each in endpoints]
    peers += [("--indexer-peers", each, found.url_refusal(each)) for each in urls]
    for flag, peer, refusal in peers:
        if refusal is not None:
            raise ConfigError(f"{flag}: {peer} is refused: {refusal}")
    return found


def _allows_loopback(config: Config) -> bool:
    """Return whether loopback destinations are permitted.

    If only this machine can call, its users can reach loopback services without this service
    anyway; remote callers would reach loopback services through this service.
    """
    given: bool | None = config["connect_to_loopback"]
    if given is not None:
        return given
    return is_loopback(config["host"]) and config["api_keys_file"] is None
