"""What a file of certificates says: when they end."""

import re
import ssl
from datetime import UTC, datetime

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0
_FORMATS = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
_BEFORE_VALIDITY = 3
"""Fields between the version and the validity: serial number, algorithm, issuer."""


def ends_at(pem: bytes) -> float:
    """When the first of the certificates in a file ends, in seconds since 1970.

    Raises ValueError when there is none, or one cannot be read.
    """
    blocks = _BLOCK.findall(pem)
    if not blocks:
        raise ValueError("there is no certificate in PEM in it")
    try:
        return min(_end_of(ssl.PEM_cert_to_DER_cert(block.decode("ascii"))) for block in blocks)
    except (ValueError, IndexError):
        raise ValueError("a certificate in it cannot be read") from None


def _end_of(der: bytes) -> float:
    """Raises ValueError, IndexError.  Source: RFC 5280, 4.1."""
    _, at, _ = _element(der, 0)  # Certificate
    _, at, _ = _element(der, at)  # TBSCertificate
    tag, _, end = _element(der, at)
    at = end if tag == _VERSION else at
    for _ in range(_BEFORE_VALIDITY):
        at = _element(der, at)[2]
    tag, at, _ = _element(der, at)
    if tag != _SEQUENCE:
        raise ValueError(tag)
    tag, begin, end = _element(der, _element(der, at)[2])  # behind notBefore
    text = der[begin:end].decode("ascii")
    return datetime.strptime(text, _FORMATS.get(tag, "")).replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """(tag, where its content begins, where that ends) of what begins at `at`."""
    tag, size, begin = der[at], der[at + 1], at + 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(der[at + 2 : begin], "big")
    if begin + size > len(der):
        raise ValueError(at)
    return tag, begin, begin + size
