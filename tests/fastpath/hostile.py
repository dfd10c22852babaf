"""Requests at the limits of the reader: numbers, texts, heads and framing, case by case.

The walks of `test_equality` meet such cases only by chance.
"""

from collections.abc import Iterator

Case = tuple[str, bytes]

TOKENS = b'{"model_name":"llama","token_ids":[1,2,3,4,5,6,7,8]%s}'
USUAL_BODY = TOKENS % b""
LENGTH = b"Content-Length: %d\r\n" % len(USUAL_BODY)

NUMBERS = (
    *(b"0 -0 00 01 -01 +1 1e3 1E3 1.0 1. .5 - -- --1 1-1 0x10 1_0".split()),
    *(b"NaN Infinity null true [1]".split()),
    *(b"4294967295 4294967296 99999999 100000000 1099511627776 1099511627777 -1".split()),
    *(b"18446744073709551614 18446744073709551615 18446744073709551616".split()),
    *(b"19999999999999999999 20000000000000000000 36893488147419103232".split()),
    *(b"9223372036854775807 9223372036854775808 -9223372036854775808".split()),
    *(b"-9223372036854775809 -18446744073709551615 99999999999999999999".split()),
    *(b"", b" 1", b"1 ", b"1 1", b"1\t", b"\n1", b'"1"', b"\x00", b"1\x00", b"\xef\xbc\x91"),
    *(b"1" * 30, b"0" * 30, b"0" * 20 + b"1"),
)
FRACTIONS = (
    *(b"0 1 1.0 0.5 0. 00.5 1.1 2 -0.0 0.5e0 0.999999999999999 1.000000000000000".split()),
    *(b"0.1234567890123456 1.0000000000000001 0.0000000000000001".split()),
)
RESERVED = {b"worker_id": b"1", b"dp_rank": b"0", b"isl_tokens": b"1099511627776"}
NUMBERS_OF_RESERVATIONS = (*RESERVED, b"effective_prefill_tokens", b"expected_output_tokens")
LENGTHS = (0, 1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 255, 511, 512, 513, 1000)
BYTES = [bytes([k]) for k in (*range(34), 34, 37, 39, 44, 47, 58, 59, 92, 123, 127, 128, 196, 255)]
ESCAPES = (b"\\u0061", b"\\n", b"\\/", b'\\"', b"\\ud83d\\ude00", b"\\ud83d", b"\xc3\xa4")
MEMBERS = (
    *(b',"token_ids":[1]', b',"token_ids":null', b',"model_name":"llama"', b',"model_name":null'),
    *(b',"block_hashes":[1]', b',"sequence_hashes":[]', b',"isl_tokens":8', b',"isl_tokens":null'),
    *(b',"tenant_id":null', b',"tenant_id":"default","routing_group":"default"'),
    *(b',"tenant_id":"default","routing_group":"b"', b',"lora_name":null', b',"lora_name":"x"'),
    *(b',"selection_id":null', b',"allowed_worker_ids":[1]', b',"priority_jump":0', b',"a":1'),
    *(b',"worker_id":1', b',"decay_fraction":0.5', b',"reservation_id":null', b',"is_eagle":true'),
    *(b',"routing_constraints":{}', b',"router_config_override":{}', b",", b",,", b"}", b"]"),
)
LINES = (
    *(b"POST /select HTTP/1.0", b"POST /select HTTP/1.1 ", b"POST  /select HTTP/1.1"),
    *(b" POST /select HTTP/1.1", b"post /select HTTP/1.1", b"POST /select HTTP/2.0"),
    *(b"POST /select", b"POST /select?x=1 HTTP/1.1", b"POST /select# HTTP/1.1"),
    *(b"POST /select/ HTTP/1.1", b"POST //select HTTP/1.1", b"POST http://a/select HTTP/1.1"),
    *(b"POST /sel%65ct HTTP/1.1", b"PUT /select HTTP/1.1", b"POST /select\tHTTP/1.1"),
    *(b"POST /select\x00 HTTP/1.1", b"POST * HTTP/1.1", b"CONNECT /select HTTP/1.1"),
)
HEADS = (
    *(LENGTH * 2, LENGTH + b"Content-Length: 3\r\n", b"Content-Length: 3\r\n" + LENGTH, b""),
    *(LENGTH.replace(b": ", between) for between in (b":", b":\t", b":  ", b" : ", b":\r\n ")),
    *(
        LENGTH.replace(b"\r\n", end)
        for end in (b" \r\n", b"\n", b"\rX: y\r\n", b",3\r\n", b";\r\n")
    ),
    *(LENGTH.replace(b": ", b": " + sign) for sign in (b"+", b"-", b"00", b"0x")),
    *(b"Content-Length: %s\r\n" % size for size in (b"9" * 20, b"2097153", b"")),
    *(b"Transfer-Encoding: chunked\r\n" + length for length in (b"", LENGTH)),
    LENGTH + b"Transfer-Encoding: chunked\r\n",
    *(
        LENGTH + b"Transfer-Encoding: %s\r\n" % te
        for te in (b"identity", b"xchunked", b"\x0bchunked")
    ),
    *(
        LENGTH + te
        for te in (b"Transfer-Encoding : chunked\r\n", b"Transfer_Encoding: chunked\r\n")
    ),
    LENGTH + b"X: a\r\n Transfer-Encoding: chunked\r\n",
    *(LENGTH + b"Expect: %s\r\n" % what for what in (b"100-continue", b"x")),
    LENGTH + b"Upgrade: h2c\r\nConnection: Upgrade\r\n",
    *(
        LENGTH + b"Connection: %s\r\n" % what
        for what in (b"close", b"Keep-Alive", b"keep-alive, close")
    ),
    LENGTH + b"Connection: keep-alive\r\nConnection: close\r\n",
    *(
        LENGTH + line
        for line in (b"Host: b\r\n", b"Content-Type: text/plain\r\n", b": a\r\n", b"a\r\n")
    ),
    *(
        LENGTH + line
        for line in (b"Content-Encoding: gzip\r\n", b"TE: trailers\r\n", b"X: \x00\r\n")
    ),
    *(LENGTH + b"X-A: b\r\n" * n for n in (60, 70, 300)),
    *(LENGTH + b"X-A: %s\r\n" % (b"b" * n) for n in (8000, 70_000)),
)


def render_request(
    body: bytes, path: bytes = b"/select", method: bytes = b"POST", headers: bytes = b""
) -> bytes:
    head = b"%s %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n" % (method, path)
    return head + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


def cases() -> Iterator[Case]:
    yield from _numbers()
    yield from _texts()
    yield from _bodies()
    yield from _heads()


def _numbers() -> Iterator[Case]:
    hashes = b'{"model_name":"llama","block_hashes":[%s],"sequence_hashes":[%s],"isl_tokens":%s}'
    for n in NUMBERS:
        yield "a hash", render_request(hashes % (n, b"1", b"5"))
        yield "the second hash", render_request(hashes % (b"1," + n, n + b",2", b"5"))
        yield "a hash behind a blank", render_request(hashes % (b"1, " + n, n + b", 2", b"5"))
        yield "a length", render_request(hashes % (b"1", b"1", n))
        for between in (b"[%s]", b"[1,%s,4,5,6]", b"[1, %s, 4, 5, 6]"):
            yield (
                "a token",
                render_request(b'{"model_name":"llama","token_ids":%s}' % (between % n)),
            )
        for key in NUMBERS_OF_RESERVATIONS:
            yield key.decode(), _reserve({**RESERVED, key: n}) + _free(b"z")
    for n in FRACTIONS:
        yield (
            "a fraction",
            render_request(b'{"decay_fraction":%s}' % n, b"/reservations/live/output_block"),
        )


def _reserve(numbers: dict[bytes, bytes]) -> bytes:
    named = b"".join(b',"%s":%s' % number for number in numbers.items())
    body = b'{"model_name":"llama","reservation_id":"z","sequence_hashes":[1,2]%s}' % named
    return render_request(body, b"/reservations")


def _free(name: bytes) -> bytes:
    return render_request(b"", b"/reservations/" + name, b"DELETE")


def _texts() -> Iterator[Case]:
    for text in [b"i" * n for n in LENGTHS] + [b"a%sb" % byte for byte in (*BYTES, *ESCAPES)]:
        yield "selection id", render_request(TOKENS % (b',"selection_id":"%s"' % text))
        booked = render_request(TOKENS % (b',"reservation_id":"%s"' % text), b"/select_and_reserve")
        yield "reservation id", booked + _free(text)
        yield "model", render_request(b'{"model_name":"%s","token_ids":[1,2,3,4]}' % text)
        yield "key", render_request(TOKENS % (b',"%s":"a"' % text))
        yield "path", render_request(b"", b"/reservations/%s/renew" % text)


def _bodies() -> Iterator[Case]:
    for member in MEMBERS:
        for path in (b"/select", b"/select_and_reserve", b"/reservations"):
            yield f"member {member!r}", render_request(TOKENS % member, path)
    for byte in BYTES:
        for body in (
            byte + USUAL_BODY,
            USUAL_BODY + byte,
            USUAL_BODY.replace(b",", b"," + byte, 1),
        ):
            yield "a byte in a body", render_request(body)


def _heads() -> Iterator[Case]:
    """Yield heads, each with a following request that must not be taken for something else."""
    rest = b"Host: a\r\nContent-Type: application/json\r\n"
    behind = render_request(USUAL_BODY)
    for line in LINES:
        yield "request line", line + b"\r\n" + rest + LENGTH + b"\r\n" + USUAL_BODY + behind
    for head in HEADS:
        yield "head", b"POST /select HTTP/1.1\r\n" + rest + head + b"\r\n" + USUAL_BODY + behind
    for byte in BYTES:
        yield "a byte in a value", render_request(USUAL_BODY, headers=b"X-A: a%sb\r\n" % byte)
        yield "a byte in a name", render_request(USUAL_BODY, headers=b"X%sA: b\r\n" % byte)
        yield "a byte before", byte + render_request(USUAL_BODY)
