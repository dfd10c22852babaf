"""The settings of TLS, of both sides."""

from select_service.settings import values as read
from select_service.settings.setting import cli

TLS = (
    cli(
        "--tls-cert",
        None,
        read.text,
        "PEM file of the certificate that this service shows, those up to its CA behind it; read "
        "again when it changes and on SIGHUP; none = plain HTTP",
    ),
    cli("--tls-key", None, read.text, "PEM file of its private key, without a passphrase"),
    cli(
        "--tls-client-ca",
        None,
        read.text,
        "PEM file of the CAs that clients must have a certificate of; none = clients need none",
    ),
    cli(
        "--tls-ca",
        None,
        read.text,
        "PEM file of CAs that are believed beside the system's where https is asked",
    ),
    cli(
        "--tls-client-cert",
        None,
        read.text,
        "PEM file of the certificate that is shown where another service asks for one",
    ),
    cli("--tls-client-key", None, read.text, "PEM file of its private key"),
)
