"""A JSON object whose last member is a checksum: a damaged file is not taken for a whole one.

It stays a JSON object that every reader of JSON can read.
"""

import xxhash

_BEGIN = b',"checksum":"xxh3-64:'
_END = b'"}'
CHECKSUM_BYTES = len(_BEGIN) + 16 + len(_END)


def with_checksum(text: bytes) -> bytes:
    """text: a JSON object without spaces at its end, of one member at least"""
    assert text[-1:] == b"}"
    return text[:-1] + _member(text[:-1])


def without_checksum(text: bytes) -> tuple[bytes, bool]:
    """Return the object without its checksum, and whether it had one: older files have none.

    Raises ValueError for a checksum of other content.
    """
    last = text[-CHECKSUM_BYTES:]
    if not (last.startswith(_BEGIN) and last.endswith(_END)):
        return text, False
    if last != _member(text[:-CHECKSUM_BYTES]):
        raise ValueError("its checksum is of other content: it was damaged, or changed by hand")
    return text[:-CHECKSUM_BYTES] + b"}", True


def _member(content: bytes) -> bytes:
    return b"%b%016x%b" % (_BEGIN, xxhash.xxh3_64_intdigest(content), _END)
