"""Requests with changes: nearly usual requests, and attempts of request smuggling."""

import re
from random import Random

PIECES: tuple[bytes, ...] = (
    *(bytes([byte]) for byte in b'\0\t\n\r "%+,-.:;/?\\[]{}0123456789aeE_~\x7f\x80\xff'),
    b"\r\n",
    b"\r\n\r\n",
    b"\n\n",
    b"\r\n ",
    b", ",
    b"-0",
    b"00",
    b"1.0",
    b"1e3",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b"\\u0061",
    "\u00e4".encode(),
    b"4294967295",
    b"4294967296",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775808",
    b"-9223372036854775809",
    b"18446744073709551615",
    b"18446744073709551616",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 3\r\n",
    b"Host: b\r\n",
    b"Connection: close\r\n",
    b"Expect: 100-continue\r\n",
    b"Upgrade: h2c\r\n",
    b"X-A: b\r\n",
    b" HTTP/1.0",
    b"POST /select HTTP/1.1\r\n",
    b'"model_name": "m", ',
    b'"token_ids": [1, 2], ',
    b'"block_hashes": [1, 2, 3, 4], ',
    b'"isl_tokens": 5, ',
    b'"reservation_id": "r", ',
    b'"priority_tier": "p", ',
    b'"lora_name": null, ',
)
CHANGES_MAX = 3


def mutated(data: bytes, random: Random) -> bytes:
    """Return changed data; mostly the head then has the right length of the body again."""
    for _ in range(random.randint(1, CHANGES_MAX)):
        data = _changed(data, random)
    return _with_its_length(data) if random.random() < 0.7 else data


def _changed(data: bytes, random: Random) -> bytes:
    at = random.randint(0, len(data))
    to = min(len(data), at + random.choice((0, 1, 1, 1, 2, 8, 30)))
    kind = random.randint(0, 4)
    if kind == 0:
        return data[:at] + random.choice(PIECES) + data[at:]
    if kind == 1:
        return data[:at] + random.choice(PIECES) + data[to:]
    if kind == 2:
        return data[:at] + data[to:]
    if kind == 3:
        return data[:to] + data[at:]  # repeat a part
    lines = re.split(rb"(?<=\r\n)|(?<=, )", data)
    one, other = random.randrange(len(lines)), random.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def _with_its_length(data: bytes) -> bytes:
    head, blank, body = data.partition(b"\r\n\r\n")
    length = b"Content-Length: %d" % len(body)
    return re.sub(rb"(?i)content-length: \d+", length, head, count=1) + blank + body
