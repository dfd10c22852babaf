"""One list of peers for all replicas: where a list names this process, it is left out.

A process knows itself by `--advertise-url`: its host and `--replica-sync-port` among endpoints, the
URL itself among those of dumps.
"""

from urllib.parse import urlsplit

from indexer.endpoints import tcp_host


def other_endpoints(
    endpoints: tuple[str, ...], own_url: str | None, sync_port: int | None
) -> tuple[str, ...]:
    """Of ZMQ endpoints those that are not our own."""
    host = None if own_url is None else urlsplit(own_url).hostname
    if host is None or sync_port is None:
        return endpoints
    return tuple(each for each in endpoints if not _is_at(each, host, sync_port))


def _is_at(endpoint: str, host: str, port: int) -> bool:
    found = tcp_host(endpoint)
    return found is not None and found.lower() == host and endpoint.endswith(f":{port}")


def other_urls(urls: tuple[str, ...], own_url: str | None) -> tuple[str, ...]:
    """Of URLs those that are not our own."""
    own = None if own_url is None else _place(own_url)
    return tuple(url for url in urls if _place(url) != own)


def _place(url: str) -> tuple[str, str | None, int | None, str]:
    """The same for two ways to write one URL."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, port, parts.path.rstrip("/")
