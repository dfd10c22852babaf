"""What a process is to be: all settings, each judged, before a kernel is loaded."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from select_service.access.guard import Guard
from select_service.access.plane_keys import PlaneKeys
from select_service.access.settings import check_peer_key, engine_pair_of, guard_of, plane_keys_of
from select_service.core.admission.rules import AdmissionRules
from select_service.destinations import Destinations
from select_service.settings.admission_rules import admission_rules
from select_service.settings.config import Config
from select_service.settings.destinations import destinations
from select_service.settings.discovery import SourceSettings, source_settings
from select_service.settings.health_settings import HealthSettings, health_settings
from select_service.starting.reached_files import check_answers
from select_service.starting.tls_files import client_tls, server_tls
from select_service.starting.written_files import check_written_files
from select_service.tls.kept import ClientTls, ServerTls

if TYPE_CHECKING:
    from indexer.sockets.curve import CurvePair


class Wanted(NamedTuple):
    """Settings that were found good, with what their files say."""

    config: Config
    version: str
    rules: AdmissionRules
    health: HealthSettings | None
    guard: Guard
    sources: Sequence[SourceSettings]
    destinations: Destinations
    server_tls: ServerTls | None
    client_tls: ClientTls | None
    plane_keys: PlaneKeys | None
    engine_pair: "CurvePair | None"


def wanted_of(config: Config, version: str) -> Wanted:
    """Raises ConfigError."""
    check_answers(config)
    check_peer_key(config)
    wanted = Wanted(
        config,
        version,
        admission_rules(config),
        health_settings(config),
        guard_of(config),
        source_settings(config),
        destinations(config),
        server_tls(config),
        client_tls(config),
        plane_keys_of(config),
        engine_pair_of(config),
    )
    check_written_files(config)  # last, as it begins files
    return wanted
