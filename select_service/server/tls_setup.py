"""TLS of both sides from the settings; invalid files end the start at once."""

import logging
from pathlib import Path
from time import time

from select_service.config.settings_loader import Config, ConfigError
from select_service.net.tls.current_tls import ClientTls, CurrentTls, ServerTls
from select_service.net.tls.tls_paths import CertificatePair, ClientTlsPaths, ServerTlsPaths

log = logging.getLogger("select_service.tls")


def load_server_tls(config: Config) -> ServerTls | None:
    """Return the TLS state of the server; None means plain HTTP.  Raises ConfigError."""
    pair = _certificate_pair(config, "tls_cert", "tls_key")
    if pair is None:
        return None
    try:
        return ServerTls(ServerTlsPaths(pair, _optional_path(config, "tls_client_ca")))
    except ValueError as error:
        raise ConfigError(f"--tls-cert, --tls-key, --tls-client-ca: {error}") from None


def load_client_tls(config: Config) -> ClientTls | None:
    """Return the TLS state of the client; None means system CAs and no certificate.

    Raises ConfigError.
    """
    files = ClientTlsPaths(
        _optional_path(config, "tls_ca"),
        _certificate_pair(config, "tls_client_cert", "tls_client_key"),
    )
    if not files.all_paths():
        return None
    try:
        return ClientTls(files)
    except ValueError as error:
        raise ConfigError(f"--tls-ca, --tls-client-cert, --tls-client-key: {error}") from None


def warn_of_expiry(*kept: CurrentTls | None) -> None:
    """Warn about expired certificates."""
    for each in kept:
        # A warning only: a service that refuses to start would turn an expiry into an outage.
        if each is not None and each.ends_at is not None and each.ends_at < time():
            fields = {"path": str(each.paths[0])}
            log.warning("certificate expired", extra={"fields": fields})


def _certificate_pair(config: Config, certificate: str, key: str) -> CertificatePair | None:
    """Return certificate and key; settings.config ensures that both or neither are given."""
    if config[certificate] is None:
        return None
    return CertificatePair(Path(config[certificate]), Path(config[key]))


def _optional_path(config: Config, name: str) -> Path | None:
    return None if config[name] is None else Path(config[name])
