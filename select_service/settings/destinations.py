"""The settings -> where the service may connect to."""

import ipaddress

from select_service.allowed_names import is_loopback
from select_service.destinations import Destinations, network_of
from select_service.settings.config import Config, ConfigError


def destinations(config: Config) -> Destinations:
    """Raises ConfigError for peers that may not be connected to."""
    listed: tuple[str, ...] = config["connect_to"] or ()
    networks = [text for text in listed if _is_network(text)]
    found = Destinations(
        tuple(map(network_of, networks)),
        tuple(text for text in listed if text not in networks),
        _allows_loopback(config),
    )
    for peer in config["replica_sync_peers"] or ():
        _refuse("--replica-sync-peers", peer, found.refusal_of_endpoint(peer))
    for url in config["indexer_peers"] or ():
        _refuse("--indexer-peers", url, found.refusal_of_url(url))
    return found


def _allows_loopback(config: Config) -> bool:
    """Where only this machine can call, its users reach what listens here without us; where others
    can, they would reach it through us."""
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


def _refuse(flag: str, place: str, refusal: str | None) -> None:
    if refusal is not None:
        raise ConfigError(f"{flag}: {place} is refused: {refusal}")
