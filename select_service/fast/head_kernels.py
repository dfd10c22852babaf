"""The head of a usual request: its route, what its path names, where its body begins and ends.

Stricter than the parser of the ordinary path and than `http.head` behind it: whatever is read here
they read too, with the same meaning, so there is no second opinion to smuggle anything through.
Printable ASCII alone; each line ends with CR LF; the only headers with a meaning are those below,
each at most once, and in one spelling of their value where there are many.

Source: RFC 9112.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from select_service.fast.byte_kernels import (
    BLANK,
    EXACT,
    NONE,
    SMALL,
    WINDOW,
    ZERO,
    I,
    U,
    byte_at,
    bytes_of,
    printable,
    run_end,
    text_number,
    word_at,
    word_bytes,
    words_of,
)
from select_service.fast.request_layout import (
    AUTHORIZATION,
    BODY_AT,
    BODY_BYTES_MAX,
    END,
    FREE,
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    HOST_NAME,
    INCOMPLETE,
    N_FIELDS,
    PATH_ID,
    POLICY_CLASS,
    PREFILL_COMPLETE,
    RESERVE,
    ROUTE,
    TEXT_BYTES_MAX,
    UNUSUAL,
    USUAL,
)

CR, LF, COLON, SEMICOLON, OPEN, CLOSE = bytes_of(b"\r\n:;[]")

BEGINNINGS = words_of(b"POST /se", b"POST /re", b"DELETE /")
VERSION = words_of(b"HTTP/1.1")
PLAIN = words_of(b"POST /select", b"POST /select_and_reserve", b"POST /reservations")
POST_ID, DELETE_ID = words_of(b"POST /reservations/"), words_of(b"DELETE /reservations/")
SHORTEST = len(b"POST /select")
POST_ID_BYTES, DELETE_ID_BYTES = 19, 21
VERBS = words_of(b"/prefill_complete", b"/output_block", b"/renew")

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
"""Names behind these are never usual."""
JSON = words_of(b"application/json")
JSON_BYTES = 16
KEEP_ALIVE = words_of(b"keep-alive", small=True)
DIGITS_MAX = 7
HOST_BYTES_MAX = 255
VERB_BODY_BYTES_MAX = 64
"""Of the body of a route that needs none."""


@compiled()
def line_ends(data, at, end):
    """Is `at`, the end of what is printable, the end of a line?"""
    if at < end and data[U(at)] != CR:
        return UNUSUAL
    if at + 1 >= end:
        return INCOMPLETE
    return USUAL if data[U(at + 1)] == LF else UNUSUAL


@compiled()
def begins_well(data, at, end):
    """USUAL when it is worth reading on; a whole request that is shorter than a window is not."""
    if end - at >= 8 and text_number(data, at, at + 8, BEGINNINGS, EXACT) == NONE:
        return UNUSUAL
    if end >= WINDOW:
        return USUAL
    for place in range(at, end - 3):
        if data[U(place)] == CR and data[U(place + 2)] == CR:
            return UNUSUAL
    return INCOMPLETE


@compiled()
def words_end(data, at, end):
    """Place behind words and colons."""
    while True:
        at = run_end(data, at, end, word_bytes)
        if byte_at(data, at, end) != COLON:
            return at
        at += 1


@compiled()
def read_id(data, at, end, fields):
    """The id of a path from `at` on; the place behind it or UNUSUAL."""
    behind = words_end(data, at, end)
    fields[PATH_ID], fields[PATH_ID + 1] = at, behind - at
    return behind if 0 < behind - at <= TEXT_BYTES_MAX else UNUSUAL


@compiled()
def read_route(data, at, end, fields):
    """[at, end): method and target.  The route, or NONE."""
    route = text_number(data, at, end, PLAIN, EXACT)
    if route != NONE:
        return route
    first = at + DELETE_ID_BYTES
    if first < end and text_number(data, at, first, DELETE_ID, EXACT) == 0:
        return FREE if read_id(data, first, end, fields) == end else NONE
    first = at + POST_ID_BYTES
    if first >= end or text_number(data, at, first, POST_ID, EXACT) != 0:
        return NONE
    behind = read_id(data, first, end, fields)
    verb = text_number(data, behind, end, VERBS, EXACT) if behind > 0 else NONE
    return NONE if verb == NONE else PREFILL_COMPLETE + verb


@compiled()
def read_request_line(data, at, end, fields):
    """0 or UNUSUAL."""
    target_end = end - 9
    if target_end < at + SHORTEST or data[U(target_end)] != BLANK:
        return UNUSUAL
    if word_at(data, end - 8) != VERSION[0, 0]:
        return UNUSUAL
    fields[ROUTE] = read_route(data, at, target_end, fields)
    return 0 if fields[ROUTE] != NONE else UNUSUAL


@compiled()
def number_at(data, at, end):
    """The short number that [at, end) is, or NONE."""
    n = end - at
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
    """A name, an IPv4 address or an IPv6 address in brackets; with or without a port."""
    if byte_at(data, at, end) == OPEN:
        behind = words_end(data, at + 1, end)
        if behind == at + 1 or byte_at(data, behind, end) != CLOSE:
            return False
        behind += 1
    else:
        behind = run_end(data, at, end, word_bytes)
    if behind == at or end - at > HOST_BYTES_MAX:
        return False
    if behind == end:
        return True
    return data[U(behind)] == COLON and number_at(data, behind + 1, end) != NONE


@compiled()
def is_json(data, at, end):
    """The media type application/json, whatever its parameters."""
    behind = at + JSON_BYTES
    if behind > end or text_number(data, at, behind, JSON, EXACT) != 0:
        return False
    return behind == end or data[U(behind)] == SEMICOLON


@compiled()
def is_usual(name, data, at, end, fields):
    """Is [at, end) a usual value of the header?  Notes what it says."""
    if name == HOST:
        fields[HOST_NAME], fields[HOST_NAME + 1] = at, end - at
        return is_host(data, at, end)
    if name == KEY:  # what it is worth is judged behind here (guard_kernels)
        fields[AUTHORIZATION], fields[AUTHORIZATION + 1] = at, end - at
        return True
    if name == TYPE:
        return is_json(data, at, end)
    if name == LENGTH:
        fields[END] = number_at(data, at, end)
        return fields[END] != NONE
    if name == CONNECTION:
        return text_number(data, at, end, KEEP_ALIVE, SMALL) == 0
    fields[POLICY_CLASS], fields[POLICY_CLASS + 1] = at, end - at
    return name == CLASS and at < end and words_end(data, at, end) == end


@compiled()
def read_header(data, at, end, fields, given):
    """Read the line [at, end); `given` with the bit of its name when that means something.

    UNUSUAL when it is not usual, or was given before.
    """
    colon = run_end(data, at, end, word_bytes)
    if colon == at or byte_at(data, colon, end) != COLON:
        return UNUSUAL
    name = text_number(data, at, colon, NAMES, SMALL)
    if name == NONE:
        return given
    value = colon + 1
    value += I(byte_at(data, value, end) == BLANK)
    usual = (given >> name) & 1 == 0 and is_usual(name, data, value, end, fields)
    return given | (1 << name) if usual else UNUSUAL


@compiled()
def judged(fields, given, at):
    """The head ends at `at`; given: bit by number of the headers that mean something."""
    length = max(fields[END], 0)
    has_prompt = fields[ROUTE] <= RESERVE
    if (given >> HOST) & 1 == 0 or ((given >> TYPE) & 1 == 0 and (has_prompt or length > 0)):
        return UNUSUAL
    bound = BODY_BYTES_MAX if has_prompt else VERB_BODY_BYTES_MAX
    if length > bound or (has_prompt and length == 0):
        return UNUSUAL
    fields[BODY_AT], fields[END] = at, at + length
    return USUAL


@compiled()
def read_lines(data, at, end, fields):
    """The request line and the headers: USUAL, INCOMPLETE or UNUSUAL."""
    given, n = I(0), 0
    while n <= HEADERS_MAX + 1 and given >= 0:
        line = run_end(data, at, end, printable)
        state = line_ends(data, line, end)
        if state != USUAL:
            return state
        if line == at:
            return judged(fields, given, at + 2)
        if n == 0:
            given = read_request_line(data, at, line, fields)
        else:
            given = read_header(data, at, line, fields, given)
        at, n = line + 2, n + 1
    return UNUSUAL


@compiled()
def read_head(data, at, end, fields):
    """Read the head of the request at `at`: USUAL, INCOMPLETE or UNUSUAL.

    data: bytes, or uint8[>= end], as they came
    fields: int64[N_FIELDS], out; all of them when the head is usual
    """
    for k in range(N_FIELDS):
        fields[k] = NONE
    bound = min(end, at + HEAD_BYTES_MAX)
    state = begins_well(data, at, bound)
    if state == USUAL:
        state = read_lines(data, at, bound, fields)
    if state == INCOMPLETE:
        fields[END] = NONE  # not before all headers are there
    return UNUSUAL if state == INCOMPLETE and end - at >= HEAD_BYTES_MAX else state
