"""Files -> contexts of TLS.  What is wrong with them is said in one line."""

import ssl
from pathlib import Path
from typing import NamedTuple

from select_service.tls.certificates import ends_at
from select_service.tls.files import ClientFiles, Pair, ServerFiles
from select_service.whole_file import read_whole

BYTES_MAX = 1 << 20
"""Of one file."""
_MISFITS = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")


class Loaded(NamedTuple):
    """ends_at: of the first certificate of our own, in seconds since 1970; None: we have none
    content: of all files; equal: nothing has changed
    """

    context: ssl.SSLContext
    ends_at: float | None
    content: tuple[bytes, ...]


def serving(files: ServerFiles) -> Loaded:
    """TLS 1.2 or newer.  Raises ValueError with one line.  Blocks."""
    contents = [_content(path) for path in files.paths()]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    ends = _show(context, files.pair, contents[0])
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _believe(context, files.client_ca, contents[-1])
    return Loaded(context, ends, tuple(contents))


def asking(files: ClientFiles) -> Loaded:
    """The certificate of who is asked must be of the host that was asked, and issued by somebody
    whom the system trusts (or SSL_CERT_FILE or SSL_CERT_DIR of the environment), or by `files.ca`.

    Raises ValueError with one line.  Blocks.
    """
    contents = [_content(path) for path in files.paths()]
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.ca is not None:
        _believe(context, files.ca, contents[0])
    ends = None if files.pair is None else _show(context, files.pair, contents[-2])
    return Loaded(context, ends, tuple(contents))


def _content(path: Path) -> bytes:
    """Raises ValueError."""
    try:
        return read_whole(path, BYTES_MAX)
    except OSError as error:
        raise ValueError(f"`{path}` cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"`{path}`: {error}") from None


def _show(context: ssl.SSLContext, pair: Pair, certificates: bytes) -> float:
    """When they end.  Raises ValueError."""
    try:
        ends = ends_at(certificates)
    except ValueError as error:
        raise ValueError(f"`{pair.certificate}`: {error}") from None
    try:
        context.load_cert_chain(pair.certificate, pair.key, password=_no_passphrase)
    except _Encrypted:
        raise ValueError(f"`{pair.key}` is encrypted; no passphrase is asked for") from None
    except ssl.SSLError as error:
        if error.reason in _MISFITS:
            text = f"the key `{pair.key}` is not that of the certificate `{pair.certificate}`"
            raise ValueError(text) from None
        reason = (error.reason or "").replace("_", " ").lower() or "no private key in PEM"
        raise ValueError(f"`{pair.certificate}` with the key `{pair.key}`: {reason}") from None
    except OSError as error:  # it has gone meanwhile
        raise ValueError(f"`{pair.certificate}`, `{pair.key}`: {error.strerror}") from None
    return ends


class _Encrypted(Exception):
    """Without it OpenSSL would ask whoever sits at the terminal."""


def _no_passphrase() -> str:
    raise _Encrypted


def _believe(context: ssl.SSLContext, path: Path, certificates: bytes) -> None:
    """Raises ValueError."""
    try:
        ends_at(certificates)
        context.load_verify_locations(cadata=certificates.decode("ascii"))
    except ssl.SSLError as error:
        raise ValueError(f"`{path}`: {error.reason or 'no certificate'}") from None
    except ValueError as error:
        raise ValueError(f"`{path}`: {error}") from None
