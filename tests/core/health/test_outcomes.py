"""Tests of the outcomes that callers report: trusted and ignored reports."""

import pytest

from select_service.core.health import outcome_trust
from select_service.core.health.health_kinds import RequestOutcome
from select_service.core.health.outcome_trust import (
    RETENTION_S,
    EndedReservations,
    OutcomeReport,
    ReportTrust,
    outcome_of_status,
)
from select_service.core.identity import Rank

A, B = Rank(1, 0), Rank(2, 0)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, RequestOutcome.OK),
        (204, RequestOutcome.OK),
        (302, RequestOutcome.NEUTRAL),
        (400, RequestOutcome.NEUTRAL),
        (404, RequestOutcome.NEUTRAL),
        (429, RequestOutcome.NEUTRAL),
        (499, RequestOutcome.NEUTRAL),
        (500, RequestOutcome.FAILURE),
        (502, RequestOutcome.FAILURE),
        (503, RequestOutcome.NEUTRAL),
        (504, RequestOutcome.FAILURE),
    ],
)
def test_a_status_decides_between_faults_of_client_and_rank(status, outcome):
    assert outcome_of_status(status) is outcome


def a_failure(reservation_id="r", is_trusted=False, rank=A):
    return OutcomeReport(rank, RequestOutcome.FAILURE, reservation_id, is_trusted)


def test_a_failure_counts_with_a_reservation_that_was_there_and_once():
    believing = ReportTrust()
    assert believing.is_trusted(a_failure(), A, 0.0)
    assert not believing.is_trusted(a_failure(), A, 1.0)
    assert not believing.is_trusted(a_failure(is_trusted=True), A, 1.0), "at most one of each"
    assert not believing.is_trusted(a_failure("other"), B, 1.0)
    assert not believing.is_trusted(a_failure("other"), None, 1.0)
    assert not believing.is_trusted(a_failure(None), None, 1.0)


def test_a_trusted_reporter_needs_no_reservation():
    believing = ReportTrust()
    for _ in range(3):
        assert believing.is_trusted(a_failure(None, is_trusted=True), None, 0.0)
    assert believing.is_trusted(a_failure("unknown", is_trusted=True), None, 0.0)


def test_successes_count_from_every_reporter():
    assert ReportTrust().is_trusted(OutcomeReport(A, RequestOutcome.OK), None, 0.0)
    assert ReportTrust().is_trusted(OutcomeReport(A, RequestOutcome.NEUTRAL), None, 0.0)


def test_reports_are_forgotten_after_a_time_and_beyond_a_bound(monkeypatch):
    believing = ReportTrust()
    believing.is_trusted(a_failure("a"), A, 0.0)
    assert believing.is_trusted(a_failure("a"), A, RETENTION_S + 1)
    monkeypatch.setattr(outcome_trust, "RETAINED_MAX", 2)
    for name in "bcd":
        believing.is_trusted(a_failure(name), A, RETENTION_S + 2)
    assert believing.is_trusted(a_failure("b"), A, RETENTION_S + 2)


def test_the_rank_of_an_ended_reservation_is_kept_for_a_while(monkeypatch):
    ended = EndedReservations()
    ended.record_end("a", A, 0.0)
    ended.record_end("b", B, 300.0)
    assert ended.rank_of("a", RETENTION_S) == A
    assert ended.rank_of("a", RETENTION_S + 1) is None
    assert ended.rank_of("b", RETENTION_S + 1) == B
    assert ended.rank_of("c", 0.0) is None
    monkeypatch.setattr(outcome_trust, "RETAINED_MAX", 2)
    for name in "cd":
        ended.record_end(name, A, 301.0)
    assert ended.rank_of("b", 301.0) is None
