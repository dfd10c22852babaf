"""A CA and certificates issued by that CA, created by openssl for one test run."""

import functools
import shutil
import ssl
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

TLS = Path(__file__).with_name("tls")
CERTIFICATE = TLS / "certificate.pem"
"""Self-signed certificate of peer.test; the private key is `key.pem`."""
NAMES = "DNS:localhost,IP:127.0.0.1"


class Issued(NamedTuple):
    """PEM files of a certificate and of the private key."""

    certificate: Path
    key: Path


class Authority:
    """CA that issues certificates for this machine."""

    def __init__(self, folder: Path, name: str) -> None:
        """Create the CA; skip the test if openssl is missing."""
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed: no certificate can be made")
        self._folder, self._issued = folder, 0
        self.file, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        ask(
            *("req", "-x509", "-days", "30", "-subj", f"/CN={name}", *new_key(self._key)),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign", "-out", self.file),
        )

    def issue(self, days: int = 20, names: str = NAMES) -> Issued:
        """Return a certificate for `names`, valid for servers and clients."""
        self._issued += 1
        place = self._folder / f"{self.file.stem}-{self._issued}"
        issued = Issued(place.with_suffix(".pem"), place.with_suffix(".key"))
        asked, extensions = place.with_suffix(".csr"), place.with_suffix(".ext")
        extensions.write_text(f"subjectAltName={names}\n")
        ask("req", "-subj", "/CN=test", *new_key(issued.key), "-out", asked)
        ask(
            *("x509", "-req", "-in", asked, "-CA", self.file, "-CAkey", self._key),
            *("-days", days, "-extfile", extensions, "-out", issued.certificate),
        )
        return issued


def new_key(path: Path) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path]


def ask(*words: object) -> None:
    command = ["openssl", *map(str, words)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def authority(name: str = "ca") -> Authority:
    """Return the CA of this name, which all tests of a process share."""
    return _make_authority(name)


@functools.cache
def _make_authority(name: str) -> Authority:
    return Authority(_folder(), name)


@functools.cache
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="certificates")
    _kept.append(folder)
    return Path(folder.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def trusting_context(ca: Path | None, own: Issued | None = None) -> ssl.SSLContext:
    """Return a client context that trusts `ca` alone."""
    context = ssl.create_default_context(cafile=ca)
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context
