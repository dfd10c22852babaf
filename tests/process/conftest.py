"""Fixtures with ingest threads and an index per test."""

import pytest

from indexer.index.prefix_index import PrefixIndex
from indexer.sockets.ingest import Ingest
from tests.process.ingest_scenes import close


@pytest.fixture
def ingest():
    ingest = Ingest(threads=2)
    yield ingest
    close(ingest)
    assert ingest.failure() is None


@pytest.fixture
def index():
    return PrefixIndex(1_000_000)
