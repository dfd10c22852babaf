"""Creation of SSL contexts from files, with one-line error messages."""

import ssl
from pathlib import Path
from typing import NamedTuple

from select_service.files.atomic_file import read_whole
from select_service.net.tls.certificates import earliest_expiry
from select_service.net.tls.tls_paths import CertificatePair, ClientTlsPaths, ServerTlsPaths

BYTES_MAX = 1 << 20
"""Size limit of a file."""
_MISFITS = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")


class LoadedTls(NamedTuple):
    """SSL context and its source.

    ends_at: earliest expiry of the own certificates, seconds since 1970; None without one
    content: content of all files, to detect changes
    """

    context: ssl.SSLContext
    ends_at: float | None
    content: tuple[bytes, ...]


def server_context(files: ServerTlsPaths) -> LoadedTls:
    """Return the context of a server, TLS 1.2 or newer.

    Blocks.  Raises ValueError with a one-line message.
    """
    contents = [_read_file(path) for path in files.all_paths()]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Renegotiation costs the server much more CPU than the client.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    ends = _load_own_certificate(context, files.pair, contents[0])
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _add_trusted_ca(context, files.client_ca, contents[-1])
    return LoadedTls(context, ends, tuple(contents))


def client_context(files: ClientTlsPaths) -> LoadedTls:
    """Return the context of a client.

    The server's certificate must be valid for the requested host and issued by a CA that the system
    trusts (or SSL_CERT_FILE or SSL_CERT_DIR of the environment), or by `files.ca`.
    Blocks.  Raises ValueError with a one-line message.
    """
    contents = [_read_file(path) for path in files.all_paths()]
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.ca is not None:
        _add_trusted_ca(context, files.ca, contents[0])
    ends = None if files.pair is None else _load_own_certificate(context, files.pair, contents[-2])
    return LoadedTls(context, ends, tuple(contents))


def _read_file(path: Path) -> bytes:
    """Return the content of a file.  Raises ValueError."""
    try:
        return read_whole(path, BYTES_MAX)
    except OSError as error:
        raise ValueError(f"`{path}` cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"`{path}`: {error}") from None


def _load_own_certificate(
    context: ssl.SSLContext, pair: CertificatePair, certificates: bytes
) -> float:
    """Load the own certificate into a context; return its expiry time.  Raises ValueError."""
    try:
        ends = earliest_expiry(certificates)
    except ValueError as error:
        raise ValueError(f"`{pair.certificate}`: {error}") from None
    try:
        context.load_cert_chain(pair.certificate, pair.key, password=_no_passphrase)
    except _EncryptedKey:
        raise ValueError(f"`{pair.key}` is encrypted; give a key without a passphrase") from None
    except ssl.SSLError as error:
        if error.reason in _MISFITS:
            text = f"key `{pair.key}` does not match the certificate `{pair.certificate}`"
            raise ValueError(text) from None
        reason = (error.reason or "").replace("_", " ").lower() or "no private key in PEM"
        raise ValueError(f"`{pair.certificate}` with the key `{pair.key}`: {reason}") from None
    except OSError as error:  # the file was removed meanwhile
        raise ValueError(f"`{pair.certificate}`, `{pair.key}`: {error.strerror}") from None
    return ends


class _EncryptedKey(Exception):
    """Marker for an encrypted key; prevents OpenSSL from prompting on the terminal."""


def _no_passphrase() -> str:
    raise _EncryptedKey


def _add_trusted_ca(context: ssl.SSLContext, path: Path, certificates: bytes) -> None:
    """Add CA certificates to a context.  Raises ValueError."""
    try:
        # Parsed first: the messages of OpenSSL do not name the fault.
        earliest_expiry(certificates)
        context.load_verify_locations(cadata=certificates.decode("ascii"))
    except ssl.SSLError as error:
        raise ValueError(f"`{path}`: {error.reason or 'no certificate'}") from None
    except ValueError as error:
        raise ValueError(f"`{path}`: {error}") from None
