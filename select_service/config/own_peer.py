"""Removal of this process from peer lists, so that all replicas can share one list.

A process recognises itself by `--advertise-url`: its host and `--replica-sync-port` in endpoints,
the URL itself in the list of dump sources.
"""

from urllib.parse import urlsplit

from indexer.zmq_endpoints import tcp_host


def other_endpoints(
    endpoints: tuple[str, ...], own_url: str | None, sync_port: int | None
) -> tuple[str, ...]:
    """Return the ZMQ endpoints of other processes."""
    host = None if own_url is None else urlsplit(own_url).hostname
    # Without an advertised URL the process cannot recognise itself; connecting to itself is
    # harmless and logged.
    if host is None or sync_port is None:
        return endpoints
    at_port = f":{sync_port}"
    own = {e for e in endpoints if (tcp_host(e) or "").lower() == host and e.endswith(at_port)}
    return tuple(each for each in endpoints if each not in own)


def other_urls(urls: tuple[str, ...], own_url: str | None) -> tuple[str, ...]:
    """Return the URLs of other processes."""
    own = None if own_url is None else _normalised_url(own_url)
    return tuple(url for url in urls if _normalised_url(url) != own)


def _normalised_url(url: str) -> tuple[str, str | None, int | None, str]:
    """Return the normalised parts of a URL, equal for equivalent URLs."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, port, parts.path.rstrip("/")
