"""Fixtures of a service for one test, empty or with one worker."""

from collections.abc import Iterator

import pytest

from tests.builders import worker_body
from tests.builders.in_process import Api


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as service:
        yield service


@pytest.fixture
def replica() -> Iterator[Api]:
    """Yield a service with a replica plane that is neither bound nor running."""
    with Api("--replica-sync-port", "65535") as service:
        yield service


@pytest.fixture
def fleet(api: Api) -> Api:
    """Return `api` with the ranks 0 and 1 of worker 1 for model `m`, block size 4."""
    assert api.post("/workers", worker_body(1, data_parallel_size=2)).status == 201
    return api
