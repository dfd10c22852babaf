"""A ZeroMQ context per test."""

from collections.abc import Iterator
from typing import Any

import pytest
import zmq


@pytest.fixture
def zmq_context() -> Iterator[zmq.Context[Any]]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(linger=0)
