"""Expiry times of the certificates in a PEM file."""

import re
import ssl
from datetime import UTC, datetime

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0
_FORMATS = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
_BEFORE_VALIDITY = 3
"""Number of fields between version and validity: serial number, algorithm, issuer."""


def earliest_expiry(pem: bytes) -> float:
    """Return the earliest expiry time of the certificates in a file, in seconds since 1970.

    Raises ValueError if the file has no certificate, or an unreadable one.
    """
    blocks = _BLOCK.findall(pem)
    if not blocks:
        raise ValueError("no PEM certificate in the file")
    try:
        return min(_expiry_of(ssl.PEM_cert_to_DER_cert(block.decode("ascii"))) for block in blocks)
    except (ValueError, IndexError):
        raise ValueError("a certificate in the file is unreadable") from None


def _expiry_of(der: bytes) -> float:
    """Return the expiry time of a certificate.  Raises ValueError, IndexError.

    Source: RFC 5280, 4.1.
    """
    _, at, _ = _read_element(der, 0)  # Certificate
    _, at, _ = _read_element(der, at)  # TBSCertificate
    tag, _, end = _read_element(der, at)
    at = end if tag == _VERSION else at
    for _ in range(_BEFORE_VALIDITY):
        at = _read_element(der, at)[2]
    tag, at, _ = _read_element(der, at)
    if tag != _SEQUENCE:
        raise ValueError(tag)
    tag, begin, end = _read_element(der, _read_element(der, at)[2])  # after notBefore
    text = der[begin:end].decode("ascii")
    return datetime.strptime(text, _FORMATS.get(tag, "")).replace(tzinfo=UTC).timestamp()


def _read_element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag, content start and content end of the DER element at an offset."""
    tag, size, begin = der[at], der[at + 1], at + 2
    # DER long form: the low bits give the number of length bytes.
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(der[at + 2 : begin], "big")
    if begin + size > len(der):
        raise ValueError(at)
    return tag, begin, begin + size
