"""Metrics of TLS handshakes and files; none without TLS."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from select_service.metrics.series import FamilyRow, make_process_series, make_series
from select_service.net.tls.current_tls import TlsReport
from select_service.net.tls.server_handshakes import HandshakeCounts


class TlsFigures(NamedTuple):
    """Figures of TLS.

    handshakes: None when the service uses plain HTTP
    files: by side, `server` or `client`
    """

    handshakes: HandshakeCounts | None
    files: Mapping[str, TlsReport]


HANDSHAKES: Sequence[FamilyRow[HandshakeCounts]] = (
    FamilyRow(
        "tls_handshakes_total",
        "Finished TLS handshakes of incoming connections, by result.",
        lambda c: {
            "ok": c.completed,
            "failed": c.failed,
            "refused": c.refused,
            "abandoned": c.abandoned,
        },
        ("result",),
    ),
    FamilyRow(
        "tls_handshakes_open",
        "TLS handshakes of incoming connections in progress now.",
        lambda c: c.open,
    ),
)
FILES: Sequence[FamilyRow[TlsReport]] = (
    FamilyRow(
        "tls_readings_total",
        "Readings of changed TLS files, by result; with `failed` the earlier files stay in force.",
        lambda r: {"ok": r.readings, "failed": r.failures},
        ("result",),
    ),
    FamilyRow(
        "tls_stale",
        "1 while TLS files are invalid and older ones are in use.",
        lambda r: r.is_stale,
    ),
    FamilyRow(
        "tls_certificate_expires_timestamp_seconds",
        "Earliest expiry of the certificate and its chain, in seconds since 1970.",
        lambda r: r.ends_at,
    ),
)


def tls_metrics(seen: TlsFigures) -> Iterator[Metric]:
    yield from make_process_series(HANDSHAKES, seen.handshakes)
    yield from make_series(FILES, ("side",), {(side,): file for side, file in seen.files.items()})
