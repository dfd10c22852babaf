"""Settings of TLS, for both sides."""

from select_service.config import value_parsers as read
from select_service.config.setting import flag_setting

TLS = (
    flag_setting(
        "--tls-cert",
        None,
        read.non_empty_text,
        "PEM file of the server certificate followed by its intermediate certificates; reloaded "
        "after a change and on SIGHUP (default: plain HTTP)",
    ),
    flag_setting(
        "--tls-key",
        None,
        read.non_empty_text,
        "PEM file of the server's private key, without a passphrase",
    ),
    flag_setting(
        "--tls-client-ca",
        None,
        read.non_empty_text,
        "PEM file of CAs that must have issued client certificates (default: none required)",
    ),
    flag_setting(
        "--tls-ca",
        None,
        read.non_empty_text,
        "PEM file of additional CAs for outgoing HTTPS",
    ),
    flag_setting(
        "--tls-client-cert",
        None,
        read.non_empty_text,
        "PEM file of the client certificate for outgoing HTTPS",
    ),
    flag_setting(
        "--tls-client-key", None, read.non_empty_text, "PEM file of the client's private key"
    ),
)
