"""How handshakes ended, and how the files of TLS are.  Without TLS there are no series."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import COUNTER, GAUGE, Family, itself, series_of
from select_service.tls.handshakes import HandshakeCounts
from select_service.tls.kept import TlsReport


class TlsSeen(NamedTuple):
    """handshakes: None: plain HTTP is served;  files: by the side, `server` or `client`"""

    handshakes: HandshakeCounts | None
    files: Mapping[str, TlsReport]


_ENDED = "tls_handshakes"
_ENDED_HELP = "Handshakes of connections to this service, by how they ended."
HANDSHAKES: Sequence[Family[HandshakeCounts]] = (
    Family(COUNTER, _ENDED, _ENDED_HELP, lambda c: c.completed, (("result", "ok"),)),
    Family(COUNTER, _ENDED, _ENDED_HELP, lambda c: c.failed, (("result", "failed"),)),
    Family(COUNTER, _ENDED, _ENDED_HELP, lambda c: c.refused, (("result", "refused"),)),
    Family(COUNTER, _ENDED, _ENDED_HELP, lambda c: c.abandoned, (("result", "abandoned"),)),
    Family(GAUGE, "tls_handshakes_open", "Handshakes that are not complete.", lambda c: c.open),
)
_READ = "tls_readings"
_READ_HELP = "Readings of changed files of TLS, by result."
FILES: Sequence[Family[TlsReport]] = (
    Family(COUNTER, _READ, _READ_HELP, lambda r: r.readings, (("result", "ok"),)),
    Family(COUNTER, _READ, _READ_HELP, lambda r: r.failures, (("result", "failed"),)),
    Family(
        GAUGE,
        "tls_stale",
        "1 while files of TLS are wrong, so that those before go on counting.",
        lambda r: r.is_stale,
    ),
)
ENDS: Sequence[Family[float]] = (
    Family(
        GAUGE,
        "tls_certificate_expires_timestamp_seconds",
        "When the certificate that is shown ends, or one of its chain before it: since 1970.",
        itself,
    ),
)
_SIDE = ("side",)


def of_tls(seen: TlsSeen) -> Iterator[Metric]:
    if seen.handshakes is not None:
        yield from series_of(HANDSHAKES, (), {(): seen.handshakes})
    yield from series_of(FILES, _SIDE, {(side,): report for side, report in seen.files.items()})
    ends = {(side,): r.ends_at for side, r in seen.files.items() if r.ends_at is not None}
    yield from series_of(ENDS, _SIDE, ends)
