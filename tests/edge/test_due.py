"""Tasks that are due again and again: order, turns, what is counted."""

import logging
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from select_service.core.due_task import DueTask
from select_service.core.load.ledger import Expired
from select_service.edge.due import DueTasks
from select_service.edge.due_tasks import LeaseExpiry
from tests.process.in_thread import InThread
from tests.process.launched import free_port

DOCUMENT = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def task(name, seen, *, interval_s=1.0, turns=1):
    """A task that needs so many turns each time it is due."""
    left = [turns]

    def step(now):
        seen.append((name, now))
        left[0] = left[0] - 1 or turns
        return left[0] < turns

    return DueTask(name, interval_s, step)


def test_a_task_is_due_one_interval_after_the_start_and_after_each_step():
    seen = []
    tasks = DueTasks([task("a", seen, interval_s=2.0)], 0.0)
    assert tasks.turn(1.0) == 1.0
    assert tasks.turn(2.5) == 2.0
    assert seen == [("a", 2.5)]


def test_one_that_has_more_goes_on_in_the_next_turn_and_the_others_have_theirs():
    seen = []
    tasks = DueTasks([task("long", seen, turns=3), task("b", seen), task("c", seen)], 0.0)
    waits = [tasks.turn(1.0) for _ in range(5)]
    assert [name for name, _ in seen] == ["long", "b", "c", "long", "long"]
    assert waits == [0.0, 0.0, 0.0, 0.0, 1.0]


def test_a_turn_takes_one_step():
    seen = []
    tasks = DueTasks([task("a", seen), task("b", seen)], 0.0)
    assert tasks.turn(5.0) < 0.0
    assert len(seen) == 1


def test_steps_are_counted_by_task():
    tasks = DueTasks([task("a", [], turns=2), task("b", [])], 0.0)
    for _ in range(3):
        tasks.turn(1.0)
    assert {name: counts.steps for name, counts in tasks.counts.items()} == {"a": 2, "b": 1}
    counts = tasks.counts["a"]
    assert 0.0 < counts.longest_s <= counts.seconds


def test_what_a_step_raises_ends_the_tasks():
    def broken(now):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        DueTasks([DueTask("broken", 1.0, broken)], 0.0).turn(1.0)


def test_all_that_expires_at_once_is_one_log_line(caplog):
    turns = [Expired([f"r{n}" for n in range(first, first + 4)], first < 8) for first in (0, 4, 8)]
    expiry = LeaseExpiry(SimpleNamespace(expire=lambda now: turns.pop(0)))
    with caplog.at_level(logging.INFO):
        assert [expiry.step(1.0) for _ in range(3)] == [True, True, False]
    (record,) = caplog.records
    assert record.fields == {"count": 12, "reservation_ids": ["r0", "r1", "r2", "r3", "r4"]}


def test_every_task_is_in_the_document_of_the_metrics(tmp_path):
    """With all on that has a task."""
    flags = ["--queue-policy", "work", "--queue-threshold", "1", "--shadow-policy", "reference"]
    flags += ["--decision-log", str(tmp_path / "log"), "--replica-sync-port", str(free_port())]
    flags += ["--health-checks", "on", "--health-state", str(tmp_path / "health")]
    (tmp_path / "workers").write_text("[]")
    flags += ["--workers-file", str(tmp_path / "workers"), "--state-path", str(tmp_path / "state")]
    with InThread(*flags, environment={}) as service:
        text = service.call("GET", "/metrics").body.decode()
    tasks = set(re.findall(r'^select_service_task_steps_total\{task="(\w+)"', text, re.MULTILINE))
    (row,) = re.findall(r"^\| `select_service_task_steps_total` \| (.*)$", DOCUMENT, re.MULTILINE)
    assert tasks == set(re.findall(r"`(\w+)`", row.partition("|")[0])) - {"task"}
