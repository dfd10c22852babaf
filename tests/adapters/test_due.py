"""Tests of periodic tasks: order, turns, counts."""

import logging
from types import SimpleNamespace

import pytest

from select_service.adapters.periodic_tasks import PeriodicTasks
from select_service.adapters.service_tasks import ReservationExpiry
from select_service.core.load.ledger import ExpiryResult
from select_service.core.periodic_task import PeriodicTask


def task(name, seen, *, interval_s=1.0, turns=1):
    """Return a task that needs this many turns each time."""
    left = [turns]

    def step(now):
        seen.append((name, now))
        left[0] = left[0] - 1 or turns
        return left[0] < turns

    return PeriodicTask(name, interval_s, step)


def test_a_task_is_due_one_interval_after_the_start_and_after_each_step():
    seen = []
    tasks = PeriodicTasks([task("a", seen, interval_s=2.0)], 0.0)
    assert tasks.run_next_step(1.0) == 1.0
    assert tasks.run_next_step(2.5) == 2.0
    assert seen == [("a", 2.5)]


def test_a_task_with_more_work_continues_in_the_next_turn_beside_the_others():
    seen = []
    tasks = PeriodicTasks([task("long", seen, turns=3), task("b", seen), task("c", seen)], 0.0)
    waits = [tasks.run_next_step(1.0) for _ in range(5)]
    assert [name for name, _ in seen] == ["long", "b", "c", "long", "long"]
    assert waits == [0.0, 0.0, 0.0, 0.0, 1.0]


def test_a_turn_takes_one_step():
    seen = []
    tasks = PeriodicTasks([task("a", seen), task("b", seen)], 0.0)
    assert tasks.run_next_step(5.0) < 0.0
    assert len(seen) == 1


def test_steps_are_counted_by_task():
    tasks = PeriodicTasks([task("a", [], turns=2), task("b", [])], 0.0)
    for _ in range(3):
        tasks.run_next_step(1.0)
    assert {name: counts.steps for name, counts in tasks.counts.items()} == {"a": 2, "b": 1}
    counts = tasks.counts["a"]
    assert 0.0 < counts.longest_s <= counts.seconds


def test_an_exception_of_a_step_ends_the_tasks():
    def broken(now):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        PeriodicTasks([PeriodicTask("broken", 1.0, broken)], 0.0).run_next_step(1.0)


def test_all_that_expires_at_once_is_one_log_line(caplog):
    turns = [
        ExpiryResult([f"r{n}" for n in range(first, first + 4)], first < 8) for first in (0, 4, 8)
    ]
    expiry = ReservationExpiry(SimpleNamespace(expire_reservations=lambda now: turns.pop(0)))
    with caplog.at_level(logging.INFO):
        assert [expiry.expire_step(1.0) for _ in range(3)] == [True, True, False]
    (record,) = caplog.records
    assert record.fields == {"count": 12, "reservation_ids": ["r0", "r1", "r2", "r3", "r4"]}
