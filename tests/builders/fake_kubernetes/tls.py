"""A self-signed certificate for the loopback address, created by openssl."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


def a_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Return the CA's file and the server's context; skip the test if openssl is missing."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    folder.mkdir(exist_ok=True)
    ca, key = folder / "ca.crt", folder / "server.key"
    command = (
        f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=fake "
        f"-keyout {key} -out {ca} "
        "-addext subjectAltName=IP:127.0.0.1 -addext keyUsage=critical,digitalSignature,keyCertSign"
    )
    subprocess.run(command.split(), check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca, key)
    return ca, context
