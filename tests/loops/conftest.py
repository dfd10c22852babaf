"""A service with one loop and two workers for the tests of a file."""

from collections.abc import Iterator

import pytest

from tests.loops.running import OnLoops


@pytest.fixture(scope="module")
def service() -> Iterator[OnLoops]:
    with OnLoops() as running:
        running.with_workers()
        yield running


@pytest.fixture(scope="module")
def server(service: OnLoops) -> OnLoops:
    """Of the tests that are those of other protocols, too."""
    return service
