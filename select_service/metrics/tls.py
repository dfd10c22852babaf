"""Metrics of TLS handshakes and files; none without TLS."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import COUNTER, GAUGE, FamilyRow, make_series, record_itself
from select_service.net.tls.current_tls import TlsReport
from select_service.net.tls.server_handshakes import HandshakeCounts


class TlsFigures(NamedTuple):
    """Figures of TLS.

    handshakes: None when the service uses plain HTTP
    files: by side, `server` or `client`
    """

    handshakes: HandshakeCounts | None
    files: Mapping[str, TlsReport]


_ENDED = "tls_handshakes"
_ENDED_HELP = "Handshakes of incoming connections by result."
HANDSHAKES: Sequence[FamilyRow[HandshakeCounts]] = (
    FamilyRow(COUNTER, _ENDED, _ENDED_HELP, lambda c: c.completed, (("result", "ok"),)),
    FamilyRow(COUNTER, _ENDED, _ENDED_HELP, lambda c: c.failed, (("result", "failed"),)),
    FamilyRow(COUNTER, _ENDED, _ENDED_HELP, lambda c: c.refused, (("result", "refused"),)),
    FamilyRow(COUNTER, _ENDED, _ENDED_HELP, lambda c: c.abandoned, (("result", "abandoned"),)),
    FamilyRow(GAUGE, "tls_handshakes_open", "Handshakes in progress.", lambda c: c.open),
)
_READ = "tls_readings"
_READ_HELP = "Reloads of TLS files by result."
FILES: Sequence[FamilyRow[TlsReport]] = (
    FamilyRow(COUNTER, _READ, _READ_HELP, lambda r: r.readings, (("result", "ok"),)),
    FamilyRow(COUNTER, _READ, _READ_HELP, lambda r: r.failures, (("result", "failed"),)),
    FamilyRow(
        GAUGE,
        "tls_stale",
        "1 while TLS files are invalid and older ones are in use.",
        lambda r: r.is_stale,
    ),
)
ENDS: Sequence[FamilyRow[float]] = (
    FamilyRow(
        GAUGE,
        "tls_certificate_expires_timestamp_seconds",
        "Earliest expiry of the certificate and its chain, in seconds since 1970.",
        record_itself,
    ),
)
_SIDE = ("side",)


def tls_metrics(seen: TlsFigures) -> Iterator[Metric]:
    if seen.handshakes is not None:
        yield from make_series(HANDSHAKES, (), {(): seen.handshakes})
    yield from make_series(FILES, _SIDE, {(side,): report for side, report in seen.files.items()})
    ends = {(side,): r.ends_at for side, r in seen.files.items() if r.ends_at is not None}
    yield from make_series(ENDS, _SIDE, ends)
