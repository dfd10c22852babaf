"""Builder of the shared caches; imported only with `--shared-caches`."""

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.http_get import HttpClient
from select_service.adapters.shared_caches.cache_source import CacheSource
from select_service.adapters.shared_caches.lmcache_source import LMCacheSource
from select_service.adapters.shared_caches.mooncake_source import MooncakeSource
from select_service.adapters.shared_caches.shared_caches import ModelCache, SharedCaches
from select_service.config.shared_cache_file import MooncakeEntry, SharedCacheEntry
from select_service.server.startup_settings import StartupSettings

CONNECTIONS_MAX = 128
"""Connections to all shared caches; others of the service do not wait for a hanging cache."""


def build_shared_caches(startup: StartupSettings, names: Resolver) -> SharedCaches:
    """Return the shared caches of all models, with a client of their own."""
    http = HttpClient(names, CONNECTIONS_MAX, tls=startup.client_tls)
    caches = (
        ModelCache(name, entry.kind, entry.url, _make_source(entry, http), entry.link_gbps)
        for name, entry in startup.shared_caches.items()
    )
    return SharedCaches(caches, http, startup.config["shared_cache_timeout_ms"] / 1e3)


def _make_source(entry: SharedCacheEntry, http: HttpClient) -> CacheSource:
    if isinstance(entry, MooncakeEntry):
        return MooncakeSource(http, entry.url, entry.key_layout())
    return LMCacheSource(http, entry.url, entry.sharing)
