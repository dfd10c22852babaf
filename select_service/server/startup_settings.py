"""Validated settings of a process, checked before any kernel is loaded."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from select_service.auth.auth_setup import (
    check_peer_key_file,
    load_engine_pair,
    load_replica_keypair,
    make_guard,
)
from select_service.auth.guard import Guard
from select_service.auth.replica_keypair import ReplicaKeypair
from select_service.config.admission_rules import admission_rules
from select_service.config.discovery_sources import SourceSettings, source_settings
from select_service.config.egress_settings import make_egress_policy
from select_service.config.health_settings import HealthSettings, health_settings
from select_service.config.settings_loader import Config
from select_service.core.admission.admission_settings import AdmissionSettings
from select_service.net.egress_policy import EgressPolicy
from select_service.net.tls.current_tls import ClientTls, ServerTls
from select_service.server.file_system_check import check_file_systems
from select_service.server.output_files import check_written_files
from select_service.server.tls_setup import load_client_tls, load_server_tls

if TYPE_CHECKING:
    from indexer.sockets.curve_keypairs import CurveKeyPair
    from select_service.config.shared_cache_file import SharedCacheEntry


class StartupSettings(NamedTuple):
    """Validated settings and the content of their files."""

    config: Config
    version: str
    rules: AdmissionSettings
    health: HealthSettings | None
    guard: Guard
    sources: Sequence[SourceSettings]
    destinations: EgressPolicy
    server_tls: ServerTls | None
    client_tls: ClientTls | None
    plane_keys: ReplicaKeypair | None
    engine_pair: "CurveKeyPair | None"
    shared_caches: "Mapping[str, SharedCacheEntry]"


def validate_settings(config: Config, version: str) -> StartupSettings:
    """Validate all settings.  Raises ConfigError."""
    # First of all: every following check opens files and would hang with their file system.
    check_file_systems(config)
    check_peer_key_file(config)
    destinations = make_egress_policy(config)
    wanted = StartupSettings(
        config,
        version,
        admission_rules(config),
        health_settings(config),
        make_guard(config),
        source_settings(config),
        destinations,
        load_server_tls(config),
        load_client_tls(config),
        load_replica_keypair(config),
        load_engine_pair(config),
        _shared_caches(config, destinations),
    )
    check_written_files(config)  # last, since it creates files
    return wanted


def _shared_caches(config: Config, destinations: EgressPolicy) -> "Mapping[str, SharedCacheEntry]":
    """Return the shared caches by model; empty if there are none.  Raises ConfigError."""
    if config["shared_caches"] is None:
        return {}
    from select_service.config.shared_cache_file import read_shared_caches

    return read_shared_caches(config["shared_caches"], destinations)
