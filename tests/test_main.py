"""The command before there is a service."""

import logging
import queue

import pytest

from select_service.__main__ import explained_when_slow


@pytest.fixture
def lines():
    """Messages that select_service logs, as they come."""
    seen = queue.Queue()
    handler = logging.Handler()
    handler.emit = lambda record: seen.put(record.getMessage())
    logger = logging.getLogger("select_service")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield seen
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_a_slow_start_says_what_it_is_busy_with(lines):
    with explained_when_slow(0.0):
        assert "compiling" in lines.get(timeout=10.0)


def test_a_quick_start_says_nothing(lines):
    with explained_when_slow(60.0):
        pass
    assert lines.empty()
