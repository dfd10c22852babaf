"""What is said of changes of health, and that it is never too much."""

import logging

import pytest

from select_service.core.health.checked import HealthCounts
from select_service.core.health.effects import (
    CheckAsked,
    ChecksAccepted,
    ChecksRefused,
    Drained,
    Promoted,
    ReleaseAsked,
    StateChanged,
    Withheld,
)
from select_service.core.health.kinds import Kind, State
from select_service.core.identity import Rank
from select_service.edge.health.state_log import LINES_PER_SECOND_MAX, StateLog

RANK, OTHER = Rank(1, 2), Rank(3, 0)


@pytest.fixture
def said(caplog):
    """Levels, texts and fields."""
    caplog.set_level(logging.INFO, "select_service.health")
    return lambda: [(r.levelname, r.message, r.fields) for r in caplog.records]


@pytest.mark.parametrize(
    ("effect", "level", "fields"),
    [
        (
            StateChanged(RANK, State.SUSPICIOUS, State.UNHEALTHY, Kind.CONNECT),
            "WARNING",
            {"was": "suspicious", "state": "unhealthy", "cause": "connect"},
        ),
        (
            StateChanged(RANK, State.HEALTHY, State.DRAINING, Kind.OPERATOR),
            "INFO",
            {"was": "healthy", "state": "draining", "cause": "operator"},
        ),
        (
            StateChanged(RANK, State.UNHEALTHY, State.HEALTHY, None),
            "INFO",
            {"was": "unhealthy", "state": "healthy"},
        ),
        (Withheld(RANK, Kind.TIMEOUT), "WARNING", {"cause": "timeout"}),
        (Promoted(RANK, OTHER), "INFO", {"failed_worker_id": 3, "failed_dp_rank": 0}),
        (Drained(RANK), "INFO", {}),
        (
            ChecksRefused(RANK, "http://e", "m", "status 404: no such model"),
            "WARNING",
            {"endpoint": "http://e", "model_name": "m", "why": "status 404: no such model"},
        ),
        (ChecksAccepted(RANK), "INFO", {}),
        (ReleaseAsked(RANK, 7), "WARNING", {"reservations": 7}),
    ],
)
def test_what_happens_to_a_rank_is_one_line(said, effect, level, fields):
    StateLog(HealthCounts()).follow(effect, 0.0)
    ((seen, _, told),) = said()
    assert (seen, told) == (level, {"worker_id": 1, "dp_rank": 2} | fields)


def test_what_concerns_only_the_schedule_is_not_told(said):
    StateLog(HealthCounts()).follow(CheckAsked(RANK), 0.0)
    assert said() == []


def test_so_many_lines_a_second_are_told_and_then_how_many_more_there_were(said):
    log = StateLog(HealthCounts())
    for _ in range(LINES_PER_SECOND_MAX + 7):
        log.follow(Drained(RANK), 0.0)
    assert len(said()) == LINES_PER_SECOND_MAX
    log.tick(1.0)
    assert said()[-1] == ("WARNING", "more happened to ranks than is told", {"count": 7})
    log.follow(Drained(RANK), 1.0)
    log.tick(2.0)
    assert len(said()) == LINES_PER_SECOND_MAX + 2


def test_what_is_counted_is_told_when_it_begins_to_grow(said):
    counts = HealthCounts()
    log = StateLog(counts)
    log.tick(1.0)
    counts.reference_changes, counts.common_mode = 2, 1
    log.tick(2.0)
    log.tick(3.0)
    counts.common_mode += 1
    log.tick(4.0)
    assert sorted((text, fields["count"]) for _, text, fields in said()) == [
        ("many ranks are slow together: it is the network, or this host", 1),
        ("the right answers of a model have changed", 2),
    ]
