"""Tests of the session file: written after changes, restored with versions and ages."""

import asyncio
import json

from select_service.adapters.persistence import session_file
from select_service.adapters.persistence.session_file import SessionFile
from select_service.core.identity import PartitionKey
from select_service.core.sessions.session_persistence import (
    ROWS_PER_STEP,
    PersistedSession,
    iterate_persisted,
    restore_sessions,
)
from select_service.core.sessions.session_settings import SessionSettings
from tests.builders import a_select_and_reserve, a_selector, a_worker
from tests.builders.selector_scenes import KEY

SETTINGS = SessionSettings(60.0, is_hard=True, epoch_s=1.8e9)


def a_fleet():
    selector = a_selector(sessions=SETTINGS)
    for worker_id in (1, 2, 3):
        selector.register_worker(a_worker(worker_id))
    return selector


def book(selector, session, now, **fields):
    request = a_select_and_reserve(8, session_id=session, **fields)
    return selector.select_and_reserve(request, now).selection


def directory_of(selector):
    return selector.decisions.sessions.directory


def rows_of(selector, now):
    return [row for row in iterate_persisted(directory_of(selector), now) if row is not None]


def restore_rows(selector, rows, down_s, now):
    *_, numbers = restore_sessions(directory_of(selector), rows, down_s, now)
    return tuple(numbers)


def test_a_restart_keeps_rank_version_and_age():
    old, new = a_fleet(), a_fleet()
    book(old, "idle", 0.0, allowed_worker_ids=[2], reservation_id="a")
    old.free_reservation("a", 10.0)
    book(old, "live", 15.0, allowed_worker_ids=[3])
    rows = rows_of(old, 20.0)
    assert restore_rows(new, rows, 5.0, 1000.0) == (2, 0)
    idle = directory_of(new).find_session(KEY, "idle", 1000.0)
    assert idle.binding == directory_of(old).find_session(KEY, "idle", 20.0).binding
    # Ten seconds idle before the write, five while the process was down.
    assert idle.idle_since == 985.0
    assert directory_of(new).find_session(KEY, "idle", 1045.0) is None
    assert book(new, "live", 1001.0).worker_id == 3
    new.check_invariants()


def test_sessions_that_ended_during_the_downtime_stay_ended():
    old, new = a_fleet(), a_fleet()
    book(old, "s", 0.0, reservation_id="a")
    old.free_reservation("a", 1.0)
    assert restore_rows(new, rows_of(old, 2.0), 60.0, 5000.0) == (0, 1)
    assert len(directory_of(new)) == 0


def test_a_restored_session_never_replaces_a_newer_binding():
    old, new = a_fleet(), a_fleet()
    book(old, "s", 0.0, allowed_worker_ids=[2])
    rows = rows_of(old, 1.0)
    for now in (2.0, 20.0):
        directory_of(old).expire_sessions(now)
    old.delete_worker(2, 3.0)
    old.run_pending(3.0)
    book(old, "s", 21.0, allowed_worker_ids=[3])
    newer = rows_of(old, 22.0)
    assert restore_rows(new, newer, 0.0, 22.0) == (1, 0)
    assert restore_rows(new, rows, 21.0, 22.0) == (0, 1)
    assert directory_of(new).find_session(KEY, "s", 22.0).binding.worker_id == 3


def test_rows_out_of_range_are_dropped():
    new = a_fleet()
    row = PersistedSession("m", "default", "s", 1, 0, 1, 2, 3, 0.0)
    wrong = [
        PersistedSession("m", "default", "x" * 257, 1, 0, 1, 2, 3, 0.0),
        PersistedSession("m", "default", "w", 2**64, 0, 1, 2, 3, 0.0),
        PersistedSession("m", "default", "lead", 1, 0, 2**64 - 1, 2, 3, 0.0),
    ]
    assert restore_rows(new, [*wrong, row], 0.0, 1.0) == (1, 3)
    # A scope without workers may get workers from a source later.
    other = PersistedSession("other", "g", "s", 1, None, 1, 2, 3, 0.0)
    assert restore_rows(new, [other], 0.0, 1.0) == (1, 0)
    assert directory_of(new).find_session(PartitionKey("other", "g"), "s", 1.0) is not None


def test_a_file_never_exceeds_the_size_that_a_restart_reads(tmp_path, monkeypatch, caplog):
    path, n = tmp_path / "state.json.sessions", 3 * ROWS_PER_STEP
    monkeypatch.setattr(session_file, "monotonic", lambda: 100.0)

    def write(bytes_max):
        limit = session_file.SESSIONS._replace(bytes_max=bytes_max)
        monkeypatch.setattr(session_file, "SESSIONS", limit)
        old = a_fleet()
        rows = [PersistedSession(*KEY, f"s{k}", 1, 0, k, 2, 3, 0.0) for k in range(n)]
        assert restore_rows(old, rows, 0.0, 100.0) == (n, 0)
        kept = SessionFile(path, directory_of(old))
        kept._written_change = -1

        async def run():
            kept.periodic_tasks()[0].step(0.0)
            await kept.stop()

        asyncio.run(run())

    async def count_restored():
        selector = a_fleet()
        await SessionFile(path, directory_of(selector)).restore()
        return len(directory_of(selector))

    write(1 << 20)
    assert asyncio.run(count_restored()) == n
    size = path.stat().st_size
    write(size + 64)  # the time sometimes has more digits
    assert asyncio.run(count_restored()) == n
    assert "left out" not in caplog.text
    write(size - 64)
    assert path.stat().st_size < size
    assert asyncio.run(count_restored()) == n - ROWS_PER_STEP
    assert "left out" in caplog.text


def test_the_file_is_written_when_something_changed_and_read_at_the_start(tmp_path, monkeypatch):
    path = tmp_path / "state.json.sessions"
    monkeypatch.setattr(session_file, "monotonic", lambda: 100.0)

    async def write():
        selector = a_fleet()
        kept = SessionFile(path, directory_of(selector))
        (task,) = kept.periodic_tasks()
        await kept.restore()
        task.step(0.0)
        await kept.stop()
        assert not path.exists()
        book(selector, "s", 100.0, allowed_worker_ids=[2])
        task.step(10.0)
        await kept.stop()
        written = json.loads(path.read_text())
        assert written["format"] == "select-service sessions"
        assert [row[2] for row in written["sessions"]] == ["s"]

    async def read():
        selector = a_fleet()
        await SessionFile(path, directory_of(selector)).restore()
        return directory_of(selector).find_session(KEY, "s", 100.0)

    asyncio.run(write())
    assert asyncio.run(read()).binding.worker_id == 2
    path.write_text('{"format":"select-service sessions","sessions":7}')
    assert asyncio.run(read()) is None
    assert (tmp_path / "state.json.sessions.refused").exists()
