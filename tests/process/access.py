"""Access to the services of a fleet: open, or secured by keys, TLS and CURVE.

Services call each other in the same way as clients call services. Tests and measurements share this
module. Certificates hold for this machine alone and for some days; every key is new.
"""

import argparse
import http.client
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from indexer.sockets.curve_keypairs import (
    CurveKeyPair,
    CurveServerKeys,
    connecting_options,
    new_key_pair,
)
from tests.builders.certificates import authority, trusting_context
from tests.builders.keys import entry, keys_file, secret
from tests.builders.launched_process import ANSWER_S_MAX

HOST = "127.0.0.1"


class Open:
    """Open access: all callers may call every route, and the network may read the traffic.

    flags: command-line flags of every service
    trust: TLS context of callers; None means plain HTTP
    """

    scheme = "http"
    flags: tuple[str, ...] = ()
    api_key: str | None = None
    trust: ssl.SSLContext | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        return {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}

    def url(self, port: int) -> str:
        return f"{self.scheme}://{HOST}:{port}"

    def connection(self, port: int, timeout_s: float = ANSWER_S_MAX) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(HOST, port, timeout=timeout_s)

    def socket(self, port: int) -> socket.socket:
        """Return a connected socket for raw bytes."""
        return socket.create_connection((HOST, port), ANSWER_S_MAX)

    def replica(self, endpoint: str, port: int) -> tuple[str, ...]:
        """Return the flags of one more replica.

        Running replicas load the new replica's key a second later.
        endpoint: address at which the replica publishes
        port: HTTP port of the replica
        """
        return ()

    def listening_to(self, endpoint: str) -> dict[int, Any]:
        """Return the options of a socket that subscribes to a replica."""
        return {}


OPEN: Final = Open()


class Keyed(Open):
    """Access with keys for callers only, for fleets with replicas that do not support keys."""

    def __init__(self, folder: Path) -> None:
        """folder: directory of the key files"""
        keys = keys_file(folder, entry("caller", "caller", "operator"))
        self.api_key = secret("caller")
        self.flags = (
            *("--host", "0.0.0.0", "--api-keys-file", str(keys)),
            *("--replica-sync-insecure", "--connect-to-loopback"),
        )


class Secured(Open):
    """Access with keys for callers and replicas, HTTP over TLS, and replica traffic over CURVE."""

    scheme = "https"

    def __init__(self, folder: Path) -> None:
        """folder: directory of the key files

        The test is skipped if openssl is missing.
        """
        shown, ca = authority().issue(), authority().file
        keys = keys_file(folder, entry("caller", "caller", "operator"), entry("peer", "replica"))
        peer = _private(folder / "peer.key", secret("peer").encode())
        self.trust, self.api_key = trusting_context(ca), secret("caller")
        self.flags = (
            *("--tls-cert", str(shown.certificate), "--tls-key", str(shown.key)),
            *("--tls-ca", str(ca), "--api-keys-file", str(keys)),
            *("--peer-api-key-file", str(peer), "--connect-to-loopback"),
        )
        self._folder, self._replicas = folder, folder / "replicas.toml"
        self._pairs: dict[str, CurveKeyPair] = {}
        self._listener = new_key_pair()
        self._replicas.write_text(_replica_entry("listener", self._listener))

    def connection(self, port: int, timeout_s: float = ANSWER_S_MAX) -> http.client.HTTPConnection:
        return http.client.HTTPSConnection(HOST, port, timeout=timeout_s, context=self.trust)

    def socket(self, port: int) -> socket.socket:
        assert self.trust is not None
        return self.trust.wrap_socket(super().socket(port), server_hostname=HOST)

    def replica(self, endpoint: str, port: int) -> tuple[str, ...]:
        pair = self._pairs[endpoint] = new_key_pair()
        name = f"replica-{len(self._pairs)}"
        own = _private(self._folder / f"{name}.key", pair.secret)
        with self._replicas.open("a") as file:
            file.write(_replica_entry(name, pair, endpoint=endpoint, url=self.url(port)))
        return ("--replica-key-file", str(own), "--replica-keys-file", str(self._replicas))

    def listening_to(self, endpoint: str) -> dict[int, Any]:
        return connecting_options(CurveServerKeys(self._pairs[endpoint].public, self._listener))


@contextmanager
def access(is_secured: bool) -> Iterator[Open]:
    """Yield the access; its files are deleted at the end."""
    if not is_secured:
        yield OPEN
        return
    with TemporaryDirectory() as folder:
        yield Secured(Path(folder))


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag `--secured` of a measurement, the argument of `access`."""
    told = "with keys of callers and replicas, TLS and CURVE"
    parser.add_argument("--secured", action="store_true", help=told)


def _private(path: Path, content: bytes) -> Path:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content + b"\n")
    return path


def _replica_entry(name: str, pair: CurveKeyPair, **fields: str) -> str:
    """Return the TOML entry of a replica."""
    given = {"name": name, "public_key": pair.public.decode(), **fields}
    return "[[replicas]]\n" + "".join(f"{key} = '{text}'\n" for key, text in given.items())
