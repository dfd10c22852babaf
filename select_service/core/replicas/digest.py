"""A digest: what a replica believes about active load, in a few numbers, and comparing two of them.

Once a second every replica publishes, in the stream of its events, one line per partition and
origin: how many reservations it holds, their prefill tokens, the sum of their marks, and how many
prefills are not over.  The topic is one that other implementations do not read.

About the reservations that the sender admitted its word counts, and because its events and digests
come in order over one connection, a receiver that missed nothing has the very same numbers.  Lines
of other origins count only where nobody else answers for them (`origins`).

Bytes: a msgpack map with named fields; unknown ones are ignored.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct

from select_service.bodies.common import NAME_CHARS_MAX
from select_service.core.identity import PartitionKey
from select_service.core.load.origin_sums import NOTHING, OriginSums, Sum
from select_service.core.replicas.events import DETAIL_CHARS_MAX, FrameError
from select_service.urls import service_url_error

TOPIC = b"select-service.digest.v1"
LINES_MAX = 2048
HEARD_MAX = 1024
URL_CHARS_MAX = 512
DIGEST_BYTES_MAX = 1280 * 1024
"""Some 600 bytes for each line; one that is longer, for its names, is not sent."""

_Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
_Unsigned = Annotated[int, Meta(ge=0)]
_Count = Annotated[int, Meta(ge=0, le=2**62)]


class Line(Struct, array_like=True, frozen=True):
    """One partition and origin.  prefilling: None: an older version does not tell, nor read it."""

    model_name: _Name
    tenant_id: _Name
    origin: _Unsigned
    requests: _Count
    prefill_tokens: _Count
    marks: _Unsigned
    prefilling: _Count | None = None


class Receipt(Struct, array_like=True, frozen=True):
    """How many messages of a replica the sender has read since it first heard of it."""

    router_id: _Unsigned
    messages: _Count


class Digest(Struct, kw_only=True, frozen=True):
    """number: counts the digests of this process.  sent: events that it has published so far.

    url: where its HTTP interface is; None: on `port` of the host that the events come from.
    heard: what arrived here of others, so that each can see how far its messages go.
    own_only: there were too many lines, and those of other origins are left out.
    """

    router_id: _Unsigned
    number: _Count
    sent: _Count
    port: Annotated[int, Meta(ge=0, le=65535)]
    url: Annotated[str, Meta(max_length=URL_CHARS_MAX)] | None = None
    heard: Annotated[list[Receipt], Meta(max_length=HEARD_MAX)] = []
    own_only: bool = False
    lines: Annotated[list[Line], Meta(max_length=LINES_MAX)]


class Difference(NamedTuple):
    """How far two replicas are apart, at least, in one partition."""

    reservations: int = 0
    prefill_tokens: int = 0


Differences: TypeAlias = dict[PartitionKey, Difference]

_NO_DIFFERENCE = Difference()

_encode = msgspec.msgpack.Encoder().encode
_digest_of = msgspec.msgpack.Decoder(Digest).decode


def encode(digest: Digest) -> bytes:
    return _encode(digest)


def decode(payload: bytes) -> Digest:
    """Raises FrameError."""
    if len(payload) > DIGEST_BYTES_MAX:
        raise FrameError(f"{len(payload)} bytes, at most {DIGEST_BYTES_MAX} expected")
    try:
        digest = _digest_of(payload)
    except (ValueError, RecursionError) as error:
        raise FrameError(str(error)[:DETAIL_CHARS_MAX]) from None
    fault = None if digest.url is None else service_url_error(digest.url)
    if fault is not None:
        raise FrameError(f"its url: {fault}"[:DETAIL_CHARS_MAX])
    return digest


def lines_of(sums: OriginSums, router_id: int) -> tuple[list[Line], bool]:
    """The lines of a digest, and whether they are only those of our own."""
    own = [_line(key, router_id, held) for key, held in sums.of(None).items()]
    if len(sums) > LINES_MAX:
        return own, True
    others = [
        _line(key, origin, held)
        for origin in sums.origins()
        for key, held in sums.of(origin).items()
    ]
    return own + others, False


def _line(key: PartitionKey, origin: int, held: Sum) -> Line:
    return Line(*key, origin, *held)


def differences(
    digest: Digest, sums: OriginSums, own_id: int, is_orphan: Callable[[int], bool]
) -> Differences:
    """Where the sender and we differ, on what it answers for and on what nobody does.

    What nobody answers for is compared only where both have few enough sums to tell of it.
    """
    compared = {digest.router_id}
    if not digest.own_only and len(sums) <= LINES_MAX:
        others = {line.origin for line in digest.lines}.union(sums.origins()) - {own_id}
        compared.update(filter(is_orphan, others))
    ours = {(key, origin): held for origin in compared for key, held in sums.of(origin).items()}
    theirs = {}
    for line in digest.lines:
        if line.origin in compared:
            place = PartitionKey(line.model_name, line.tenant_id), line.origin
            theirs[place] = _told(line, ours.get(place, NOTHING))
    found: Differences = {}
    for place in theirs.keys() | ours.keys():
        a, b = theirs.get(place, NOTHING), ours.get(place, NOTHING)
        if a != b:
            reservations, tokens = found.get(place[0], _NO_DIFFERENCE)
            tokens += abs(a.prefill_tokens - b.prefill_tokens)
            found[place[0]] = Difference(reservations + _differing(a, b), tokens)
    return found


def _told(line: Line, ours: Sum) -> Sum:
    """What a line says; what it leaves out is as it is here."""
    prefilling = ours.prefilling if line.prefilling is None else line.prefilling
    return Sum(line.requests, line.prefill_tokens, line.marks, prefilling)


def _differing(a: Sum, b: Sum) -> int:
    """Reservations that differ, at least."""
    counts = abs(a.requests - b.requests), abs(a.prefilling - b.prefilling)
    return max(*counts, int(a.marks != b.marks))


def total(found: Iterable[Difference]) -> Difference:
    """All partitions together."""
    reservations = prefill_tokens = 0
    for difference in found:
        reservations += difference.reservations
        prefill_tokens += difference.prefill_tokens
    return Difference(reservations, prefill_tokens)
