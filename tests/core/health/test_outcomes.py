"""Reports of callers: who is believed."""

import pytest

from select_service.core.health import outcomes
from select_service.core.health.kinds import Outcome
from select_service.core.health.outcomes import (
    REMEMBERED_S,
    Believing,
    EndedReservations,
    OutcomeReport,
    outcome_of_status,
)
from select_service.core.identity import Rank

A, B = Rank(1, 0), Rank(2, 0)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Outcome.OK),
        (204, Outcome.OK),
        (302, Outcome.NEUTRAL),
        (400, Outcome.NEUTRAL),
        (404, Outcome.NEUTRAL),
        (429, Outcome.NEUTRAL),
        (499, Outcome.NEUTRAL),
        (500, Outcome.FAILURE),
        (502, Outcome.FAILURE),
        (503, Outcome.NEUTRAL),
        (504, Outcome.FAILURE),
    ],
)
def test_a_status_says_whose_fault_it_was(status, outcome):
    assert outcome_of_status(status) is outcome


def a_failure(reservation_id="r", is_trusted=False, rank=A):
    return OutcomeReport(rank, Outcome.FAILURE, reservation_id, is_trusted)


def test_a_failure_counts_with_a_reservation_that_was_there_and_once():
    believing = Believing()
    assert believing.believed(a_failure(), A, 0.0)
    assert not believing.believed(a_failure(), A, 1.0)
    assert not believing.believed(a_failure(is_trusted=True), A, 1.0), "at most one of each"
    assert not believing.believed(a_failure("other"), B, 1.0)
    assert not believing.believed(a_failure("other"), None, 1.0)
    assert not believing.believed(a_failure(None), None, 1.0)


def test_a_trusted_reporter_needs_no_reservation():
    believing = Believing()
    for _ in range(3):
        assert believing.believed(a_failure(None, is_trusted=True), None, 0.0)
    assert believing.believed(a_failure("unknown", is_trusted=True), None, 0.0)


def test_good_news_is_believed_from_everybody():
    assert Believing().believed(OutcomeReport(A, Outcome.OK), None, 0.0)
    assert Believing().believed(OutcomeReport(A, Outcome.NEUTRAL), None, 0.0)


def test_what_was_reported_is_forgotten_with_time_and_room(monkeypatch):
    believing = Believing()
    believing.believed(a_failure("a"), A, 0.0)
    assert believing.believed(a_failure("a"), A, REMEMBERED_S + 1)
    monkeypatch.setattr(outcomes, "REMEMBERED_MAX", 2)
    for name in "bcd":
        believing.believed(a_failure(name), A, REMEMBERED_S + 2)
    assert believing.believed(a_failure("b"), A, REMEMBERED_S + 2)


def test_where_a_reservation_was_is_known_for_a_while(monkeypatch):
    ended = EndedReservations()
    ended.note("a", A, 0.0)
    ended.note("b", B, 300.0)
    assert ended.rank_of("a", REMEMBERED_S) == A
    assert ended.rank_of("a", REMEMBERED_S + 1) is None
    assert ended.rank_of("b", REMEMBERED_S + 1) == B
    assert ended.rank_of("c", 0.0) is None
    monkeypatch.setattr(outcomes, "REMEMBERED_MAX", 2)
    for name in "cd":
        ended.note(name, A, 301.0)
    assert ended.rank_of("b", 301.0) is None
