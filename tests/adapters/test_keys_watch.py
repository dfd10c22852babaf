"""Tests of the followed key file; a wrong file changes nothing."""

import contextlib

import pytest

from select_service.adapters.reload import api_keys_watch, file_watch
from select_service.adapters.reload.api_keys_watch import ApiKeysWatch
from select_service.auth.guard import Guard
from select_service.auth.keys_file import read_api_keys
from tests.builders.keys import entry, keys_file
from tests.builders.polling import eventually_on_loop


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch):
    monkeypatch.setattr(file_watch, "CHECK_INTERVAL_S", 0.01)


@contextlib.asynccontextmanager
async def watched(folder):
    """Yield (guard, watch) while the file of `folder` is watched."""
    path = keys_file(folder, entry("a", "metrics"))
    guard = Guard(read_api_keys(path))
    watch = ApiKeysWatch(path, guard)
    watch.start()
    try:
        yield guard, watch
    finally:
        await watch.stop()


async def test_an_edit_counts_and_so_does_the_next(tmp_path):
    async with watched(tmp_path) as (guard, _):
        for n in (2, 3, 0, 1):
            keys_file(tmp_path, *(entry(f"k{i}", "metrics") for i in range(n)))
            await eventually_on_loop(lambda n=n: len(guard) == n)
        assert guard.generation == guard.readings == 4
        assert guard.fault is None


async def test_a_wrong_edit_keeps_the_keys_and_is_logged(tmp_path, caplog):
    async with watched(tmp_path) as (guard, _):
        (tmp_path / "keys.toml").write_text("keys = 1")
        await eventually_on_loop(lambda: guard.fault)
        assert (len(guard), guard.generation) == (1, 0)
        (tmp_path / "keys.toml").unlink()
        await eventually_on_loop(lambda: guard.failures == 2)
        assert len(guard) == 1
        keys_file(tmp_path, entry("a", "metrics"), entry("b", "metrics"))
        await eventually_on_loop(lambda: guard.fault is None)
        assert len(guard) == 2
    told = [r for r in caplog.records if "API key file is invalid" in r.message]
    assert [r.fields["error"][:8] for r in told] == ["`keys`: ", "file not"]


async def test_a_request_reads_the_file_without_a_change(tmp_path, monkeypatch):
    monkeypatch.setattr(file_watch, "CHECK_INTERVAL_S", 3600.0)
    reads = []
    monkeypatch.setattr(
        api_keys_watch, "read_api_keys", lambda path: reads.append(path) or read_api_keys(path)
    )
    async with watched(tmp_path) as (guard, watch):
        await eventually_on_loop(lambda: len(reads) == 1)
        watch.files.trigger_read()
        await eventually_on_loop(lambda: len(reads) == 2)
        assert guard.generation == 0
