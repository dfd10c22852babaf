"""Digests: the active load of a replica in a few numbers, and the comparison of two digests.

Once a second every replica publishes, in its event stream, one line per partition and origin:
number of reservations, prefill tokens, sum of marks, and number of unfinished prefills. Other
implementations do not subscribe to the topic.

Lines about reservations admitted by the sender are authoritative. Events and digests come in order
over one connection, so a receiver without losses has exactly the same numbers. Lines of other
origins count only for origins without a live replica (`peer_origins`).

Bytes: a msgpack map with named fields; unknown fields are ignored.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct

from select_service.core.identity import PartitionKey
from select_service.core.load.origin_sums import EMPTY_SUM, OriginSum, OriginSums
from select_service.core.replication.load_events import DETAIL_CHARS_MAX, PeerFrameError
from select_service.net.urls import service_url_error
from select_service.schemas.common import NAME_CHARS_MAX

DIGEST_TOPIC = b"select-service.digest.v1"
LINES_MAX = 2048
HEARD_MAX = 1024
URL_CHARS_MAX = 512
DIGEST_BYTES_MAX = 1280 * 1024
"""About 600 bytes per line; a digest that is longer because of its names is not sent."""

_Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
_Unsigned = Annotated[int, Meta(ge=0)]
_Count = Annotated[int, Meta(ge=0, le=2**62)]


class DigestLine(Struct, array_like=True, frozen=True):
    """Sums of a partition and origin.

    prefilling: None in messages of older versions, which neither send nor read the field
    """

    model_name: _Name
    tenant_id: _Name
    origin: _Unsigned
    requests: _Count
    prefill_tokens: _Count
    marks: _Unsigned
    prefilling: _Count | None = None


class Receipt(Struct, array_like=True, frozen=True):
    """Number of messages of a replica that the sender has received."""

    router_id: _Unsigned
    messages: _Count


class Digest(Struct, kw_only=True, frozen=True):
    """Digest of a replica.

    number: sequence number of the digest in this process
    sent: number of events published so far
    url: its HTTP interface; None means `port` of the host that the events come from
    heard: receipts for other replicas, which show each replica how far its messages go
    own_only: lines of other origins are left out, as there were too many
    """

    router_id: _Unsigned
    number: _Count
    sent: _Count
    port: Annotated[int, Meta(ge=0, le=65535)]
    url: Annotated[str, Meta(max_length=URL_CHARS_MAX)] | None = None
    heard: Annotated[list[Receipt], Meta(max_length=HEARD_MAX)] = []
    own_only: bool = False
    lines: Annotated[list[DigestLine], Meta(max_length=LINES_MAX)]


class LoadDifference(NamedTuple):
    """Minimum difference of two replicas in a partition."""

    reservations: int = 0
    prefill_tokens: int = 0


Differences: TypeAlias = dict[PartitionKey, LoadDifference]

_NO_DIFFERENCE = LoadDifference()

_encode = msgspec.msgpack.Encoder().encode
_digest_of = msgspec.msgpack.Decoder(Digest).decode


def encode_digest(digest: Digest) -> bytes:
    return _encode(digest)


def decode_digest(payload: bytes) -> Digest:
    """Decode a digest. Raises PeerFrameError."""
    if len(payload) > DIGEST_BYTES_MAX:
        raise PeerFrameError(f"{len(payload)} bytes, at most {DIGEST_BYTES_MAX} expected")
    try:
        digest = _digest_of(payload)
    except (ValueError, RecursionError) as error:
        raise PeerFrameError(str(error)[:DETAIL_CHARS_MAX]) from None
    fault = None if digest.url is None else service_url_error(digest.url)
    if fault is not None:
        raise PeerFrameError(f"url: {fault}"[:DETAIL_CHARS_MAX])
    return digest


def make_lines(sums: OriginSums, router_id: int) -> tuple[list[DigestLine], bool]:
    """Return the lines of a digest, and whether only own lines are included."""
    own = [_make_line(key, router_id, held) for key, held in sums.sums_of_origin(None).items()]
    # Own lines always fit: the number of partitions is limited below LINES_MAX.
    if len(sums) > LINES_MAX:
        return own, True
    others = [
        _make_line(key, origin, held)
        for origin in sums.peer_origins()
        for key, held in sums.sums_of_origin(origin).items()
    ]
    return own + others, False


def _make_line(key: PartitionKey, origin: int, sums: OriginSum) -> DigestLine:
    return DigestLine(*key, origin, *sums)


def find_differences(
    digest: Digest, sums: OriginSums, own_id: int, is_orphan: Callable[[int], bool]
) -> Differences:
    """Return the differences for the sender's own reservations, and for those of orphaned origins.

    Orphaned origins are compared only if both replicas have few enough sums to include all.
    """
    compared = {digest.router_id}
    if not digest.own_only and len(sums) <= LINES_MAX:
        others = {line.origin for line in digest.lines}.union(sums.peer_origins()) - {own_id}
        # Live replicas answer for themselves; comparing their reservations here would cause
        # repairs against replicas that merely have not received the latest events.
        compared.update(filter(is_orphan, others))
    ours = {
        (key, origin): held
        for origin in compared
        for key, held in sums.sums_of_origin(origin).items()
    }
    theirs = {}
    for line in digest.lines:
        if line.origin in compared:
            place = PartitionKey(line.model_name, line.tenant_id), line.origin
            theirs[place] = _sums_of_line(line, ours.get(place, EMPTY_SUM))
    found: Differences = {}
    for place in theirs.keys() | ours.keys():
        a, b = theirs.get(place, EMPTY_SUM), ours.get(place, EMPTY_SUM)
        if a != b:
            reservations, tokens = found.get(place[0], _NO_DIFFERENCE)
            tokens += abs(a.prefill_tokens - b.prefill_tokens)
            found[place[0]] = LoadDifference(
                reservations + _min_different_reservations(a, b), tokens
            )
    return found


def _sums_of_line(line: DigestLine, ours: OriginSum) -> OriginSum:
    """Return the sums of a line; missing fields are taken from our own sums."""
    # Older peers omit the field; assuming equality avoids endless repairs during an upgrade.
    prefilling = ours.prefilling if line.prefilling is None else line.prefilling
    return OriginSum(line.requests, line.prefill_tokens, line.marks, prefilling)


def _min_different_reservations(a: OriginSum, b: OriginSum) -> int:
    """Return the minimum number of different reservations."""
    counts = abs(a.requests - b.requests), abs(a.prefilling - b.prefilling)
    # Equal counts with different marks mean at least one exchanged reservation.
    return max(*counts, int(a.marks != b.marks))


def sum_differences(differences: Iterable[LoadDifference]) -> LoadDifference:
    """Return the sum over all partitions."""
    reservations = prefill_tokens = 0
    for difference in differences:
        reservations += difference.reservations
        prefill_tokens += difference.prefill_tokens
    return LoadDifference(reservations, prefill_tokens)
