"""Tests that threads for blocking work exist before the machine can run out of threads."""

import threading

import pytest

from select_service.config.settings_loader import UnusableSetting
from select_service.server.thread_pool import start_threads
from tests.builders.polling import PATIENCE_S


def refuse(thread):
    raise RuntimeError("can't start new thread")


def test_blocking_work_needs_no_thread_that_begins_later(monkeypatch):
    with start_threads(4) as executor:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        together = threading.Barrier(4)
        done = [executor.submit(together.wait, PATIENCE_S) for _ in range(4)]
        assert sorted(each.result() for each in done) == [0, 1, 2, 3]
        assert [executor.submit(int).result() for _ in range(100)] == [0] * 100


def test_missing_threads_stop_the_start(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(UnusableSetting, match="cannot start 4 threads: can't start new thread"):
        start_threads(4)
