"""Tests of a followed workers file; a wrong file changes nothing."""

import asyncio
import contextlib

import pytest

from select_service.adapters.discovery import workers_file
from select_service.adapters.discovery.source_status import SourceStatus
from select_service.adapters.discovery.workers_file import WorkersFileSource
from tests.builders.polling import eventually_on_loop


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch):
    monkeypatch.setattr(workers_file, "CHECK_INTERVAL_S", 0.01)


@contextlib.asynccontextmanager
async def watched(path):
    """Yield (readings, ids of each offer) while the file is watched."""
    offers = []
    readings = SourceStatus(
        "a", "file", str(path), lambda _, desired, __: offers.append(sorted(desired))
    )
    task = asyncio.create_task(WorkersFileSource(path, readings).run())
    try:
        yield readings, offers
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_an_edit_counts_and_so_does_a_file_that_is_put_in_its_place(tmp_path):
    path = tmp_path / "workers.yaml"
    path.write_text("[{worker_id: 1}]")
    async with watched(path) as (readings, offers):
        await eventually_on_loop(lambda: offers == [[1]])
        path.write_text("[{worker_id: 1}, {worker_id: 2}]")
        await eventually_on_loop(lambda: offers[-1] == [1, 2])
        (tmp_path / "next.yaml").write_text("[{worker_id: 3}]")
        (tmp_path / "next.yaml").replace(path)
        await eventually_on_loop(lambda: offers[-1] == [3])
        assert (readings.failures, readings.error) == (0, None)


async def test_a_wrong_edit_keeps_the_workers_and_is_reported(tmp_path, caplog):
    path = tmp_path / "workers.yaml"
    path.write_text("[{worker_id: 1}]")
    async with watched(path) as (readings, offers):
        await eventually_on_loop(lambda: offers == [[1]])
        path.write_text("[{worker_id: 1, block: 2}]")
        await eventually_on_loop(lambda: readings.error)
        assert readings.error.startswith("worker 1: unknown field `block`")
        path.unlink()
        await eventually_on_loop(lambda: readings.failures == 2)
        path.write_text("# the same as before\n[{worker_id: 1}]")
        await eventually_on_loop(lambda: readings.error is None)
        assert (offers, readings.changes) == ([[1]], 1)
    told = [r for r in caplog.records if "read failed" in r.message]
    assert [r.fields["kept"] for r in told] == [1, 1]
