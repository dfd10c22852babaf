"""Tests of the log of health changes, and of its rate limit."""

import logging

import pytest

from select_service.adapters.health.rank_state_log import LINES_PER_SECOND_MAX, RankStateLog
from select_service.core.health.checks.check_state import HealthCounters
from select_service.core.health.health_effects import (
    CheckRequested,
    ChecksAccepted,
    ChecksRefused,
    DrainFinished,
    EjectionWithheld,
    ReleaseRequested,
    SparePromoted,
    StateChanged,
)
from select_service.core.health.health_kinds import CheckKind, RankHealthState
from select_service.core.identity import Rank

RANK, OTHER = Rank(1, 2), Rank(3, 0)


@pytest.fixture
def log_lines(caplog):
    """Return a function for the levels, texts and fields of the log."""
    caplog.set_level(logging.INFO, "select_service.health")
    return lambda: [(r.levelname, r.message, r.fields) for r in caplog.records]


@pytest.mark.parametrize(
    ("effect", "level", "fields"),
    [
        (
            StateChanged(
                RANK, RankHealthState.SUSPICIOUS, RankHealthState.UNHEALTHY, CheckKind.CONNECT
            ),
            "WARNING",
            {"was": "suspicious", "state": "unhealthy", "cause": "connect"},
        ),
        (
            StateChanged(
                RANK, RankHealthState.HEALTHY, RankHealthState.DRAINING, CheckKind.OPERATOR
            ),
            "INFO",
            {"was": "healthy", "state": "draining", "cause": "operator"},
        ),
        (
            StateChanged(RANK, RankHealthState.UNHEALTHY, RankHealthState.HEALTHY, None),
            "INFO",
            {"was": "unhealthy", "state": "healthy"},
        ),
        (EjectionWithheld(RANK, CheckKind.TIMEOUT), "WARNING", {"cause": "timeout"}),
        (SparePromoted(RANK, OTHER), "INFO", {"failed_worker_id": 3, "failed_dp_rank": 0}),
        (DrainFinished(RANK), "INFO", {}),
        (
            ChecksRefused(RANK, "http://e", "m", "status 404: no such model"),
            "WARNING",
            {"endpoint": "http://e", "model_name": "m", "why": "status 404: no such model"},
        ),
        (ChecksAccepted(RANK), "INFO", {}),
        (ReleaseRequested(RANK, 7), "WARNING", {"reservations": 7}),
    ],
)
def test_every_state_change_of_a_rank_is_one_line(log_lines, effect, level, fields):
    RankStateLog(HealthCounters()).on_effect(effect, 0.0)
    ((seen, _, told),) = log_lines()
    assert (seen, told) == (level, {"worker_id": 1, "dp_rank": 2} | fields)


def test_schedule_events_are_not_logged(log_lines):
    RankStateLog(HealthCounters()).on_effect(CheckRequested(RANK), 0.0)
    assert log_lines() == []


def test_lines_per_second_are_bounded_and_the_rest_is_counted(log_lines):
    log = RankStateLog(HealthCounters())
    for _ in range(LINES_PER_SECOND_MAX + 7):
        log.on_effect(DrainFinished(RANK), 0.0)
    assert len(log_lines()) == LINES_PER_SECOND_MAX
    log.run_every_second(1.0)
    assert log_lines()[-1] == (
        "WARNING",
        "rank state changes suppressed by rate limit",
        {"count": 7},
    )
    log.on_effect(DrainFinished(RANK), 1.0)
    log.run_every_second(2.0)
    assert len(log_lines()) == LINES_PER_SECOND_MAX + 2


def test_a_counter_is_logged_when_it_begins_to_grow(log_lines):
    counts = HealthCounters()
    log = RankStateLog(counts)
    log.run_every_second(1.0)
    counts.reference_changes, counts.common_mode = 2, 1
    log.run_every_second(2.0)
    log.run_every_second(3.0)
    counts.common_mode += 1
    log.run_every_second(4.0)
    assert sorted((text, fields["count"]) for _, text, fields in log_lines()) == [
        ("many ranks slow at once: network or this host", 1),
        ("reference answers of a model changed", 2),
    ]
