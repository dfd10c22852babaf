"""A CA and certificates of it, made by openssl for one test run."""

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
"""Of peer.test, signed by itself; its key is `key.pem`."""
NAMES = "DNS:localhost,IP:127.0.0.1"


class Issued(NamedTuple):
    """PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates for this machine."""

    def __init__(self, folder: Path, name: str) -> None:
        """Skips the test where there is no openssl."""
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed: no certificate can be made")
        self._folder, self._issued = folder, 0
        self.file, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        ask(
            *("req", "-x509", "-days", "30", "-subj", f"/CN={name}", *new_key(self._key)),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign", "-out", self.file),
        )

    def issue(self, days: int = 20, names: str = NAMES) -> Issued:
        """A certificate for `names`, for servers and for clients."""
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
    """The same one for all tests of a process."""
    return _made(name)


@functools.cache
def _made(name: str) -> Authority:
    return Authority(_folder(), name)


@functools.cache
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="certificates")
    _kept.append(folder)
    return Path(folder.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def believing(ca: Path | None, own: Issued | None = None) -> ssl.SSLContext:
    """Of a client that believes `ca` alone."""
    context = ssl.create_default_context(cafile=ca)
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context
