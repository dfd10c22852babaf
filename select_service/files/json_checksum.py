"""JSON objects with a checksum as their last member, so that a damaged file is detected.

Any JSON reader can still read the object.
"""

import xxhash

_BEGIN = b',"checksum":"xxh3-64:'
_END = b'"}'
CHECKSUM_BYTES = len(_BEGIN) + 16 + len(_END)


def add_checksum(text: bytes) -> bytes:
    """Return the object with a checksum.

    text: JSON object with at least one member and no trailing whitespace
    """
    assert text[-1:] == b"}"
    return text[:-1] + _checksum_member(text[:-1])


def split_checksum(text: bytes) -> tuple[bytes, bool]:
    """Return the object without a checksum, and whether there was one; older files have none.

    Raises ValueError for a wrong checksum.
    """
    # The member has a fixed length, so that it is found without parsing.
    last = text[-CHECKSUM_BYTES:]
    if not (last.startswith(_BEGIN) and last.endswith(_END)):
        return text, False
    if last != _checksum_member(text[:-CHECKSUM_BYTES]):
        raise ValueError("checksum mismatch: the file is damaged or was edited by hand")
    return text[:-CHECKSUM_BYTES] + b"}", True


def _checksum_member(content: bytes) -> bytes:
    return b"%b%016x%b" % (_BEGIN, xxhash.xxh3_64_intdigest(content), _END)
