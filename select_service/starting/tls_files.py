"""The settings -> TLS of both sides.  Reads the files: a start with wrong ones ends at once."""

import logging
from pathlib import Path
from time import time

from select_service.settings.config import Config, ConfigError
from select_service.tls.files import ClientFiles, Pair, ServerFiles
from select_service.tls.kept import ClientTls, Kept, ServerTls

log = logging.getLogger("select_service.tls")


def server_tls(config: Config) -> ServerTls | None:
    """None: plain HTTP.  Raises ConfigError."""
    pair = _pair(config, "tls_cert", "tls_key")
    if pair is None:
        return None
    try:
        return ServerTls(ServerFiles(pair, _path(config, "tls_client_ca")))
    except ValueError as error:
        raise ConfigError(f"--tls-cert, --tls-key, --tls-client-ca: {error}") from None


def client_tls(config: Config) -> ClientTls | None:
    """None: what the system believes, and no certificate of our own.  Raises ConfigError."""
    files = ClientFiles(_path(config, "tls_ca"), _pair(config, "tls_client_cert", "tls_client_key"))
    if not files.paths():
        return None
    try:
        return ClientTls(files)
    except ValueError as error:
        raise ConfigError(f"--tls-ca, --tls-client-cert, --tls-client-key: {error}") from None


def warn_of_tls(*kept: Kept | None) -> None:
    """Of what works today and should not stay so."""
    for each in kept:
        if each is not None and each.ends_at is not None and each.ends_at < time():
            fields = {"path": str(each.paths[0])}
            log.warning("a certificate has expired", extra={"fields": fields})


def _pair(config: Config, certificate: str, key: str) -> Pair | None:
    """Both are given, or none; see settings.config."""
    if config[certificate] is None:
        return None
    return Pair(Path(config[certificate]), Path(config[key]))


def _path(config: Config, name: str) -> Path | None:
    return None if config[name] is None else Path(config[name])
