"""Credentials of a command towards a service: arguments for the API key and for TLS.

A key is never given on the command line, which every user of the machine can read.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

from select_service.base.command_line import UsageError, argument_type
from select_service.net.tls.current_tls import ClientTls
from select_service.net.tls.tls_paths import CertificatePair, ClientTlsPaths
from select_service.net.token_file import read_api_key
from select_service.net.urls import service_url_error

DEFAULT_URL = "http://127.0.0.1:8092"
"""Default URL of a service."""


class ClientCredentials(NamedTuple):
    """Credentials.  key_file: file with the key;  tls: None means the CAs of the system"""

    key_file: Path | None
    tls: ClientTls | None


def add_url_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag for the address of the service."""
    parser.add_argument(
        "--url",
        type=argument_type(_parse_service_url),
        default=DEFAULT_URL,
        metavar="URL",
        help=f"address of the service (default {DEFAULT_URL})",
    )


def _parse_service_url(text: str) -> str:
    """Return the URL.  Raises ValueError unless http or https."""
    if (error := service_url_error(text)) is not None:
        raise ValueError(f"an http or https URL ({error})")
    return text


def add_credential_flags(parser: argparse.ArgumentParser, server_name: str = "service") -> None:
    """Add the flags of `credentials_from_args`.  server_name: name of the server in the help"""
    texts = {
        "--api-key-file": f"file with the API key for the {server_name} (default: no key)",
        "--tls-ca": "PEM file of CAs to trust besides the system's, for https URLs",
        "--tls-client-cert": f"PEM file of a client certificate, if the {server_name} requires one",
        "--tls-client-key": "PEM file of the private key of --tls-client-cert",
    }
    for flag, text in texts.items():
        parser.add_argument(flag, metavar="FILE", type=Path, help=text)


def credentials_from_args(arguments: argparse.Namespace) -> ClientCredentials:
    """Return the credentials from the arguments.  Raises UsageError."""
    certificate, key = arguments.tls_client_cert, arguments.tls_client_key
    if (certificate is None) != (key is None):
        raise UsageError("--tls-client-cert and --tls-client-key belong together: give both")
    pair = None if certificate is None else CertificatePair(certificate, key)
    files = ClientTlsPaths(arguments.tls_ca, pair)
    try:
        tls = ClientTls(files) if files.all_paths() else None
    except ValueError as error:
        raise UsageError(f"--tls-ca, --tls-client-cert, --tls-client-key: {error}") from None
    try:
        if arguments.api_key_file is not None:
            read_api_key(arguments.api_key_file)
    except ValueError as error:
        raise UsageError(f"--api-key-file: {error}") from None
    return ClientCredentials(arguments.api_key_file, tls)
