"""How a command presents itself to a service: arguments for its key, and for TLS.

A key never stands on the command line, where everybody on the machine can read it.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

from select_service.command_line import UsageError, file_fault, typed
from select_service.tls.files import ClientFiles, Pair
from select_service.tls.kept import ClientTls
from select_service.urls import service_url_error
from select_service.whole_file import read_whole

KEY_BYTES_MAX = 4096
URL = "http://127.0.0.1:8092"
"""Of a service with default settings."""


class Presented(NamedTuple):
    """key_file: holds the key;  tls: None: whom the system trusts is believed"""

    key_file: Path | None
    tls: ClientTls | None


def key_in(path: Path) -> str:
    """Raises ValueError with one line.  Blocks."""
    try:
        key = read_whole(path, KEY_BYTES_MAX).decode("ascii").strip()
    except OSError as error:
        raise ValueError(file_fault(path, error)) from None
    except ValueError:
        key = ""
    if not key.isprintable() or not key or " " in key:
        raise ValueError(f"`{path}` does not hold a key, which is one word")
    return key


def add_url(parser: argparse.ArgumentParser) -> None:
    """Add the flag for the address of the service."""
    parser.add_argument(
        "--url",
        type=typed(_service_url),
        default=URL,
        metavar="URL",
        help=f"address of the service (default {URL})",
    )


def _service_url(text: str) -> str:
    """Raises ValueError."""
    if (error := service_url_error(text)) is not None:
        raise ValueError(f"an http or https URL ({error})")
    return text


def add_arguments(parser: argparse.ArgumentParser, whom: str = "service") -> None:
    """Add the flags of `presented_of`; `whom` is who is asked, as the help calls it."""
    texts = {
        "--api-key-file": f"file with the key that the {whom} asks for",
        "--tls-ca": "PEM file of CAs that are believed besides the system's, of an https URL",
        "--tls-client-cert": f"PEM file of a certificate, if the {whom} asks for one",
        "--tls-client-key": "PEM file of its private key",
    }
    for flag, text in texts.items():
        parser.add_argument(flag, metavar="FILE", type=Path, help=text)


def presented_of(arguments: argparse.Namespace) -> Presented:
    """Raises UsageError."""
    certificate, key = arguments.tls_client_cert, arguments.tls_client_key
    if (certificate is None) != (key is None):
        raise UsageError("--tls-client-cert and --tls-client-key need each other: give both")
    pair = None if certificate is None else Pair(certificate, key)
    files = ClientFiles(arguments.tls_ca, pair)
    try:
        tls = ClientTls(files) if files.paths() else None
    except ValueError as error:
        raise UsageError(f"--tls-ca, --tls-client-cert, --tls-client-key: {error}") from None
    try:
        if arguments.api_key_file is not None:
            key_in(arguments.api_key_file)
    except ValueError as error:
        raise UsageError(f"--api-key-file: {error}") from None
    return Presented(arguments.api_key_file, tls)
