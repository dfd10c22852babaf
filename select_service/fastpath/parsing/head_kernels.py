"""Parser of the head of a common request: route, id in the path, and bounds of the body.

Stricter than the parser of the ordinary path and than `http.request_head` after it: both accept
every head accepted here, with the same meaning, so that no request can be smuggled past either.
Only printable ASCII; each line ends with CR LF; only the headers below have a meaning, each at most
once, with a single accepted spelling where several exist.

Source: RFC 9112.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.jit.decorators import compiled
from indexer.jit.memory_kernels import word_at
from select_service.fastpath.parsing.byte_kernels import (
    BLANK,
    CASE_SENSITIVE,
    LOWER_CASE,
    NONE,
    WINDOW,
    ZERO,
    I,
    U,
    byte_at,
    bytes_of,
    index_of_text,
    printable_mask,
    run_end,
    word_mask,
    words_of,
)
from select_service.fastpath.parsing.request_layout import (
    AUTHORIZATION,
    BODY_AT,
    BODY_BYTES_MAX,
    COMMON,
    END,
    FREE,
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    HOST_NAME,
    INCOMPLETE,
    LENGTH_TEXT,
    N_FIELDS,
    NOT_COMMON,
    PATH_ID,
    POLICY_CLASS,
    PREFILL_COMPLETE,
    ROUTE,
    TEXT_BYTES_MAX,
)

CR, LF, COLON, SEMICOLON, OPEN, CLOSE = bytes_of(b"\r\n:;[]")

BEGINNINGS = words_of(b"POST /se", b"POST /re", b"DELETE /")
VERSION = words_of(b"HTTP/1.1")
PLAIN = words_of(
    b"POST /select",
    b"POST /select_and_reserve",
    b"POST /reservations",
    b"POST /select_pair",
    b"POST /select_pair_and_reserve",
)
POST_ID, DELETE_ID = words_of(b"POST /reservations/"), words_of(b"DELETE /reservations/")
SHORTEST = len(b"POST /select")
POST_ID_BYTES, DELETE_ID_BYTES = 19, 21
LIFECYCLE_PATHS = words_of(b"/prefill_complete", b"/output_block", b"/renew", b"/first_token")

NAMES = words_of(
    b"host",
    b"content-length",
    b"content-type",
    b"connection",
    b"x-dynamo-meta-policy-class",
    b"authorization",
    b"transfer-encoding",
    b"expect",
    b"upgrade",
    b"http2-settings",
    b"proxy-connection",
    b"origin",
    small=True,
)
HOST, LENGTH, TYPE, CONNECTION, CLASS, KEY = range(6)
"""Numbers of the accepted headers; requests with a header later in NAMES are never common."""
JSON = words_of(b"application/json")
JSON_BYTES = 16
KEEP_ALIVE = words_of(b"keep-alive", small=True)
DIGITS_MAX = 7
HOST_BYTES_MAX = 255
LIFECYCLE_BODY_BYTES_MAX = 64
"""Longest body of a route that needs none, bytes."""


@compiled()
def check_line_end(data, at, end):
    """Return whether a line ends at `at`, the end of the printable characters."""
    if at < end and data[U(at)] != CR:
        return NOT_COMMON
    if at + 1 >= end:
        return INCOMPLETE
    return COMMON if data[U(at + 1)] == LF else NOT_COMMON


@compiled()
def check_beginning(data, at, end):
    """Return COMMON if parsing is worthwhile; a complete request shorter than a window never is."""
    if end - at >= 8 and index_of_text(data, at, at + 8, BEGINNINGS, CASE_SENSITIVE) == NONE:
        return NOT_COMMON
    if end >= WINDOW:
        return COMMON
    for place in range(at, end - 3):
        if data[U(place)] == CR and data[U(place + 2)] == CR:
            return NOT_COMMON
    return INCOMPLETE


@compiled()
def words_end(data, at, end):
    """Return the offset after words and colons."""
    while True:
        at = run_end(data, at, end, word_mask)
        if byte_at(data, at, end) != COLON:
            return at
        at += 1


@compiled()
def read_id(data, at, end, fields):
    """Parse the id of a path; returns the offset after it or NOT_COMMON."""
    behind = words_end(data, at, end)
    fields[PATH_ID], fields[PATH_ID + 1] = at, behind - at
    return behind if 0 < behind - at <= TEXT_BYTES_MAX else NOT_COMMON


@compiled()
def read_route(data, at, end, fields):
    """Return the route of the method and target in [at, end), or NONE."""
    route = index_of_text(data, at, end, PLAIN, CASE_SENSITIVE)
    if route != NONE:
        return route
    first = at + DELETE_ID_BYTES
    if first < end and index_of_text(data, at, first, DELETE_ID, CASE_SENSITIVE) == 0:
        return FREE if read_id(data, first, end, fields) == end else NONE
    first = at + POST_ID_BYTES
    if first >= end or index_of_text(data, at, first, POST_ID, CASE_SENSITIVE) != 0:
        return NONE
    behind = read_id(data, first, end, fields)
    verb = index_of_text(data, behind, end, LIFECYCLE_PATHS, CASE_SENSITIVE) if behind > 0 else NONE
    return NONE if verb == NONE else PREFILL_COMPLETE + verb


@compiled()
def read_request_line(data, at, end, fields):
    """Parse the request line: 0 or NOT_COMMON."""
    target_end = end - 9
    if target_end < at + SHORTEST or data[U(target_end)] != BLANK:
        return NOT_COMMON
    if word_at(data, end - 8) != VERSION[0, 0]:
        return NOT_COMMON
    fields[ROUTE] = read_route(data, at, target_end, fields)
    return 0 if fields[ROUTE] != NONE else NOT_COMMON


@compiled()
def number_at(data, at, end):
    """Return the short number in [at, end), or NONE."""
    n = end - at
    # A leading zero is left to the ordinary path, so that one spelling of each length remains.
    if n < 1 or n > DIGITS_MAX or (n > 1 and data[U(at)] == ZERO):
        return NONE
    value = 0
    for place in range(at, end):
        digit = I(data[U(place)]) - ZERO
        if digit < 0 or digit > 9:
            return NONE
        value = 10 * value + digit
    return value


@compiled()
def is_host(data, at, end):
    """Return whether [at, end) is a name, an IPv4 address or an IPv6 address in brackets, with
    optional port.
    """
    if byte_at(data, at, end) == OPEN:
        behind = words_end(data, at + 1, end)
        if behind == at + 1 or byte_at(data, behind, end) != CLOSE:
            return False
        behind += 1
    else:
        behind = run_end(data, at, end, word_mask)
    if behind == at or end - at > HOST_BYTES_MAX:
        return False
    if behind == end:
        return True
    return data[U(behind)] == COLON and number_at(data, behind + 1, end) != NONE


@compiled()
def is_json(data, at, end):
    """Return whether [at, end) is the media type application/json, with any parameters."""
    behind = at + JSON_BYTES
    if behind > end or index_of_text(data, at, behind, JSON, CASE_SENSITIVE) != 0:
        return False
    return behind == end or data[U(behind)] == SEMICOLON


@compiled()
def accept_header(name, data, at, end, fields):
    """Return whether [at, end) is an accepted value of the header, and record the value."""
    if name == HOST:
        fields[HOST_NAME], fields[HOST_NAME + 1] = at, end - at
        return is_host(data, at, end)
    if name == KEY:  # checked later (guard_kernels)
        fields[AUTHORIZATION], fields[AUTHORIZATION + 1] = at, end - at
        return True
    if name == TYPE:
        return is_json(data, at, end)
    if name == LENGTH:
        fields[LENGTH_TEXT], fields[LENGTH_TEXT + 1] = at, end - at
        fields[END] = number_at(data, at, end)
        return fields[END] != NONE
    if name == CONNECTION:
        return index_of_text(data, at, end, KEEP_ALIVE, LOWER_CASE) == 0
    fields[POLICY_CLASS], fields[POLICY_CLASS + 1] = at, end - at
    return name == CLASS and at < end and words_end(data, at, end) == end


@compiled()
def read_header(data, at, end, fields, given):
    """Parse the line [at, end); returns `given` with the bit of a header that has a meaning.

    NOT_COMMON for a value that is not accepted, or a duplicate.
    """
    colon = run_end(data, at, end, word_mask)
    if colon == at or byte_at(data, colon, end) != COLON:
        return NOT_COMMON
    name = index_of_text(data, at, colon, NAMES, LOWER_CASE)
    if name == NONE:
        return given
    value = colon + 1
    value += I(byte_at(data, value, end) == BLANK)
    # Of duplicates, parsers keep either: leave the decision to the ordinary path.
    usual = (given >> name) & 1 == 0 and accept_header(name, data, value, end, fields)
    return given | (1 << name) if usual else NOT_COMMON


@compiled()
def check_head_complete(fields, given, at):
    """Check the complete head, which ends at `at`.  given: bits of the headers found"""
    # Without content-length END is NONE, which means no body.
    length = max(fields[END], 0)
    has_prompt = fields[ROUTE] < PREFILL_COMPLETE
    if (given >> HOST) & 1 == 0 or ((given >> TYPE) & 1 == 0 and (has_prompt or length > 0)):
        return NOT_COMMON
    bound = BODY_BYTES_MAX if has_prompt else LIFECYCLE_BODY_BYTES_MAX
    if length > bound or (has_prompt and length == 0):
        return NOT_COMMON
    fields[BODY_AT], fields[END] = at, at + length
    return COMMON


@compiled()
def read_lines(data, at, end, fields):
    """Parse the request line and the headers: COMMON, INCOMPLETE or NOT_COMMON."""
    given, n = I(0), 0
    while n <= HEADERS_MAX + 1 and given >= 0:
        line = run_end(data, at, end, printable_mask)
        state = check_line_end(data, line, end)
        if state != COMMON:
            return state
        if line == at:
            return check_head_complete(fields, given, at + 2)
        if n == 0:
            given = read_request_line(data, at, line, fields)
        else:
            given = read_header(data, at, line, fields, given)
        at, n = line + 2, n + 1
    return NOT_COMMON


@compiled()
def read_head(data, at, end, fields):
    """Parse the head of the request at `at`: COMMON, INCOMPLETE or NOT_COMMON.

    data: bytes, or uint8[>= end], as received
    fields: int64[N_FIELDS], output; complete if the head is COMMON
    """
    for k in range(N_FIELDS):
        fields[k] = NONE
    bound = min(end, at + HEAD_BYTES_MAX)
    state = check_beginning(data, at, bound)
    if state == COMMON:
        state = read_lines(data, at, bound, fields)
    if state == INCOMPLETE:
        fields[END] = NONE  # unknown before the end of the head
    return NOT_COMMON if state == INCOMPLETE and end - at >= HEAD_BYTES_MAX else state
